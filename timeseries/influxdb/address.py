"""Where an InfluxDB stands and how to prove who asks, read from a URL.

    influxdb://[user:password@]host[:port]/database[?rp=...&version=...]
    influxdbs://host[:port]/?org=...&token=...&bucket=...

`influxdbs` is TLS. 1.x knows databases and users, 2.x and 3.x organisations, buckets and tokens; to
InfluxQL a bucket is a database.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from core.errors import ConfigurationError
from timeseries.store_url import SOURCE

DEFAULT_PORT = 8086

_SCHEMES = {"influxdb": "http", "influxdbs": "https"}
_PARAMETERS = ("rp", "version", "org", "token", "bucket")
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluxDBAddress:
    """A server and the database on it.

    Attributes:
        scheme: `http` or `https`.
        database: the database; for 2.x and 3.x the bucket.
        retention_policy: the one to write to and read from; empty for the database's default.
        version: (major, minor) where the URL names it; None to ask the server.
    """

    scheme: str
    host: str
    port: int
    database: str
    retention_policy: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    organisation: str = ""
    token: str = field(default="", repr=False)
    version: tuple[int, int] | None = None

    @property
    def base_url(self) -> str:
        """Scheme, host and port, without credentials."""
        return f"{self.scheme}://{self.place}"

    @property
    def place(self) -> str:
        """Host and port, as messages name the server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def bucket(self) -> str:
        """What the v2 write call names the database and its retention policy."""
        if self.retention_policy:
            return f"{self.database}/{self.retention_policy}"
        return self.database


def parse_address(url: str) -> InfluxDBAddress:
    """Return what a URL says.

    Raises:
        ConfigurationError: all that is wrong with it; secrets are not repeated.
    """
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    database = unquote(parts.path.strip("/")) or given.get("bucket", "")
    faults = [
        f"{name}= is not known; known are {', '.join(_PARAMETERS)}"
        for name in given
        if name not in _PARAMETERS
    ]
    if parts.scheme not in _SCHEMES:
        faults.append("the URL of an InfluxDB begins with influxdb:// or influxdbs://")
    if not parts.hostname:
        faults.append("the host is missing; write influxdb://host:8086/database")
    if not database:
        faults.append("the database is missing; write influxdb://host:8086/database")
    port, version = DEFAULT_PORT, None
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError:
        faults.append("the port is no number from 1 to 65535")
    if "version" in given and (version := version_in(given["version"])) is None:
        faults.append(f"version={given['version']} is no version such as 1.8")
    if faults:
        raise ConfigurationError(faults, source=SOURCE)
    database, _, policy = database.partition("/")
    return InfluxDBAddress(
        scheme=_SCHEMES[parts.scheme],
        host=parts.hostname or "",
        port=port,
        database=database,
        retention_policy=given.get("rp", policy),
        version=version,
        **_credentials(given, user=parts.username, password=parts.password),
    )


def version_in(text: str) -> tuple[int, int] | None:
    """Return major and minor of a version such as `1.6.7~rc0` or `v2.7.1`."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2])) if match else None


def _credentials(
    given: Mapping[str, str], *, user: str | None, password: str | None
) -> dict[str, str]:
    return {
        "user": unquote(user or ""),
        "password": unquote(password or ""),
        "organisation": given.get("org", ""),
        "token": given.get("token", ""),
    }
