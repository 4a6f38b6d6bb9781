"""The HTTP client of VictoriaMetrics, and the server flags that the store depends on.

In a cluster, writes go to vminsert and reads to vmselect, below the *account* of a tenant:
`/insert/<accountID>:<projectID>/`. Reads of several accounts go to `/select/multitenant/`.

A request that meets a closed connection is retried once; repeating a write is safe, because the
server stores one sample per series and millisecond.

The server drops samples older than its retention, or more than two days ahead, but still answers
204: the store therefore rejects them itself, by the server's `/flags`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import msgspec
import urllib3
from isal import isal_zlib
from urllib3.exceptions import ReadTimeoutError
from urllib3.util import Retry, Timeout, make_headers

from core.errors import OverloadedError
from timeseries.store import StoreUnavailableError

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
MAX_CONNECTIONS = 16
GZIP_FROM_BYTES = 1024
GZIP_LEVEL, GZIP = 1, 16 + isal_zlib.MAX_WBITS
# vmselect's path for reads of all accounts; since version 1.104.
EVERY_ACCOUNT = "multitenant"
FULL = frozenset({429, 503})
REASON_LENGTH = 500
Parameters = Iterable[tuple[str, str]]
DAY_MS = 86_400_000
MAX_AHEAD_MS = 2 * DAY_MS
# The server drops times before 1970; queries look back a few more days.
FIRST_MS = 4 * DAY_MS
_STARTED_AT = re.compile(r"^vm_app_start_timestamp (\S+)", re.MULTILINE)
_FLAG = re.compile(r'^-([A-Za-z.]+)="(.*)"$', re.MULTILINE)
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)([hdwy]?)$")
_UNIT_MS = {"h": 3_600_000, "d": DAY_MS, "w": 7 * DAY_MS, "y": 365 * DAY_MS, "": 31 * DAY_MS}
_DEFAULT_RETENTION = "1"
# With these flags the server changes the names of series.
_NAMING_FLAGS = ("influxSkipMeasurement", "influxSkipSingleField")
_DEDUPLICATION = (
    "start it with -dedup.minScrapeInterval=1ms: otherwise duplicate samples count twice, or all "
    "but one of an interval are dropped"
)
_SEPARATOR = "influxMeasurementFieldSeparator"


class QueryResult(msgspec.Struct):
    """One series of a result; `values` are pairs of seconds and a number as text."""

    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    value: tuple[float, str] | None = None


class ExportedSeries(msgspec.Struct):
    """One line of an export: a series with its samples, oldest first."""

    metric: dict[str, str]
    values: list[float | None]
    timestamps: list[int]


class _Data(msgspec.Struct):
    result: list[QueryResult]


class _Query(msgspec.Struct):
    data: _Data


class _Names(msgspec.Struct):
    data: list[str]


class _RetryUnlessTimeout(Retry):
    """Retries what a closed connection lost, but doesn't wait twice for a server that hangs."""

    def increment(self, *arguments: Any, **named: Any) -> Self:  # noqa: ANN401 - urllib3's
        error = named.get("error")
        if isinstance(error, ReadTimeoutError):
            raise error
        return super().increment(*arguments, **named)


class VictoriaMetricsClient:
    """A client of one VictoriaMetrics server or of a cluster, safe to share by threads.

    Args:
        url: `http://` or `https://` with host, port and an optional path; of a cluster, vminsert's.
        user: for basic authentication, such as vmauth; with `password`.
        select: the URL of a cluster's vmselect; empty for a single server.
        storages: the URLs of a cluster's vmstorages, for their flags and to flush them.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str = "",
        password: str = "",
        select: str = "",
        storages: Sequence[str] = (),
    ) -> None:
        self.url = url.rstrip("/")
        self._select = select.rstrip("/")
        self._storages = [storage.rstrip("/") for storage in storages]
        self._account = EVERY_ACCOUNT
        self._headers = make_headers(basic_auth=f"{user}:{password}") if user else {}
        self._pool = urllib3.PoolManager(
            maxsize=MAX_CONNECTIONS,
            timeout=Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
            retries=_RetryUnlessTimeout(
                total=1,
                connect=0,
                status=0,
                redirect=0,
                allowed_methods=None,
                respect_retry_after_header=False,
            ),
        )

    @classmethod
    def from_url(cls, url: str) -> "VictoriaMetricsClient":
        """Return a client for `victoriametrics://[user:password@]host[:port][/path]`.

        `?select=host:port` is a cluster's vmselect, `&storage=host:port,...` its vmstorages.
        """
        parts = urlsplit(url)
        scheme = "https" if parts.scheme == "victoriametricss" else "http"
        host = parts.netloc.rpartition("@")[2]
        parameters = dict(parse_qsl(parts.query))
        select = parameters.get("select", "")
        return cls(
            f"{scheme}://{host if parts.port else f'{host}:8428'}{parts.path}",
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            select=f"{scheme}://{select}" if select else "",
            storages=[
                f"{scheme}://{address}"
                for address in parameters.get("storage", "").split(",")
                if address
            ],
        )

    @property
    def is_cluster(self) -> bool:
        """True if tenants have accounts."""
        return bool(self._select)

    @property
    def account(self) -> str:
        """The account of a cluster's tenant; all of them unless it is a client of one."""
        return self._account

    def within(self, account: str) -> "VictoriaMetricsClient":
        """Return a client of one account of the cluster, with the same connections."""
        bound = copy(self)
        bound._account = account  # noqa: SLF001 - a copy of this object
        return bound

    def write(self, lines: bytes) -> None:
        """Send lines of line protocol with times in milliseconds.

        Raises:
            OverloadedError: the server is overloaded.
            StoreUnavailableError: it does not answer, or returns an error.
        """
        headers = {"Content-Type": "text/plain"}
        if len(lines) >= GZIP_FROM_BYTES:
            headers["Content-Encoding"] = "gzip"
            lines = isal_zlib.compress(lines, GZIP_LEVEL, GZIP)
        base = f"{self.url}/insert/{self._account}/influx" if self.is_cluster else self.url
        self._send("POST", f"{base}/write?precision=ms", body=lines, headers=headers)

    def query(self, path: str, parameters: Parameters) -> list[QueryResult]:
        """Return the result of `/api/v1/query` or `/api/v1/query_range`."""
        body = self._post(self._reading(path), [*parameters, ("nocache", "1")])
        return msgspec.json.decode(body, type=_Query).data.result

    def names(self, path: str, parameters: Parameters) -> list[str]:
        """Return the names from `/api/v1/labels` or a similar endpoint."""
        return msgspec.json.decode(self._post(self._reading(path), parameters), type=_Names).data

    def export(self, selector: str, *, start_ms: int, end_ms: int) -> list[bytes]:
        """Return the samples in `[start_ms, end_ms)`: one JSON object per series."""
        last_ms = end_ms - 1
        times = [
            (name, f"{at_ms // 1000}.{at_ms % 1000:03d}")
            for name, at_ms in (("start", start_ms), ("end", last_ms))
        ]
        url = self._reading("/api/v1/export")
        return self._post(url, [("match[]", selector), *times]).splitlines()

    def delete(self, selector: str) -> None:
        """Delete the series of a selector, including samples that are not searchable yet."""
        self.flush()
        base = f"{self._select}/delete/{self._account}/prometheus" if self.is_cluster else self.url
        self._post(f"{base}/api/v1/admin/tsdb/delete_series", [("match[]", selector)])

    def flush(self) -> None:
        """Make ingested samples searchable now instead of in a second."""
        for base in self._storages or [self._select or self.url]:
            self._send("GET", f"{base}/internal/force_flush")

    def started_at(self) -> tuple[str, ...] | None:
        """Return when each server with samples was started; None if one of them does not show it.

        Of a cluster whose vmstorages are not named, it is vminsert's.
        """
        starts = []
        for base in self._storages or [self.url]:
            text = self._text(f"{base}/metrics")
            match = _STARTED_AT.search(text or "")
            if match is None:
                return None
            starts.append(match[1])
        return tuple(starts)

    def flags(self) -> str | None:
        """Return the command-line flags of the server; None if it does not show them.

        Those of a cluster are vmstorage's, for the retention, with vminsert's.
        """
        if self.is_cluster and not self._storages:
            return None
        texts = [self._text(f"{base}/flags") for base in (*self._storages[:1], self.url)]
        return None if None in texts else "\n".join(filter(None, texts))

    def _text(self, url: str) -> str | None:
        """Return what a server answers; None if it answers with an error."""
        with self._translate_errors():
            response = self._pool.request("GET", url, headers=self._headers)
        return response.data.decode() if response.status == HTTPStatus.OK else None

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def _reading(self, path: str) -> str:
        if self.is_cluster:
            return f"{self._select}/select/{self._account}/prometheus{path}"
        return self.url + path

    def _post(self, url: str, parameters: Parameters) -> bytes:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._send("POST", url, body=urlencode(list(parameters)).encode(), headers=form)

    def _send(
        self, method: str, url: str, *, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> bytes:
        with self._translate_errors():
            response = self._pool.request(
                method, url, body=body, headers={**self._headers, **(headers or {})}
            )
        if response.status in FULL:
            raise OverloadedError(
                f"VictoriaMetrics at {self.url} is overloaded (status {response.status}). "
                "Send the same points again later.",
                retry_after_seconds=_retry_after(response.headers.get("Retry-After")),
            )
        if response.status >= 400:  # noqa: PLR2004 - HTTP: an error
            reason = response.data[:REASON_LENGTH].decode(errors="replace").strip()
            raise StoreUnavailableError(
                f"VictoriaMetrics at {self.url} rejected {urlsplit(url).path} "
                f"with status {response.status}: {reason or response.reason}"
            )
        return response.data

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except urllib3.exceptions.HTTPError as error:
            cause = getattr(error, "reason", None) or error
            raise StoreUnavailableError(
                f"VictoriaMetrics at {self.url} does not answer ({type(cause).__name__}). "
                "Check that it is running and that TIMESERIES_URL is right."
            ) from error


def _retry_after(header: str | None) -> int:
    return int(header) if header and header.isdecimal() else 5


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """The flags of one server.

    Attributes:
        retention_ms: how long samples are stored; None if unknown.
        errors: flags that make the server unusable for a store.
        warnings: flags that change results.
    """

    retention_ms: int | None = None
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def accepted_ms(self, now_ms: int) -> tuple[int, int]:
        """Return the first and the last time that the server stores."""
        oldest = FIRST_MS if self.retention_ms is None else now_ms - self.retention_ms
        return max(FIRST_MS, oldest), now_ms + MAX_AHEAD_MS


def parse_flags(text: str | None) -> ServerFlags:
    """Parse the response of `/flags`; None if the server does not show them."""
    if text is None:
        return ServerFlags(
            warnings=(
                "it does not show its flags; samples older than its retention are dropped silently",
            )
        )
    flags = dict(_FLAG.findall(text))
    match = _DURATION.match(flags.get("retentionPeriod", _DEFAULT_RETENTION))
    has_deduplication = flags.get("dedup.minScrapeInterval") == "1ms"
    return ServerFlags(
        retention_ms=int(float(match[1]) * _UNIT_MS[match[2]]) if match else None,
        errors=tuple(_errors(flags)),
        warnings=() if has_deduplication else (_DEDUPLICATION,),
    )


def _errors(flags: dict[str, str]) -> list[str]:
    named = [f"-{name}" for name in _NAMING_FLAGS if flags.get(name, "false") != "false"]
    if flags.get(_SEPARATOR, "_") != "_":
        named.append(f"-{_SEPARATOR}={flags[_SEPARATOR]}")
    return [f"start it without {name}: with it, fields are not distinct" for name in named]
