"""URLs of stores: which backend, where it is, and how they are shown without their secrets."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from core.errors import ConfigurationError

FORMS = {
    "duckdb": "duckdb:///relative/path, duckdb:////absolute/path, duckdb:// (in memory), "
    "duckdb:///path?files=s3://bucket/prefix, duckdb:///path?layout=open",
    "influxdb": "influxdb://user:password@host:8086/database, "
    "influxdb://host:8086/?org=ORG&bucket=BUCKET&token=TOKEN",
    "influxdbs": "influxdbs://... (TLS)",
    "victoriametrics": "victoriametrics://host:8428, "
    "victoriametrics://vminsert:8480?select=vmselect:8481&storage=vmstorage:8482",
    "victoriametricss": "victoriametricss://... (TLS)",
}
EMBEDDED_SCHEME = "duckdb"
MEMORY_PATH = ":memory:"
SOURCE = "TIMESERIES_URL"
_DEFAULT_PORTS = {"influxdb": 8086, "victoriametrics": 8428}  # and with TLS
_SECRET_PARAMETERS = frozenset({"token", "password", "p"})
_HIDDEN = "***"
_COMPACT, _OPEN = "compact", "open"


@dataclass(frozen=True, slots=True)
class StoreURL:
    """A valid URL of a store.

    Attributes:
        text: the original URL with its secrets; never log it.
        scheme: the backend, and whether it uses TLS.
        file: the file of the embedded store; None for a server or a store in memory.
        files: the folder or s3:// address of its Parquet files; "" for the folder beside it.
        is_open: whether its Parquet files are in the layout for other programs.
    """

    text: str
    scheme: str
    file: Path | None
    files: str = ""
    is_open: bool = False

    @property
    def is_in_memory(self) -> bool:
        """True if the store is only in memory."""
        return self.scheme == EMBEDDED_SCHEME and self.file is None

    @property
    def size_bytes(self) -> int | None:
        """The disk space of the embedded store; None for any other, or with files elsewhere."""
        if self.file is None or self.files:
            return None
        files = [self.file, self.file.with_name(f"{self.file.name}.wal")]
        files += files_folder(self.file).rglob("*.parquet")
        return sum(file.stat().st_size for file in files if file.exists())

    @property
    def redacted(self) -> str:
        """The URL for messages and logs, without password and token."""
        if self.scheme == EMBEDDED_SCHEME:
            return self.text
        parts = urlsplit(self.text)
        user = f"{unquote(parts.username)}@" if parts.username else ""
        if parts.password:
            user = f"{parts.username}:{_HIDDEN}@"
        pairs = [
            (name, _HIDDEN if name in _SECRET_PARAMETERS else value)
            for name, value in parse_qsl(parts.query)
        ]
        query = f"?{urlencode(pairs, safe='*/')}" if pairs else ""
        return f"{self.scheme}://{user}{_host(parts)}{parts.path}{query}"

    @property
    def canonical(self) -> str:
        """The URL in one spelling without credentials: equal for two URLs of the same store."""
        if self.scheme == EMBEDDED_SCHEME:
            return f"{self.scheme}://{self.file.resolve() if self.file else ''}"
        parts = urlsplit(self.text)
        pairs = sorted(pair for pair in parse_qsl(parts.query) if pair[0] not in _SECRET_PARAMETERS)
        query = f"?{urlencode(pairs)}" if pairs else ""
        port = parts.port or _DEFAULT_PORTS[self.scheme.removesuffix("s")]
        host = (parts.hostname or "").lower()
        return f"{self.scheme}://{host}:{port}{parts.path.rstrip('/')}{query}"


def files_folder(file: Path) -> Path:
    """Return the folder of an embedded store's Parquet files: `samples` beside `samples.duckdb`."""
    return file.with_suffix("") if file.suffix else file.with_name(f"{file.name}.files")


def parse_store_url(text: str, *, source: str = SOURCE) -> StoreURL:
    """Parse the URL of a store.

    Args:
        text: the URL.
        source: the setting or option that has the URL, for error messages.

    Raises:
        ConfigurationError: the backend is unknown, or the host is missing; the message has no
            secrets.
    """
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in FORMS:
        # Only the scheme is shown: the rest may have a password.
        problem = f"starts with {scheme}://" if separator else "has no scheme"
        forms = ", ".join(FORMS.values())
        raise ConfigurationError(
            [f"the time series URL {problem}; use one of {forms}"], source=source
        )
    if scheme == EMBEDDED_SCHEME:
        path, _, query = rest.partition("?")
        file, (files, is_open) = _file(path, source), _files_address(query, source)
        if query and file is None:
            raise ConfigurationError(
                ["a store in memory has no files; write duckdb:///path?files=..."], source=source
            )
        return StoreURL(text, scheme, file, files, is_open)
    _check_server(text, scheme, source)
    return StoreURL(text, scheme, None)


def _file(rest: str, source: str) -> Path | None:
    host, _, path = rest.partition("/")
    if host:
        raise ConfigurationError(
            [f"duckdb://{rest} has a host; write duckdb:///{rest} for a file"], source=source
        )
    return None if path in {"", MEMORY_PATH} else Path(path)


def _files_address(query: str, source: str) -> tuple[str, bool]:
    """Return where the Parquet files are, and whether they are in the open layout."""
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    address, layout = parameters.pop("files", ""), parameters.pop("layout", _COMPACT)
    if parameters:
        raise ConfigurationError(
            [f"a duckdb:// URL has no {next(iter(parameters))!r}, only files= and layout="],
            source=source,
        )
    if layout not in {_COMPACT, _OPEN}:
        raise ConfigurationError(
            [f"layout={layout} is unknown; write layout={_OPEN} or layout={_COMPACT}"],
            source=source,
        )
    scheme, separator, rest = address.partition("://")
    if separator and (scheme != "s3" or not rest.partition("/")[0]):
        raise ConfigurationError(
            [f"files={address} is not supported; write files=s3://bucket/prefix or a folder"],
            source=source,
        )
    return address, layout == _OPEN


def _check_server(text: str, scheme: str, source: str) -> None:
    example = FORMS[scheme].replace("...", "host")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        error = (
            f"the {scheme}:// URL is invalid: its port must be a number from 1 to 65535, "
            f"and a password with / ? # @ or : must be percent-encoded; write {example}"
        )
        raise ConfigurationError([error], source=source) from None
    if not parts.hostname or port == 0:
        raise ConfigurationError(
            [f"the {scheme}:// URL has no host; write {example}"], source=source
        )


def _host(parts: SplitResult) -> str:
    name = (parts.hostname or "").lower()
    shown = f"[{name}]" if ":" in name else name
    return f"{shown}:{parts.port}" if parts.port else shown
