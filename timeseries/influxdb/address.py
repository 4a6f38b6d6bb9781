"""The address and credentials of an InfluxDB, parsed from a URL.

    influxdb://[user:password@]host[:port]/database[?rp=...&version=...&databases=shared]
    influxdbs://host[:port]/?org=...&token=...&bucket=...

`influxdbs` is TLS. 1.x has databases and users; 2.x and 3.x have organizations, buckets and tokens,
and InfluxQL uses a bucket as a database. Each tenant has a database or bucket of its own beside the
named one, unless `databases=shared` (`databases.py`).
"""

import re
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, unquote, urlsplit

from core.errors import ConfigurationError
from timeseries.store_url import SOURCE, parse_store_url

DEFAULT_PORT = 8086

_SCHEMES = {"influxdb": "http", "influxdbs": "https"}
_PARAMETERS = ("rp", "version", "org", "token", "bucket", "databases")
_SHARED, _PER_TENANT = "shared", "tenant"
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluxDBAddress:
    """A server and the database on it.

    Attributes:
        scheme: `http` or `https`.
        database: the database; for 2.x and 3.x the bucket.
        retention_policy: empty for the default of the database.
        version: (major, minor) if set in the URL; None to ask the server.
        is_shared: whether all tenants share the database.
    """

    scheme: str
    host: str
    port: int
    database: str
    retention_policy: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    organization: str = ""
    token: str = field(default="", repr=False)
    version: tuple[int, int] | None = None
    is_shared: bool = False

    @property
    def base_url(self) -> str:
        """Scheme, host and port, without credentials."""
        return f"{self.scheme}://{self.host_port}"

    @property
    def host_port(self) -> str:
        """Host and port, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def bucket(self) -> str:
        """The bucket of the v2 APIs: the database with its retention policy."""
        if self.retention_policy:
            return f"{self.database}/{self.retention_policy}"
        return self.database

    def of(self, database: str) -> "InfluxDBAddress":
        """Return the address of another database of the server."""
        return replace(self, database=database)


def parse_address(url: str) -> InfluxDBAddress:
    """Parse a URL.

    Raises:
        ConfigurationError: it is invalid; the message has no secrets.
    """
    scheme = parse_store_url(url).scheme
    if scheme not in _SCHEMES:
        message = "the URL of an InfluxDB must start with influxdb:// or influxdbs://"
        raise ConfigurationError([message], source=SOURCE)
    parts = urlsplit(url)
    parameters = dict(parse_qsl(parts.query))
    database = unquote(parts.path.strip("/")) or parameters.get("bucket", "")
    errors = [
        f"{name}= is unknown; use {', '.join(_PARAMETERS)}"
        for name in parameters
        if name not in _PARAMETERS
    ]
    if not database:
        errors.append("the database is missing; write influxdb://host:8086/database")
    version = version_in(parameters.get("version", ""))
    if "version" in parameters and version is None:
        errors.append(f"version={parameters['version']} is not a version such as 1.8")
    databases = parameters.get("databases", _PER_TENANT)
    if databases not in (_SHARED, _PER_TENANT):
        errors.append(f"databases={databases} is unknown; use {_PER_TENANT} or {_SHARED}")
    if errors:
        raise ConfigurationError(errors, source=SOURCE)
    database, _, policy = database.partition("/")
    return InfluxDBAddress(
        scheme=_SCHEMES[scheme],
        host=parts.hostname or "",
        port=parts.port or DEFAULT_PORT,
        database=database,
        retention_policy=parameters.get("rp", policy),
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        organization=parameters.get("org", ""),
        token=parameters.get("token", ""),
        version=version,
        is_shared=databases == _SHARED,
    )


def version_in(text: str) -> tuple[int, int] | None:
    """Return major and minor of a version such as `1.6.7~rc0` or `v2.7.1`."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2])) if match else None
