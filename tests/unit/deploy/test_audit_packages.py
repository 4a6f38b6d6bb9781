"""Only a known vulnerability fails the check of the packages, not a network without the index."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "deploy" / "audit-packages"
CLEAN = {"name": "flask", "version": "3.1.3", "vulns": []}
UNKNOWN = {"name": "dash", "skip_reason": "Dependency not found on PyPI"}
VULNERABLE = {
    "name": "jinja2",
    "version": "2.4.1",
    "vulns": [{"id": "PYSEC-2019-217", "fix_versions": ["2.10.1"]}],
}


def audit(folder: Path, *, says: str, exits: int) -> subprocess.CompletedProcess[str]:
    """Run the check with a pip-audit that prints `says` and exits so."""
    pip_audit = folder / "pip-audit"
    pip_audit.write_text(f"#!{sys.executable}\nprint({says!r})\nraise SystemExit({exits})\n")
    pip_audit.chmod(0o755)
    argv = [sys.executable, str(PROGRAM), str(pip_audit), "requirements/dev.txt"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_packages_without_known_vulnerabilities_pass(tmp_path: Path) -> None:
    done = audit(tmp_path, says=json.dumps({"dependencies": [CLEAN]}), exits=0)
    assert (done.returncode, done.stdout) == (
        0,
        "pip-audit: 0 of 1 packages have known vulnerabilities.\n",
    )


def test_a_known_vulnerability_fails_and_says_what_to_install(tmp_path: Path) -> None:
    done = audit(tmp_path, says=json.dumps({"dependencies": [CLEAN, VULNERABLE]}), exits=1)
    assert done.returncode == 1
    assert "jinja2 2.4.1: PYSEC-2019-217, fixed in 2.10.1" in done.stdout


@pytest.mark.parametrize("says", ["", "connection refused", "{}"])
def test_an_unreachable_index_is_reported_and_passes(tmp_path: Path, says: str) -> None:
    done = audit(tmp_path, says=says, exits=1)
    assert done.returncode == 0
    assert "not reachable; nothing was checked" in done.stdout


def test_packages_that_the_index_does_not_know_are_reported(tmp_path: Path) -> None:
    done = audit(tmp_path, says=json.dumps({"dependencies": [CLEAN, UNKNOWN]}), exits=0)
    assert done.returncode == 0
    assert "does not answer for 1 of 2" in done.stdout
