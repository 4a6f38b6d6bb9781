"""Requests to an InfluxDB: kept-alive connections, InfluxQL in and decoded answers out.

Answers are asked for in chunks, since a server may cut off the rows of a whole one; so a *series*
can come in several parts.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from urllib.parse import urlencode

import msgspec
import urllib3
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool, Timeout
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.util import make_headers

from timeseries.influxdb.address import InfluxDBAddress, version_in
from timeseries.influxdb.errors import answer_error, no_answer, query_error
from timeseries.store import StoreUnavailableError

Value = float | int | bool | str | None

CONNECT_SECONDS = 3.0
WRITE_SECONDS = 20.0
QUERY_SECONDS = 60.0
ROWS_PER_CHUNK = 10_000

_CONNECTIONS = 8
_READ_BYTES = 256 * 1024
_USES_BUCKETS = (2, 0)


class ResultSeries(msgspec.Struct):
    """Rows of one series, or a part of them: values in the order of the columns."""

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
    """A server, asked by any number of threads.

    Args:
        address: where it is; nothing is sent before the first call.
        query_seconds: how long an answer to a query may let one wait.
    """

    def __init__(self, address: InfluxDBAddress, *, query_seconds: float = QUERY_SECONDS) -> None:
        self.address = address
        self._query_seconds = query_seconds
        self._pool = _pool(address)
        self._version = address.version
        self._is_closed = threading.Event()

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor of the server's version."""
        if self._version is None:
            answer = self.request("GET", "/ping", seconds=CONNECT_SECONDS)
            found = version_in(answer.headers.get("X-Influxdb-Version", ""))
            if found is None:
                raise StoreUnavailableError(
                    f"What answers at {self.address.place} does not say that it is InfluxDB "
                    "(no X-Influxdb-Version); add version=1.8, or what it is like, to the URL."
                )
            self._version = found
        return self._version

    def query(self, statements: Sequence[str]) -> Iterator[tuple[int, ResultSeries]]:
        """Run InfluxQL statements in one request; yield the number of each and a series.

        Raises:
            StoreUnavailableError: the server does not answer, or refuses.
        """
        if not statements:
            return
        answer = self.request(
            "POST", "/query", fields=self._form("; ".join(statements)), seconds=self._query_seconds
        )
        if answer.status != HTTPStatus.OK:
            raise self._error(answer)
        for line in answer.data.splitlines():
            yield from self._decoded(line)

    def stream(self, statement: str) -> Iterator[ResultSeries]:
        """Run one statement and yield its rows as they arrive."""
        answer = self.request(
            "POST",
            "/query",
            fields=self._form(statement),
            seconds=self._query_seconds,
            is_streamed=True,
        )
        try:
            if answer.status != HTTPStatus.OK:
                raise self._error(answer)
            for line in _lines(answer):
                for _, series in self._decoded(line):
                    yield series
        except (HTTPError, OSError) as error:
            raise no_answer(self.address, error) from error
        finally:
            # What was not read can't be followed by another answer on this connection.
            answer.close()

    def post(
        self, path: str, body: bytes, *, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> BaseHTTPResponse:
        """Send a body; the answer is the caller's to judge."""
        url = f"{path}?{urlencode(query)}"
        return self.request("POST", url, body=body, headers=headers, seconds=WRITE_SECONDS)

    @property
    def has_buckets(self) -> bool:
        """Whether the server is a 2.x or later: deletion and writes take other calls then."""
        return self.version >= _USES_BUCKETS

    def close(self) -> None:
        """Refuse what comes from now on and close the connections."""
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
        """Send one request; once more where a kept connection turned out to be closed.

        All that is sent may safely be sent twice.
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
                    raise no_answer(self.address, error) from error
            except (HTTPError, OSError) as error:
                raise no_answer(self.address, error) from error
        raise AssertionError  # the second turn returns or raises

    def _form(self, text: str) -> dict[str, str]:
        form = {
            "db": self.address.database,
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
            answer = _DECODER.decode(line)
        except msgspec.DecodeError as error:
            raise StoreUnavailableError(
                f"InfluxDB at {self.address.place} gave an answer that can't be read: {error}"
            ) from error
        faults = [answer.error, *(result.error for result in answer.results)]
        if message := next(filter(None, faults), ""):
            raise answer_error(self.address, status=HTTPStatus.OK, headers={}, message=message)
        for result in answer.results:
            for series in result.series:
                yield result.statement_id, series

    def _error(self, answer: BaseHTTPResponse) -> Exception:
        return query_error(
            self.address, status=answer.status, headers=answer.headers, body=answer.data
        )


def _pool(address: InfluxDBAddress) -> HTTPConnectionPool:
    kind = HTTPSConnectionPool if address.scheme == "https" else HTTPConnectionPool
    headers = {"Accept": "application/json", "Accept-Encoding": "gzip"}
    if address.token:
        headers["Authorization"] = f"Token {address.token}"
    elif address.user:
        headers |= make_headers(basic_auth=f"{address.user}:{address.password}")
    return kind(address.host, address.port, maxsize=_CONNECTIONS, headers=headers)


def _lines(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for piece in answer.stream(_READ_BYTES, decode_content=True):
        *lines, rest = (rest + piece).split(b"\n")
        yield from filter(None, lines)
    if rest:
        yield rest
