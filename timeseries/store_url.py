"""Store URLs: taken apart with faults that say what to write, and shown without their secrets.

A *place* is what a URL names, spelt one way and without credentials: two URLs with one place mean
the same store.
"""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from core.errors import ConfigurationError

FORMS = {
    "duckdb": "duckdb:///relative/path, duckdb:////absolute/path, duckdb:// (in memory)",
    "influxdb": "influxdb://user:password@host:8086/database, "
    "influxdb://host:8086/?org=ORG&bucket=BUCKET&token=TOKEN",
    "influxdbs": "influxdbs://... (TLS)",
    "victoriametrics": "victoriametrics://host:8428",
    "victoriametricss": "victoriametricss://... (TLS)",
}
EMBEDDED_SCHEME = "duckdb"
MEMORY_PATH = ":memory:"
SOURCE = "TIMESERIES_URL"

_DEFAULT_PORTS = {
    "influxdb": 8086,
    "influxdbs": 8086,
    "victoriametrics": 8428,
    "victoriametricss": 8428,
}
_SECRET_PARAMETERS = frozenset({"token", "password", "p"})
_HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class StoreURL:
    """A store's URL that is sound as far as every backend demands.

    Attributes:
        text: the URL as it was given, secrets included: never for messages.
        scheme: which backend, and whether by TLS.
        file: the embedded store's file; None for a server, and for a store in memory.
    """

    text: str
    scheme: str
    file: Path | None

    @property
    def is_in_memory(self) -> bool:
        """Whether the store goes with its process."""
        return self.scheme == EMBEDDED_SCHEME and self.file is None

    @property
    def redacted(self) -> str:
        """The URL for messages and logs, its password and token left out."""
        if self.scheme == EMBEDDED_SCHEME:
            return self.text
        parts = urlsplit(self.text)
        user = f"{parts.username}:{_HIDDEN}@" if parts.password else _before_at(parts)
        pairs = [
            (name, _HIDDEN if name in _SECRET_PARAMETERS else value)
            for name, value in parse_qsl(parts.query)
        ]
        query = f"?{urlencode(pairs, safe='*/')}" if pairs else ""
        return f"{self.scheme}://{user}{_host(parts)}{parts.path}{query}"

    @property
    def place(self) -> str:
        """What the URL names: the file's real path, or host, port, path and open parameters."""
        if self.scheme == EMBEDDED_SCHEME:
            return f"{self.scheme}://{self.file.resolve() if self.file else ''}"
        parts = urlsplit(self.text)
        pairs = sorted(pair for pair in parse_qsl(parts.query) if pair[0] not in _SECRET_PARAMETERS)
        query = f"?{urlencode(pairs)}" if pairs else ""
        port = parts.port or _DEFAULT_PORTS[self.scheme]
        host = (parts.hostname or "").lower()
        return f"{self.scheme}://{host}:{port}{parts.path.rstrip('/')}{query}"


def parse_store_url(text: str, *, source: str = SOURCE) -> StoreURL:
    """Take a store's URL apart.

    Args:
        text: the URL.
        source: the setting or option that it comes from, for the message of a fault.

    Raises:
        ConfigurationError: it names no backend that is known, or no host; the message holds no
            secret of it.
    """
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in FORMS:
        # The rest is left out of the message: it may hold a password.
        given = f"starts with {scheme}://" if separator else "has no scheme"
        known = ", ".join(FORMS.values())
        raise ConfigurationError([f"the time series URL {given}; known are {known}"], source=source)
    if scheme == EMBEDDED_SCHEME:
        return StoreURL(text, scheme, _file(rest, source))
    _check_server(text, scheme, source)
    return StoreURL(text, scheme, None)


def _file(rest: str, source: str) -> Path | None:
    host, _, path = rest.partition("/")
    if host:
        raise ConfigurationError(
            [f"duckdb://{rest} names a host; write duckdb:///{rest} for a file"], source=source
        )
    return None if path in {"", MEMORY_PATH} else Path(path)


def _check_server(text: str, scheme: str, source: str) -> None:
    example = FORMS[scheme].replace("...", "host")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        fault = (
            f"the {scheme}:// URL can't be read: its port must be a number from 1 to 65535, "
            f"and a password with / ? # @ or : must be percent-encoded; write {example}"
        )
        raise ConfigurationError([fault], source=source) from None
    if not parts.hostname or port == 0:
        raise ConfigurationError(
            [f"the {scheme}:// URL names no host; write {example}"], source=source
        )


def _host(parts: SplitResult) -> str:
    name = (parts.hostname or "").lower()
    shown = f"[{name}]" if ":" in name else name
    return f"{shown}:{parts.port}" if parts.port else shown


def _before_at(parts: SplitResult) -> str:
    return f"{unquote(parts.username)}@" if parts.username else ""
