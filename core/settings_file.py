"""The file of the server's settings: variables, as systemd and Docker read them, or TOML.

Every command on the server's database reads the same file as the server, so that it works in any
folder. The environment takes precedence over the file.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from core.atomic_files import replace_file
from core.config import read_toml
from core.errors import ConfigurationError

CONFIG_VARIABLE = "VEDETTE_CONFIG"
SYSTEM_FILE = Path("/etc/vedette/server.env")
_PLAIN_VALUE = re.compile(r"[\w@%+=:,./?&~-]*", re.ASCII)
_NAME = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\s*=")


def settings_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file named by `VEDETTE_CONFIG`, or the system's if this user can read it.

    An empty `VEDETTE_CONFIG` means that there is none.
    """
    named = environ.get(CONFIG_VARIABLE)
    if named is not None:
        return Path(named).expanduser() if named else None
    return SYSTEM_FILE if os.access(SYSTEM_FILE, os.R_OK) else None


def read_settings_file(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings of a TOML file, and the variables of any other.

    Raises:
        ConfigurationError: it can't be read.
    """
    if path.suffix == ".toml":
        return read_toml(path), {}
    return {}, read_variables(path)


def read_variables(path: Path) -> dict[str, str]:
    """Return the variables of a file with a `NAME=value` on each line.

    Raises:
        ConfigurationError: it can't be read.
    """
    from dotenv import dotenv_values  # noqa: PLC0415 - only servers have it

    try:
        with path.open(encoding="utf-8") as lines:
            # systemd does not replace variables in values either.
            values = dotenv_values(stream=lines, interpolate=False)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError([f"can't be read: {reason}"], source=str(path)) from error
    return {name: value for name, value in values.items() if value is not None}


def write_variables(path: Path, values: Mapping[str, str]) -> None:
    """Set variables in a file that only its owner can read; all other lines stay as they are.

    Raises:
        OSError: it can't be written; it is unchanged.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    replace_file(path, "".join(f"{line}\n" for line in _merged(lines, values)).encode())


def _merged(lines: list[str], values: Mapping[str, str]) -> Iterator[str]:
    missing = dict(values)
    for line in lines:
        match = _NAME.match(line.strip())
        if match is None or match[1] not in values:
            yield line
        elif match[1] in missing:
            yield f"{match[1]}={_quoted(missing.pop(match[1]))}"
    for name, value in missing.items():
        yield f"{name}={_quoted(value)}"


def _quoted(value: str) -> str:
    """Return a value so that systemd, Docker and python-dotenv read the same."""
    if _PLAIN_VALUE.fullmatch(value):
        return value
    if "'" not in value and "\\" not in value:
        return f"'{value}'"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
