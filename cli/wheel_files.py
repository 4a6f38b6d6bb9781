"""Wheels of packages that are installed here: an installed package has all that its wheel had.

A server without internet makes the packages of its agents from its own. A checkout is installed
as a link to its folder; its wheel has the files of the folder.
"""

import base64
import json
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from core.errors import UnavailableError

# pip writes these for itself.
_OF_THE_INSTALLER = frozenset({"INSTALLER", "REQUESTED", "RECORD", "direct_url.json"})
_NEVER_CHANGED = (1980, 1, 1, 0, 0, 0)
_READABLE_FILE = 0o100644 << 16


def required_distributions(package: str) -> list[Distribution]:
    """Return the packages that a package requires on this host, and those that these require.

    Raises:
        UnavailableError: one isn't installed.
    """
    distributions: dict[str, Distribution] = {}
    pending = _requirements(package)
    while pending:
        name = pending.pop()
        if name not in distributions:
            distributions[name] = _installed(name)
            pending += _requirements(name)
    return [distributions[name] for name in sorted(distributions)]


def write_wheel(package: Distribution, folder: Path) -> Path:
    """Write the wheel of an installed package; the same package always makes the same file."""
    contents = dict(sorted(_contents(package)))
    info_folder = next(name.split("/")[0] for name in contents if name.endswith("/METADATA"))
    path = folder / f"{info_folder.removesuffix('.dist-info')}-{_tag(package)}.whl"
    record = f"{info_folder}/RECORD"
    lines = [f"{name},{_digest(content)},{len(content)}" for name, content in contents.items()]
    contents[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    with ZipFile(path, "w", ZIP_DEFLATED) as wheel:
        for name, content in contents.items():
            entry = ZipInfo(name, _NEVER_CHANGED)
            entry.external_attr, entry.compress_type = _READABLE_FILE, ZIP_DEFLATED
            wheel.writestr(entry, content)
    return path


def _requirements(package: str) -> list[str]:
    """Return the names of what a package requires here without extras."""
    requirements = map(Requirement, _installed(package).requires or ())
    return [
        canonicalize_name(requirement.name)
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]


def _installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise UnavailableError(
            f"The package {name} is not installed here, so no wheel can be made of it. Build the "
            "wheelhouse without --offline."
        ) from error


def _contents(package: Distribution) -> Iterator[tuple[str, bytes]]:
    """Return the path and the content of each file, without what the installer made."""
    source = _checkout(package)
    for file in package.files or ():
        is_outside = ".." in file.parts
        is_link = source is not None and not file.parts[0].endswith(".dist-info")
        is_made_here = file.suffix == ".pyc" or file.name in _OF_THE_INSTALLER
        if not (is_outside or is_link or is_made_here):
            yield str(file), file.read_binary()
    if source is not None:
        yield from _source_files(source)


def _source_files(source: Path) -> Iterator[tuple[str, bytes]]:
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        for path in (source / package).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                yield str(path.relative_to(source)), path.read_bytes()


def _checkout(package: Distribution) -> Path | None:
    """Return the folder that a package is installed from as a link; None for a real copy."""
    origin = json.loads(package.read_text("direct_url.json") or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(origin["url"]).path))


def _tag(package: Distribution) -> str:
    """Return the last of the tags, all of which fit this host: older ones, as py2, come first."""
    lines = (package.read_text("WHEEL") or "").splitlines()
    return [line.removeprefix("Tag: ") for line in lines if line.startswith("Tag: ")][-1]


def _digest(content: bytes) -> str:
    encoded = base64.urlsafe_b64encode(sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={encoded}"
