"""The HTTP client of InfluxDB: a connection pool, InfluxQL queries and decoded results.

Results are requested in chunks, because a server may truncate a complete one; so a *series* can
arrive in several parts. Error responses become the errors of the store interface.
"""

import gzip
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from urllib.parse import urlencode

import msgspec
import urllib3
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool, Timeout
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.util import make_headers

from core.errors import OverloadedError, VedetteError
from timeseries.influxdb.address import InfluxDBAddress, version_in
from timeseries.store import StoreUnavailableError
from timeseries.store_url import SOURCE

Value = float | int | bool | str | None
CONNECT_SECONDS = 3.0
WRITE_SECONDS = 20.0
QUERY_SECONDS = 60.0
ROWS_PER_CHUNK = 10_000
_CONNECTIONS = 16
_READ_BYTES = 256 * 1024
_HAS_V2_WRITE = (1, 8)
_USES_BUCKETS = (2, 0)
_GZIP_LEVEL = 1
RETRY_AFTER_SECONDS = 5
_DROPPED = re.compile(r"\bdropped=(\d+)")
_MISSING_DATABASE = re.compile(r"database not found|bucket .*not found|not find bucket")
_NOT_ALLOWED = re.compile(r"not authorized|authorization failed")
_FULL = re.compile(r"cache-max-memory-size|cache maximum memory size")
_MAX_MESSAGE_CHARACTERS = 300


class ResultSeries(msgspec.Struct):
    """Rows of one series, or a part of them; values are in the order of the columns."""

    columns: list[str]
    name: str = ""
    tags: dict[str, str] = {}
    values: list[list[Value]] = []


class _Result(msgspec.Struct):
    statement_id: int = 0
    series: list[ResultSeries] = []
    error: str = ""


class _Answer(msgspec.Struct):
    results: list[_Result] = []
    error: str = ""


_DECODER = msgspec.json.Decoder(_Answer)


class InfluxDBConnection:
    """A connection pool to a server, safe to share by threads.

    Args:
        address: the server; the first call connects.
        query_seconds: the timeout of a query.
    """

    def __init__(self, address: InfluxDBAddress, *, query_seconds: float = QUERY_SECONDS) -> None:
        self.address = address
        self._query_seconds = query_seconds
        self._pool = _pool(address)
        self._version = address.version
        self._is_closed = threading.Event()

    @property
    def version(self) -> tuple[int, int]:
        """The server's version, (major, minor)."""
        if self._version is None:
            response = self.request("GET", "/ping", seconds=CONNECT_SECONDS)
            version = version_in(response.headers.get("X-Influxdb-Version", ""))
            if version is None:
                raise StoreUnavailableError(
                    f"The server at {self.address.host_port} does not identify as InfluxDB (no "
                    "X-Influxdb-Version header). Add its version to the URL, such as version=1.8."
                )
            self._version = version
        return self._version

    def query(
        self, statements: Sequence[str], *, database: str = ""
    ) -> Iterator[tuple[int, ResultSeries]]:
        """Run InfluxQL statements in one request; yield series with the index of their statement.

        Args:
            statements: the statements.
            database: that of statements that don't name one; by default the address's.

        Raises:
            StoreUnavailableError: the server does not answer, or returns an error.
        """
        if not statements:
            return
        response = self.request(
            "POST",
            "/query",
            fields=self._form("; ".join(statements), database),
            seconds=self._query_seconds,
        )
        if response.status != HTTPStatus.OK:
            raise self.error_of(response)
        for line in response.data.splitlines():
            yield from self._decoded(line)

    def stream(self, statement: str) -> Iterator[ResultSeries]:
        """Run one statement and yield its rows as they arrive."""
        response = self.request(
            "POST",
            "/query",
            fields=self._form(statement, ""),
            seconds=self._query_seconds,
            is_streamed=True,
        )
        try:
            if response.status != HTTPStatus.OK:
                raise self.error_of(response)
            for line in _lines(response):
                for _, series in self._decoded(line):
                    yield series
        except (HTTPError, OSError) as error:
            raise unreachable_error(self.address, error) from error
        finally:
            # With an unread rest, this connection can't be reused.
            response.close()

    def post(
        self, path: str, body: bytes, *, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> BaseHTTPResponse:
        """Send a body; the caller checks the status of the response."""
        url = f"{path}?{urlencode(query)}"
        return self.request("POST", url, body=body, headers=headers, seconds=WRITE_SECONDS)

    def write(self, lines: bytes, *, database: str = "") -> None:
        """Write lines with times in nanoseconds to a database; they are durable on return.

        Raises:
            DatabaseMissingError: it does not exist.
            LinesRejectedError: the server rejected some or all lines.
            RequestTooLargeError: the request must be smaller.
            StoreUnavailableError: the server does not answer, or denies access.
            OverloadedError: the server is overloaded.
        """
        address = self.address.of(database or self.address.database)
        path, query = "/write", {"db": address.database, "rp": address.retention_policy}
        has_v2_write = self.has_buckets or (address.token and self.version >= _HAS_V2_WRITE)
        if has_v2_write and not (address.user and not address.token):
            path = "/api/v2/write"
            query = {"org": address.organization or "-", "bucket": address.bucket}
        response = self.post(
            path,
            gzip.compress(lines, _GZIP_LEVEL),
            query={name: value for name, value in {**query, "precision": "ns"}.items() if value},
            headers={"Content-Encoding": "gzip", "Content-Type": "text/plain; charset=utf-8"},
        )
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise write_error(
                address, status=response.status, headers=response.headers, body=response.data
            )

    @property
    def has_buckets(self) -> bool:
        """True if the server is 2.x or later, which has other APIs for writes and deletion."""
        return self.version >= _USES_BUCKETS

    def close(self) -> None:
        """Close the connections; later requests fail."""
        self._is_closed.set()
        self._pool.close()

    def request(
        self,
        method: str,
        url: str,
        *,
        seconds: float,
        body: bytes | None = None,
        fields: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        is_streamed: bool = False,
    ) -> BaseHTTPResponse:
        """Send one request, and retry once if a pooled connection was closed.

        Every request is safe to send twice.
        """
        if self._is_closed.is_set():
            raise StoreUnavailableError("The time series store is closed.")
        if fields is not None:
            body = urlencode(fields).encode()
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
        for is_last in (False, True):
            try:
                return self._pool.request(
                    method,
                    url,
                    body=body,
                    headers={**self._pool.headers, **(headers or {})},
                    timeout=Timeout(connect=min(CONNECT_SECONDS, seconds), read=seconds),
                    retries=False,
                    preload_content=not is_streamed,
                )
            except ProtocolError as error:
                if is_last:
                    raise unreachable_error(self.address, error) from error
            except (HTTPError, OSError) as error:
                raise unreachable_error(self.address, error) from error
        raise AssertionError  # the second attempt returns or raises

    def _form(self, text: str, database: str) -> dict[str, str]:
        form = {
            "db": database or self.address.database,
            "q": text,
            "epoch": "ns",
            "chunked": "true",
            "chunk_size": str(ROWS_PER_CHUNK),
        }
        if self.address.retention_policy:
            form["rp"] = self.address.retention_policy
        return form

    def _decoded(self, line: bytes) -> Iterator[tuple[int, ResultSeries]]:
        try:
            response = _DECODER.decode(line)
        except msgspec.DecodeError as error:
            raise StoreUnavailableError(
                f"InfluxDB at {self.address.host_port} sent an invalid response: {error}"
            ) from error
        errors = [response.error, *(result.error for result in response.results)]
        if message := next(filter(None, errors), ""):
            raise response_error(self.address, status=HTTPStatus.OK, headers={}, message=message)
        for result in response.results:
            for series in result.series:
                yield result.statement_id, series

    def error_of(self, response: BaseHTTPResponse) -> VedetteError:
        """Return the error for an unsuccessful response, other than to a write."""
        return response_error(
            self.address,
            status=response.status,
            headers=response.headers,
            message=_message(response.data),
        )


def _pool(address: InfluxDBAddress) -> HTTPConnectionPool:
    kind = HTTPSConnectionPool if address.scheme == "https" else HTTPConnectionPool
    headers = {"Accept": "application/json", "Accept-Encoding": "gzip"}
    if address.token:
        headers["Authorization"] = f"Token {address.token}"
    elif address.user:
        headers |= make_headers(basic_auth=f"{address.user}:{address.password}")
    return kind(address.host, address.port, maxsize=_CONNECTIONS, headers=headers)


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for piece in response.stream(_READ_BYTES, decode_content=True):
        *lines, rest = (rest + piece).split(b"\n")
        yield from filter(None, lines)
    if rest:
        yield rest


class LinesRejectedError(Exception):
    """The server rejected some or all lines of a request.

    Attributes:
        dropped: how many lines the server reports as dropped, or None.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        match = _DROPPED.search(message)
        self.dropped = int(match[1]) if match else None


class DatabaseMissingError(StoreUnavailableError):
    """The server has no such database or bucket."""


class AccessDeniedError(StoreUnavailableError):
    """The user or token may not do this."""


class RequestTooLargeError(Exception):
    """The request exceeds the size limit of the server."""


def write_error(
    address: InfluxDBAddress, *, status: int, headers: Mapping[str, str], body: bytes
) -> Exception:
    """Return the error for a failed write."""
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
        return LinesRejectedError(_message(body))
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return RequestTooLargeError(_message(body))
    return response_error(address, status=status, headers=headers, message=_message(body))


def response_error(
    address: InfluxDBAddress, *, status: int, headers: Mapping[str, str], message: str
) -> VedetteError:
    """Return the error for an unsuccessful response."""
    server = f"InfluxDB at {address.host_port}"
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) or _NOT_ALLOWED.search(message):
        who = f"user {address.user!r}" if address.user and not address.token else "the token"
        if not address.user and not address.token:
            who = "a request without user or token"
        return AccessDeniedError(
            f"{server} denied {who} access to database {address.database!r}: {message}. "
            f"Check the user and password, or the token, in {SOURCE}."
        )
    if _MISSING_DATABASE.search(message):
        return DatabaseMissingError(
            f"{server} has no database {address.database!r}. Create it "
            f"(1.x: CREATE DATABASE, 2.x and later: a bucket), or set another in {SOURCE}."
        )
    if status == HTTPStatus.TOO_MANY_REQUESTS or _FULL.search(message):
        return OverloadedError(
            f"{server} is overloaded: {message}. Send the same points again later.",
            retry_after_seconds=_retry_after(headers),
        )
    action = f"returned status {status}" if status != HTTPStatus.OK else "refused"
    return StoreUnavailableError(f"{server} {action}: {message}")


def unreachable_error(address: InfluxDBAddress, cause: Exception) -> StoreUnavailableError:
    """Return the error for a server that is unreachable or drops the connection."""
    return StoreUnavailableError(
        f"InfluxDB at {address.host_port} does not answer ({type(cause).__name__}). "
        f"Check that it is running and that {SOURCE} is right."
    )


def _retry_after(headers: Mapping[str, str]) -> int:
    text = headers.get("Retry-After", "")
    return max(1, int(text)) if text.isascii() and text.isdecimal() else RETRY_AFTER_SECONDS


def _message(body: bytes) -> str:
    text = body.decode(errors="replace").strip()
    try:
        response = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError:
        return text[:_MAX_MESSAGE_CHARACTERS] or "no reason given"
    reason = response.get("message") or response.get("error") or text
    return str(reason)[:_MAX_MESSAGE_CHARACTERS]
