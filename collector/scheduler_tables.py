"""`[marathon]`, `[metronome]`, `[chronos]` and `[mesos]` of `agent.toml`, with all their errors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from core.config import check_config
from jobqueue.executors.settings import MesosSettings, ServerSettings

KINDS: Mapping[str, type[ServerSettings]] = {
    "marathon": ServerSettings,
    "metronome": ServerSettings,
    "chronos": ServerSettings,
    "mesos": MesosSettings,
}
SCHEDULERS = tuple(KINDS)
EXECUTOR = "marathon"


def check_schedulers(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings by table, and all errors of the tables and between them."""
    settings: dict[str, Any] = {}
    errors = _contradictions(values)
    for name, kind in KINDS.items():
        if name not in values:
            continue
        table = values[name]
        if not isinstance(table, Mapping):
            errors.append(f"{name} = {table!r}: expected a table [{name}]")
            continue
        settings[name], own_errors = check_config(kind, table, prefix=f"{name}.")
        errors += own_errors + _server_errors(name, table)
    return settings, errors


def _contradictions(values: Mapping[str, Any]) -> list[str]:
    errors = []
    tables = [name for name in SCHEDULERS if name in values]
    is_chosen = values.get("executor") == EXECUTOR
    if is_chosen and not set(tables) - {"mesos"}:
        errors.append(
            f'executor = "{EXECUTOR}" needs a table [marathon], [metronome] or [chronos] with url'
        )
    if tables and not is_chosen:
        errors.append(f'[{tables[0]}] is set; set executor = "{EXECUTOR}" to use it')
    if "metronome" in values and "chronos" in values:
        errors.append("[metronome] and [chronos] are both set; set the one that runs batch jobs")
    return errors


def _server_errors(name: str, table: Mapping[str, Any]) -> list[str]:
    errors = []
    url = urlsplit(str(table.get("url", "http://given")))
    if url.scheme not in {"http", "https"} or not url.netloc:
        errors.append(f"{name}.url = {table['url']!r}: must start with http:// or https://")
    if bool(table.get("username")) != bool(table.get("password_file")):
        errors.append(f"{name} needs username and password_file together")
    if table.get("username") and table.get("token_file"):
        errors.append(f"{name} has both username and token_file; set one")
    for key in ("password_file", "token_file", "ca_file"):
        if path := table.get(key):
            try:
                Path(str(path)).expanduser().read_bytes()
            except OSError as error:
                errors.append(f"{name}.{key} = {str(path)!r}: can't be read: {error.strerror}")
    return errors
