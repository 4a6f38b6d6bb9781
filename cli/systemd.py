"""Services of this host: *units*, the files by which systemd runs agent and server."""

import pwd
import re
import shlex
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from core.errors import UnavailableError

UNIT_DIR = Path("/etc/systemd/system")
LINK = Path("/usr/local/bin/vedette")
_PLAIN_WORD = re.compile(r"[\w@%+=:,./~-]+", re.ASCII)


def rendered_unit(name: str, **values: object) -> str:
    """Return a unit of this package, filled in."""
    return (files("cli") / name).read_text(encoding="utf-8").format(**values)


def quoted(word: str) -> str:
    """Return a word so that systemd reads it unchanged: as one, and without its specifiers."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return escaped if _PLAIN_WORD.fullmatch(escaped) else f'"{escaped}"'


def this_program() -> Path:
    """Return the path of the `vedette` that runs."""
    program = Path(sys.argv[0]).absolute()
    return program.readlink() if program.is_symlink() else program


def has_systemd() -> bool:
    """Return whether systemd runs this host."""
    return Path("/run/systemd/system").exists() and shutil.which("systemctl") is not None


def user_exists(name: str) -> bool:
    """Return whether this host has a user."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def call(*command: str) -> None:
    """Run a program of the system.

    Raises:
        UnavailableError: it failed; with what it wrote.
    """
    ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - systemctl, useradd, userdel
    if ended.returncode:
        raise UnavailableError(f"`{shlex.join(command)}` failed: {ended.stderr.strip()}")
