"""`[influxdb]`: an InfluxDB, or a server that takes its writes, in place of a portal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from core.config import check_config

PREFIX = "influxdb."


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluxDBSettings:
    """Where samples go when there is no portal.

    Attributes:
        url: the server's address.
        bucket: where to write on InfluxDB 2 and 3, and on servers that take their API.
        org: the bucket's organisation.
        token: the API token; or in `token_file`, which is read at the start.
        database: where to write on InfluxDB 1.
        retention_policy: of the database; its default one when empty.
        username: who writes on InfluxDB 1, with `password` or `password_file`.
        tags: put on every sample, beside `appliance`.
    """

    url: str
    bucket: str = ""
    org: str = ""
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    database: str = ""
    retention_policy: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    password_file: Path | None = None
    tags: dict[str, str] = field(default_factory=dict)

    def read_token(self) -> str:
        """Return the token, from its file where there is one."""
        return self.token or _read_secret(self.token_file)

    def read_password(self) -> str:
        """Return the password, from its file where there is one."""
        return self.password or _read_secret(self.password_file)


def check_influxdb(table: object) -> tuple[InfluxDBSettings | None, list[str]]:
    """Return the settings of `[influxdb]`, or all that is wrong with them."""
    if not isinstance(table, Mapping):
        return None, [f"influxdb = {table!r}: expected a table [influxdb]"]
    settings, faults = check_config(InfluxDBSettings, table, prefix=PREFIX)
    return settings, [*faults, *_faults_of(table)]


def _faults_of(table: Mapping[str, Any]) -> list[str]:
    faults = []
    url = str(table.get("url", "http://given"))
    if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).netloc:
        faults.append(f"influxdb.url = {url!r}: an address starts with http:// or https://")
    if bool(table.get("bucket")) == bool(table.get("database")):
        faults.append("influxdb needs either bucket (version 2 and later) or database (version 1)")
    for secret in ("token", "password"):
        path = table.get(f"{secret}_file")
        if path is not None and table.get(secret):
            faults.append(f"influxdb has both {secret} and {secret}_file; keep one")
        elif path is not None:
            faults += _file_fault(f"{secret}_file", Path(str(path)).expanduser())
    return faults


def _file_fault(key: str, path: Path) -> list[str]:
    try:
        path.read_bytes()
    except OSError as error:
        return [f"influxdb.{key} = {str(path)!r}: can't be read: {error.strerror}"]
    return []


def _read_secret(path: Path | None) -> str:
    return path.read_text(encoding="utf-8").strip() if path is not None else ""
