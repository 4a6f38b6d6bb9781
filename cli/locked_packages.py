"""The versions of packages that the server was tested with, and those that are installed."""

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

from cli.database_checks import Check
from core.database_checks import Problem

# Written by `make lock`.
LOCK_NAME = "server-requirements.txt"
MAX_NAMES = 5
_PIN = re.compile(r"^([\w.-]+)==([^\s\\]+)", re.MULTILINE)


def check_packages() -> Check:
    """Compare the installed versions with those of the lock."""
    pins = locked_versions()
    differences = list(_differences(pins))
    if not differences:
        return Check("packages", f"{len(pins)}, in the versions that Vedette was tested with")
    shown = "; ".join(differences[:MAX_NAMES])
    rest = len(differences) - MAX_NAMES
    problem = Problem(
        f"Vedette was tested with others: {shown}{f'; and {rest} more' if rest > 0 else ''}.",
        "Install those of the release: pip install --requirement server-requirements.txt",
        is_fatal=False,
    )
    return Check("packages", f"{len(differences)} of {len(pins)} differ", (problem,))


def locked_versions() -> Mapping[str, str]:
    """Return the version of each package that the server was tested with."""
    return dict(_PIN.findall((files("cli") / LOCK_NAME).read_text(encoding="utf-8")))


def _differences(pins: Mapping[str, str]) -> Iterator[str]:
    for name, locked in pins.items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            # Some packages are for some versions of Python only.
            continue
        if installed != locked:
            yield f"{name} {installed} is installed, {locked} was tested"
