"""The way of a webhook: one POST to a checked address, without redirects, in bounded time.

Proxies and credentials of the server's environment are not used: they are not the tenant's.
"""

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from urllib.parse import SplitResult, unquote, urlsplit

from requests.utils import DEFAULT_CA_BUNDLE_PATH
from urllib3.util import make_headers, parse_url

from alerting.addresses import PORTS, AddressPolicy, host_of
from core.networks import Address

Headers = Mapping[str, str]
# A name with many addresses, all of them silent, would hold up everybody's messages.
MAX_ADDRESSES = 3


class WebhookClient:
    """Posts to web addresses that tenants name.

    Args:
        timeout_seconds: how long connecting to an address may take, and then the whole answer.
        policy: which addresses are open.
    """

    def __init__(self, timeout_seconds: float, *, policy: AddressPolicy) -> None:
        self._timeout_seconds = timeout_seconds
        self._policy = policy
        self._context = ssl.create_default_context()
        self._context.load_verify_locations(DEFAULT_CA_BUNDLE_PATH)

    def post(self, target: str, *, body: bytes, headers: Headers) -> tuple[int, str]:
        """Return the status and the reason of the answer; its body is not read.

        Raises:
            RefusedAddressError: the address leads where webhooks must not go.
            OSError: the name has no address, or none of them answers in time.
            http.client.HTTPException: the answer is not HTTP.
        """
        url = urlsplit(target)
        path = parse_url(target).request_uri
        headers = {**headers, **_credentials(url), "Host": _host_header(url)}
        with self._connected(url) as connection:
            connection.request("POST", path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.reason

    @contextmanager
    def _connected(self, url: SplitResult) -> Iterator[HTTPConnection]:
        port = url.port or PORTS[url.scheme]
        found = self._connect(self._policy.addresses(host_of(url), port), port)
        if url.scheme == "https":
            found = self._context.wrap_socket(
                found, server_hostname=host_of(url), do_handshake_on_connect=False
            )
        connection = HTTPConnection(host_of(url), port)
        connection.sock = found
        with closing(connection), _cut_after(found, self._timeout_seconds):
            if isinstance(found, ssl.SSLSocket):
                found.do_handshake()
            yield connection

    def _connect(self, addresses: list[Address], port: int) -> socket.socket:
        """Return a connection to the first address that takes one."""
        *others, last = addresses[:MAX_ADDRESSES]
        for address in others:
            with suppress(OSError):
                return self._connect_to(address, port)
        return self._connect_to(last, port)

    def _connect_to(self, address: Address, port: int) -> socket.socket:
        return socket.create_connection((str(address), port), timeout=self._timeout_seconds)


@contextmanager
def _cut_after(connection: socket.socket, seconds: float) -> Iterator[None]:
    """End the connection when the block takes longer: a drip of bytes outlasts any timeout.

    Raises:
        TimeoutError: it was ended; what was read till then may look whole and is not.
    """
    is_cut = threading.Event()

    def cut() -> None:
        is_cut.set()
        with suppress(OSError):
            # That of plain sockets: SSL's forgets its state, in the middle of a read.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if is_cut.is_set():
        raise TimeoutError("the answer took too long")


def _host_header(url: SplitResult) -> str:
    host = host_of(url)
    host = f"[{host}]" if ":" in host else host
    return host if url.port is None else f"{host}:{url.port}"


def _credentials(url: SplitResult) -> dict[str, str]:
    if url.username is None:
        return {}
    pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
    return dict(make_headers(basic_auth=pair))
