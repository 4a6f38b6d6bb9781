"""HTTP to VictoriaMetrics: connections that are kept, and errors that say what to do.

A request that meets a connection which the server closed is sent once more by itself; writing is
safe to repeat, as the server keeps one sample per series and millisecond.
"""

import gzip
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlencode, urlsplit

import msgspec
import urllib3
from urllib3.util import Retry, Timeout, make_headers

from core.errors import OverloadedError
from timeseries.store import StoreUnavailableError

CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
MAX_CONNECTIONS = 16
GZIP_FROM_BYTES = 1024
GZIP_LEVEL = 1
FULL = frozenset({429, 503})
REASON_LENGTH = 500

Parameters = Iterable[tuple[str, str]]


class Answer(msgspec.Struct):
    """One series of a query's answer; `values` are pairs of seconds and a number as text."""

    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    value: tuple[float, str] | None = None


class _Data(msgspec.Struct):
    result: list[Answer]


class _Query(msgspec.Struct):
    data: _Data


class _Names(msgspec.Struct):
    data: list[str]


class VictoriaMetricsClient:
    """The requests that a store makes of one VictoriaMetrics, safe to share by threads.

    Args:
        url: `http://` or `https://` with host and port, and a path where the server has one.
        user: for basic authentication, as by vmauth; with `password`.
    """

    def __init__(self, url: str, *, user: str = "", password: str = "") -> None:
        self.url = url.rstrip("/")
        self._headers = make_headers(basic_auth=f"{user}:{password}") if user else {}
        self._pool = urllib3.PoolManager(
            maxsize=MAX_CONNECTIONS,
            timeout=Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
            retries=Retry(
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
        """Return a client for `victoriametrics://[user:password@]host[:port][/path]`."""
        parts = urlsplit(url)
        scheme = "https" if parts.scheme == "victoriametricss" else "http"
        host = parts.netloc.rpartition("@")[2]
        return cls(
            f"{scheme}://{host if parts.port else f'{host}:8428'}{parts.path}",
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
        )

    def write(self, lines: bytes) -> None:
        """Send lines of line protocol with times in milliseconds.

        Raises:
            OverloadedError: the server takes no more now.
            StoreUnavailableError: it does not answer, or refuses.
        """
        headers = {"Content-Type": "text/plain"}
        if len(lines) >= GZIP_FROM_BYTES:
            headers["Content-Encoding"] = "gzip"
            lines = gzip.compress(lines, GZIP_LEVEL, mtime=0)
        self._send("POST", "/write?precision=ms", body=lines, headers=headers)

    def query(self, path: str, parameters: Parameters) -> list[Answer]:
        """Return what `/api/v1/query` or `/api/v1/query_range` answers."""
        body = self._post(path, [*parameters, ("nocache", "1")])
        return msgspec.json.decode(body, type=_Query).data.result

    def names(self, path: str, parameters: Parameters) -> list[str]:
        """Return the names that `/api/v1/labels` and its like list."""
        return msgspec.json.decode(self._post(path, parameters), type=_Names).data

    def export(self, selector: str, *, start_ms: int, end_ms: int) -> list[bytes]:
        """Return the samples in `[start_ms, end_ms)`: one JSON object for a series."""
        last_ms = end_ms - 1
        times = [
            (name, f"{at_ms // 1000}.{at_ms % 1000:03d}")
            for name, at_ms in (("start", start_ms), ("end", last_ms))
        ]
        return self._post("/api/v1/export", [("match[]", selector), *times]).splitlines()

    def delete(self, selector: str) -> None:
        """Delete the series that a selector names, samples not yet searchable included."""
        self.flush()
        self._post("/api/v1/admin/tsdb/delete_series", [("match[]", selector)])

    def flush(self) -> None:
        """Make what the server has taken searchable now rather than in a second."""
        self._send("GET", "/internal/force_flush")

    def flags(self) -> str | None:
        """Return the options that the server was started with; None where it does not tell."""
        with self._told():
            answer = self._pool.request("GET", f"{self.url}/flags", headers=self._headers)
        return answer.data.decode() if answer.status == 200 else None  # noqa: PLR2004 - HTTP OK

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def _post(self, path: str, parameters: Parameters) -> bytes:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._send("POST", path, body=urlencode(list(parameters)).encode(), headers=form)

    def _send(
        self, method: str, path: str, *, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> bytes:
        with self._told():
            answer = self._pool.request(
                method, self.url + path, body=body, headers={**self._headers, **(headers or {})}
            )
        if answer.status in FULL:
            raise OverloadedError(
                f"VictoriaMetrics at {self.url} takes no more now (status {answer.status}); "
                "send the same again later.",
                retry_after_seconds=_retry_after(answer.headers.get("Retry-After")),
            )
        if answer.status >= 400:  # noqa: PLR2004 - HTTP: an error
            reason = answer.data[:REASON_LENGTH].decode(errors="replace").strip()
            raise StoreUnavailableError(
                f"VictoriaMetrics at {self.url} refused {path.partition('?')[0]} "
                f"with status {answer.status}: {reason or answer.reason}"
            )
        return answer.data

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except urllib3.exceptions.HTTPError as error:
            fault = getattr(error, "reason", None) or error
            raise StoreUnavailableError(
                f"VictoriaMetrics at {self.url} does not answer ({type(fault).__name__}). "
                "Check that it runs and that TIMESERIES_URL names it."
            ) from error


def _retry_after(header: str | None) -> int:
    return int(header) if header and header.isdecimal() else 5
