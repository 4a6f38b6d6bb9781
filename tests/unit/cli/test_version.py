"""`vedette version`: the manifest of vendored files is true, and the bill of materials whole."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import vedette
from cli.version import vendored

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "portal/static/vendor"
MINIFIED = set((ROOT / "dash_app/assets").glob("*.min.js"))
# Where the files themselves say of which release they are.
STATED = {
    "bootstrap": ("portal/static/vendor/bootstrap/bootstrap.bundle.min.js", r"Bootstrap v([\d.]+)"),
    "bootstrap-icons": (
        "portal/static/vendor/bootstrap-icons/bootstrap-icons.min.css",
        r"Icons v([\d.]+)",
    ),
    "swagger-ui-dist": (
        "portal/static/vendor/swagger-ui/swagger-ui-bundle.js",
        r'PACKAGE_VERSION:"([\d.]+)"',
    ),
    "plotly.js": ("dash_app/assets/plotly-cartesian.min.js", r"minified\) v([\d.]+)"),
}


def run(*arguments: str) -> str:
    result = CliRunner().invoke(vedette, ["version", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_manifest_has_every_vendored_file_with_its_hash() -> None:
    listed = {path: digest for component in vendored() for path, digest in component.files.items()}
    files = {path for path in FOLDER.rglob("*") if path.is_file()} | MINIFIED
    missing = {str(path.relative_to(ROOT)) for path in files} - listed.keys()
    assert missing == set()
    for path, digest in listed.items():
        assert hashlib.sha256((ROOT / path).read_bytes()).hexdigest() == digest, path
    assert all(any("LICENSE" in path for path in component.files) for component in vendored())


@pytest.mark.parametrize("name", STATED)
def test_versions_are_those_that_the_files_state(name: str) -> None:
    path, pattern = STATED[name]
    stated = re.search(pattern, (ROOT / path).read_text(encoding="utf-8"))
    assert stated is not None
    assert {component.name: component.version for component in vendored()}[name] == stated[1]


def test_components_are_listed_with_license_and_hash() -> None:
    output = run("--components")
    assert "anser 2.3.5 (MIT)" in output
    assert re.search(r"^Flask [\d.]+ \(BSD-3-Clause\)$", output, re.MULTILINE)
    assert re.search(r"sha256:[0-9a-f]{64}  portal/static/vendor/xterm/xterm.js", output)
    assert run().startswith("vedette ")


def test_the_bill_of_materials_has_all_components() -> None:
    document = json.loads(run("--sbom"))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    purls = {component["purl"] for component in document["components"]}
    assert {"pkg:npm/%40xterm/xterm@6.0.0", "pkg:npm/bootstrap@5.3.8"} <= purls
    assert any(purl.startswith("pkg:pypi/sqlalchemy@") for purl in purls)
    assert not any("pytest" in purl for purl in purls)
    assert set(document["dependencies"][0]["dependsOn"]) == purls
