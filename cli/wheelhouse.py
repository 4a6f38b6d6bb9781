"""`vedette wheelhouse`: the packages of the agent, which the portal serves to appliances."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import distribution, version
from importlib.resources import as_file, files
from pathlib import Path

import click
import msgspec

from cli.privileges import acting_as_owner
from cli.wheel_files import required_distributions, write_wheel
from core.atomic_files import replacing
from core.errors import ConfigurationError, UnavailableError
from core.private_files import UMASK
from core.settings import load_server_settings
from portal.installer.wheelhouse import INDEX_NAME, REQUIREMENTS_NAME, Wheelhouse, wheelhouse_dir

# Written by `make lock`.
LOCK_NAME = "agent-requirements.txt"
PACKAGE = "vedette"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
# The versions of glibc that wheels are made for, up to that of Enterprise Linux 9.
GLIBC_MINORS = range(17, 35)
PUBLIC_FILE, PUBLIC_FOLDER = 0o644, 0o755


@click.group()
def wheelhouse() -> None:
    """Build the packages of the agent, which the portal serves to appliances."""


@wheelhouse.command()
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="VERSION",
    default=PYTHONS,
    show_default=True,
    help="Version of Python on appliances; repeatable.",
)
@click.option(
    "--machine",
    "machines",
    multiple=True,
    type=click.Choice(MACHINES),
    default=MACHINES,
    show_default=True,
    help="Architecture of appliances; repeatable.",
)
@click.option("--offline", is_flag=True, help="Use the packages that are installed here.")
@click.option(
    "--wheel",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Wheel of Vedette. Defaults to one of the installed files.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder. Defaults to the one that the portal serves.",
)
def build(
    *,
    pythons: Sequence[str],
    machines: Sequence[str],
    offline: bool,
    wheel: Path | None,
    output: Path | None,
) -> None:
    """Build the wheelhouse for this version of Vedette.

    Packages are downloaded from the index that pip uses, in the versions and with the hashes that
    Vedette was tested with. With --offline they are those of this host, for its own Python and
    architecture only. A running portal serves the new wheelhouse at once. For a portal without
    internet, build it elsewhere with --output, and copy the folder to DATA_DIR/wheelhouse.
    """
    folder = output or wheelhouse_dir(load_server_settings()).absolute()
    if offline:
        pythons, machines = [".".join(platform.python_version_tuple()[:2])], [platform.machine()]
    with tempfile.TemporaryDirectory(prefix="vedette-wheelhouse-") as name:
        draft = Path(name)
        pins = _copy_installed(draft) if offline else _download(draft, pythons, machines)
        if wheel is None:
            own = write_wheel(distribution(PACKAGE), draft)
        else:
            own = Path(shutil.copy(wheel, draft))
        pins += _pin(own, PACKAGE, version(PACKAGE))
        contents = Wheelhouse(
            version=version(PACKAGE),
            pythons=list(pythons),
            machines=list(machines),
            requirements_sha256=sha256(pins.encode()).hexdigest(),
        )
        (draft / REQUIREMENTS_NAME).write_text(pins, encoding="utf-8")
        (draft / INDEX_NAME).write_bytes(msgspec.json.encode(contents))
        if output is None:
            _give_to_owner(draft, folder)
            with acting_as_owner(folder.parent):
                size_bytes = _publish(draft, folder, mask=UMASK)
        else:
            size_bytes = _publish(draft, folder)
    click.echo(
        f"Built {folder} ({size_bytes / 1e6:.0f} MB): Vedette {contents.version} for Python "
        f"{', '.join(pythons)} on {' and '.join(machines)}."
    )


def _copy_installed(folder: Path) -> str:
    """Write the wheels of the agent's packages that are installed here; return their pins."""
    return "".join(
        _pin(write_wheel(package, folder), package.metadata["Name"], package.version)
        for package in required_distributions(PACKAGE)
    )


def _download(folder: Path, pythons: Sequence[str], machines: Sequence[str]) -> str:
    """Download the locked packages for each Python and architecture; return the lock's pins."""
    with as_file(files("cli") / LOCK_NAME) as lock:
        for machine in machines:
            tags = [f"manylinux_2_{minor}_{machine}" for minor in reversed(GLIBC_MINORS)]
            platforms = [f"--platform={tag}" for tag in (*tags, f"manylinux2014_{machine}")]
            for python in pythons:
                click.echo(f"• packages for Python {python} on {machine}")
                _pip_download(lock, folder, f"--python-version={python}", *platforms)
        return lock.read_text(encoding="utf-8")


def _pip_download(lock: Path, folder: Path, *options: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation=cp"]
    command += [f"--dest={folder}", f"--requirement={lock}", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - pip
    if ended.returncode:
        problem = ended.stderr.strip() or f"pip ended with status {ended.returncode}."
        raise UnavailableError(
            f"The packages can't be downloaded. pip reports:\n{problem}\nUse an index that this "
            "host reaches (PIP_INDEX_URL), build the wheelhouse on another host with --output, or "
            "use the packages of this host with --offline."
        )


def _pin(wheel: Path, name: str, version: str) -> str:
    return f"{name}=={version} --hash=sha256:{sha256(wheel.read_bytes()).hexdigest()}\n"


def _publish(draft: Path, folder: Path, *, mask: int = 0) -> int:
    """Move the files to the folder, the index last, and remove others; return their size.

    Without a mask they are readable by everybody, so that they can be copied.
    """
    names = {path.name for path in draft.iterdir()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(PUBLIC_FOLDER & ~mask)
        for name in sorted(names, key=lambda name: (name == INDEX_NAME, name)):
            with (draft / name).open("rb") as source, replacing(folder / name) as target:
                shutil.copyfileobj(source, target)
            (folder / name).chmod(PUBLIC_FILE & ~mask)
        for path in folder.glob("*.whl"):
            if path.name not in names:
                path.unlink()
    except OSError as error:
        fault = f"the folder {folder} can't be written: {error.strerror}"
        raise ConfigurationError([fault], source="The wheelhouse") from error
    return sum((folder / name).stat().st_size for name in names)


def _give_to_owner(draft: Path, folder: Path) -> None:
    """Let root give what it built to the owner of a data folder, as whom the portal runs.

    The owner publishes it: root would follow links that the portal has in its folder.
    """
    if os.geteuid() != 0 or not folder.parent.exists():
        return
    owner = folder.parent.stat()
    for path in (draft, *draft.iterdir(), *([folder] if folder.is_dir() else [])):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
