"""`vedette version`: the release, and what it is made of."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import click
import msgspec

DISTRIBUTION = "vedette"
MANIFEST = Path(__file__).with_name("components.json")
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)")
_LICENSES = ("LICENSE", "NOTICE")
# Extras with which Vedette runs; others are for its development.
_EXTRAS = frozenset({"", "server"})


@dataclass(frozen=True, slots=True)
class Component:
    """JavaScript, styles and fonts of others in the wheel; `files` has their SHA-256 by path."""

    name: str
    version: str
    license: str
    files: dict[str, str]


@click.command()
@click.option("--components", "shows_components", is_flag=True, help="List what is in the wheel.")
@click.option(
    "--sbom",
    "prints_sbom",
    is_flag=True,
    help="Print a software bill of materials (CycloneDX 1.6, JSON) of the wheel.",
)
@click.option(
    "--notices", "prints_notices", is_flag=True, help="Print the licenses of others' files."
)
def version(*, shows_components: bool, prints_sbom: bool, prints_notices: bool) -> None:
    """Show the version, and with --components what it is made of.

    The Python packages are those that are installed here.
    """
    if prints_sbom:
        click.echo(json.dumps(sbom(), indent=2))
        return
    if prints_notices:
        click.echo("\n".join(_notices()), nl=False)
        return
    click.echo(f"vedette {distribution(DISTRIBUTION).version}")
    if shows_components:
        for component in vendored():
            click.echo(f"{component.name} {component.version} ({component.license})")
            for path, digest in component.files.items():
                click.echo(f"  sha256:{digest}  {path}")
        for name, release, license_name in python_packages():
            click.echo(f"{name} {release} ({license_name or 'license not stated'})")


def vendored() -> list[Component]:
    """Return the components whose files are in the wheel."""
    return msgspec.json.decode(MANIFEST.read_bytes(), type=list[Component])


def _notices() -> Iterator[str]:
    """Yield name and license texts of each component whose files are in the wheel."""
    for component in vendored():
        yield f"{component.name} {component.version} ({component.license})\n"
        for path in map(Path, component.files):
            if path.name.startswith(_LICENSES):
                yield (MANIFEST.parents[1] / path).read_text(encoding="utf-8")


def python_packages() -> Iterator[tuple[str, str, str]]:
    """Yield name, version and license of the installed packages that the wheel requires."""
    for requirement in sorted(distribution(DISTRIBUTION).requires or [], key=str.lower):
        name, extra = _REQUIREMENT.match(requirement), _EXTRA.search(requirement)
        if name is None or (extra[1] if extra else "") not in _EXTRAS:
            continue
        try:
            package = distribution(name[0])
        except PackageNotFoundError:  # of the server, on an appliance
            continue
        metadata = package.metadata
        fields = ("License-Expression", "License")
        stated = next((metadata[field] for field in fields if field in metadata), "")
        # Some have the whole text there.
        yield metadata["Name"], package.version, stated.strip().partition("\n")[0][:100]


def sbom() -> dict[str, Any]:
    """Return the bill of materials.

    Source: https://cyclonedx.org/docs/1.6/json/
    """
    release = distribution(DISTRIBUTION).version
    purl = f"pkg:pypi/{DISTRIBUTION}@{release}"
    javascript = [
        {
            **_entry(
                component.name, component.version, f"pkg:npm/{component.name.replace('@', '%40')}"
            ),
            "licenses": [{"license": {"id": component.license}}],
            "components": [
                {
                    "type": "file",
                    "name": path,
                    "hashes": [{"alg": "SHA-256", "content": digest}],
                }
                for path, digest in component.files.items()
            ],
        }
        for component in vendored()
    ]
    python = [
        _entry(name, number, f"pkg:pypi/{name.lower().replace('_', '-')}")
        | ({"licenses": [{"license": {"name": license_name}}]} if license_name else {})
        for name, number, license_name in python_packages()
    ]
    components: list[dict[str, Any]] = [*javascript, *python]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {**_entry(DISTRIBUTION, release, purl.rpartition("@")[0])}
            | {"type": "application"}
        },
        "components": components,
        "dependencies": [
            {"ref": purl, "dependsOn": [component["bom-ref"] for component in components]}
        ],
    }


def _entry(name: str, release: str, kind: str) -> dict[str, Any]:
    purl = f"{kind}@{release}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": release, "purl": purl}
