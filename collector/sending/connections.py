"""HTTP connections of the agent: one pool of them per thread, TLS and proxies as configured.

urllib3 is used as it is: the agent asks every second, and requests would cost several times the
processor time and memory.
"""

import os
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import urllib3
from urllib3.util import make_headers

from collector.sending.tls import TLSContexts

HTTPFailure = (urllib3.exceptions.HTTPError, OSError)
CONNECTIONS = 2


class Connections:
    """A pool of connections that is made anew when the certificate was. For one thread."""

    def __init__(
        self, tls: TLSContexts | None = None, *, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._tls = tls or TLSContexts()
        self._environ = environ
        self._pools: dict[str, urllib3.PoolManager] = {}
        self._context: ssl.SSLContext | None = None

    def request(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: tuple[float, float],
    ) -> urllib3.BaseHTTPResponse:
        """Ask once, with no second try and no redirect.

        Args:
            method: GET or POST.
            url: with its query.
            body: what is sent.
            headers: what is said about it.
            timeout_seconds: to connect, and between two pieces of the answer.

        Raises:
            urllib3.exceptions.HTTPError, OSError: nobody answers; see `HTTPFailure`.
        """
        connect, read = timeout_seconds
        return self.pool_for(url).request(
            method,
            url,
            body=body,
            headers=dict(headers or {}),
            timeout=urllib3.Timeout(connect=connect, read=read),
            retries=False,
            redirect=False,
        )

    def close(self) -> None:
        """Close the connections."""
        for pool in self._pools.values():
            pool.clear()
        self._pools = {}

    def pool_for(self, url: str) -> urllib3.PoolManager:
        """Return the pool for an address, for bodies that are not to be held in memory.

        Raises:
            OSError: a TLS file can't be used.
        """
        context = self.context_for(url)
        if context is not None and context is not self._context:
            self.close()
            self._context = context
        proxy = proxy_for(url, self._environ) or ""
        if proxy not in self._pools:
            self._pools[proxy] = _make_pool(proxy, self._context)
        return self._pools[proxy]

    def context_for(self, url: str) -> ssl.SSLContext | None:
        """Return the TLS context for an address; None where it takes none.

        Raises:
            OSError: a TLS file can't be used.
        """
        return self._tls.current() if url.startswith("https:") else None


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """Return the proxy that the environment names for an address, as curl understands it."""
    parts = urlsplit(url)
    name = f"{parts.scheme}_proxy"
    proxy = environ.get(name) or environ.get(name.upper())
    if not proxy:
        return None
    host = parts.hostname or ""
    excepted = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    for entry in (one.strip().lstrip(".") for one in excepted.split(",")):
        if entry == "*" or (entry and (host == entry or host.endswith(f".{entry}"))):
            return None
    return proxy if "://" in proxy else f"http://{proxy}"


def proxy_headers(proxy: str) -> dict[str, str]:
    """Return the headers with the credentials that a proxy's address holds."""
    parts = urlsplit(proxy)
    if not parts.username:
        return {}
    return dict(make_headers(proxy_basic_auth=f"{parts.username}:{parts.password or ''}"))


def _make_pool(proxy: str, context: ssl.SSLContext | None) -> urllib3.PoolManager:
    if proxy:
        return urllib3.ProxyManager(
            proxy,
            num_pools=CONNECTIONS,
            maxsize=CONNECTIONS,
            ssl_context=context,
            proxy_headers=proxy_headers(proxy),
        )
    return urllib3.PoolManager(num_pools=CONNECTIONS, maxsize=CONNECTIONS, ssl_context=context)
