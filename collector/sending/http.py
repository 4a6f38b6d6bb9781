"""HTTP for the agent: connection pools with TLS and proxies, and readable errors.

The agent uses urllib3 directly: it sends a request every second, for which requests would take
several times the CPU time and memory.
"""

import math
import os
import re
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import RemoteDisconnected
from typing import Any
from urllib.parse import urlsplit

import msgspec
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util import make_headers

from collector.tls import TLSContexts

HTTP_ERRORS = (urllib3.exceptions.HTTPError, OSError)
POOL_SIZE = 2
# The longest Retry-After that is respected: a wrong one must not stop the agent for days.
MAX_RETRY_AFTER_SECONDS = 3600.0
_TITLE = re.compile(r"<title>\s*(.*?)\s*</title>", re.IGNORECASE | re.DOTALL)
_EXCERPT_CHARACTERS = 200


class HTTPClient:
    """Connection pools, renewed when the client certificate changes. For one thread."""

    def __init__(
        self, tls: TLSContexts | None = None, *, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._tls = tls or TLSContexts()
        self._environ = environ
        self._pools: dict[str, urllib3.PoolManager] = {}
        self._context: ssl.SSLContext | None = None
        self._in_use: HTTPConnection | None = None

    def request(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float,
        connect_timeout_seconds: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Send one request, without retries and redirects.

        Args:
            method: GET or POST.
            url: with its query.
            body: the body.
            headers: the headers.
            timeout_seconds: for each read.
            connect_timeout_seconds: to connect, if that differs.

        Raises:
            urllib3.exceptions.HTTPError, OSError: no response; see `HTTP_ERRORS`.
        """
        connect_seconds = connect_timeout_seconds or timeout_seconds
        return self.pool_for(url).request(
            method,
            url,
            body=body,
            headers=dict(headers or {}),
            timeout=urllib3.Timeout(connect=connect_seconds, read=timeout_seconds),
            retries=False,
            redirect=False,
        )

    def abort(self) -> None:
        """End the request under way, from another thread; it fails with one of `HTTP_ERRORS`.

        One that still connects goes on until its timeout.
        """
        open_socket = self._in_use.sock if self._in_use is not None else None
        if isinstance(open_socket, socket.socket):
            with suppress(OSError):  # it is closed
                # Not the method of SSLSocket, which takes the connection from the waiting thread.
                socket.socket.shutdown(open_socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connections."""
        for pool in self._pools.values():
            pool.clear()
        self._pools = {}

    def pool_for(self, url: str) -> urllib3.PoolManager:
        """Return the pool for a URL, to stream bodies.

        Raises:
            OSError: a TLS file can't be used.
        """
        context = self._tls.current() if url.startswith("https:") else None
        if context is not None and context is not self._context:
            self.close()
            self._context = context
        proxy = proxy_for(url, self._environ) or ""
        if proxy not in self._pools:
            self._pools[proxy] = pool = _make_pool(proxy, self._context)
            pool.pool_classes_by_scheme = self._pool_classes()
        return self._pools[proxy]

    def _pool_classes(self) -> dict[str, type[urllib3.HTTPConnectionPool]]:
        """Return pools by scheme, whose connections note that they are in use."""
        client = self

        class NotingConnection(HTTPConnection):
            def request(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed on
                client._in_use = self
                super().request(*args, **kwargs)

        class NotingTLSConnection(HTTPSConnection):
            def request(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed on
                client._in_use = self
                super().request(*args, **kwargs)

        class Pool(urllib3.HTTPConnectionPool):
            ConnectionCls = NotingConnection

        class TLSPool(urllib3.HTTPSConnectionPool):
            ConnectionCls = NotingTLSConnection

        return {"http": Pool, "https": TLSPool}


def is_late(error: BaseException) -> bool:
    """Return whether a request failed because the server took too long to respond."""
    return isinstance(error, urllib3.exceptions.ReadTimeoutError)


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """Return the proxy for a URL from the environment, with curl's rules."""
    parts = urlsplit(url)
    name = f"{parts.scheme}_proxy"
    proxy = environ.get(name) or environ.get(name.upper())
    if not proxy:
        return None
    host = parts.hostname or ""
    excepted = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    for entry in (host_pattern.strip().lstrip(".") for host_pattern in excepted.split(",")):
        if entry == "*" or (entry and (host == entry or host.endswith(f".{entry}"))):
            return None
    return proxy if "://" in proxy else f"http://{proxy}"


def proxy_headers(proxy: str) -> dict[str, str]:
    """Return the headers with the credentials in a proxy's URL."""
    parts = urlsplit(proxy)
    if not parts.username:
        return {}
    return dict(make_headers(proxy_basic_auth=f"{parts.username}:{parts.password or ''}"))


def error_message(body: bytes, *, default: str = "") -> str:
    """Return the message in an error response: from JSON, a web page's title, or its beginning."""
    try:
        content = msgspec.json.decode(body)
    except msgspec.DecodeError:
        content = None
    if isinstance(content, dict):
        for key in ("message", "error"):
            if isinstance(content.get(key), str):
                return str(content[key])
    text = body.decode(errors="replace")
    title = _TITLE.search(text)
    return (title[1] if title else text[:_EXCERPT_CHARACTERS].strip()) or default


def is_web_page(body: bytes) -> bool:
    """Return whether a response is HTML, as from a proxy in front of the server."""
    return body.lstrip().startswith(b"<")


def retry_after_seconds(header: str | None, *, now: datetime) -> float | None:
    """Parse a Retry-After header, in seconds or as a date; None without a valid one."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        seconds = _seconds_until(header, now=now)
    return None if math.isnan(seconds) else min(MAX_RETRY_AFTER_SECONDS, max(0.0, seconds))


def root_cause(error: BaseException | None) -> str:
    """Return the operating system's message for a failed request, with a hint for TLS errors.

    HTTP clients wrap `Connection refused` in three exceptions that repeat the address.
    """
    cause = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return _with_hint(cause.strerror)
        if isinstance(cause, RemoteDisconnected):
            return "it closed the connection without a response"
        cause = cause.__cause__ or cause.__context__
    return _with_hint(str(error))


def _make_pool(proxy: str, context: ssl.SSLContext | None) -> urllib3.PoolManager:
    if proxy:
        return urllib3.ProxyManager(
            proxy,
            num_pools=POOL_SIZE,
            maxsize=POOL_SIZE,
            ssl_context=context,
            proxy_headers=proxy_headers(proxy),
        )
    return urllib3.PoolManager(num_pools=POOL_SIZE, maxsize=POOL_SIZE, ssl_context=context)


def _seconds_until(date: str, *, now: datetime) -> float:
    """Return the seconds until an HTTP date; NaN if it isn't one."""
    try:
        at = parsedate_to_datetime(date)
    except ValueError:
        return math.nan
    aware_at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (aware_at - now).total_seconds()


def _with_hint(cause: str) -> str:
    hint = ""
    if "CERTIFICATE_VERIFY_FAILED" in cause or "certificate verify failed" in cause:
        hint = " (set ca_file to the authority that signed it)"
    elif "alert certificate required" in cause or "alert handshake failure" in cause:
        hint = " (set client_certificate_file)"
    return re.sub(r"\s*\(_ssl\.c:\d+\)", "", cause) + hint
