"""Requests to hosts that tenants choose: a checked address, no redirects, bounded time.

Tenants choose the URL and the portal connects, so requests must not reach the operator's network
(server-side request forgery). Every address that the host name resolves to is checked, and the
connection goes to a checked address: resolving the name again would allow DNS rebinding. Proxies
and credentials from the server's environment are not used.
"""

import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from urllib3.util import make_headers, parse_url

from core.networks import Address, Network, is_public, is_within

Headers = Mapping[str, str]
Resolve = Callable[[str], list[str]]

DEFAULT_PORTS = {"http": 80, "https": 443}
RESOLVE_SECONDS = 5.0
HOSTS_FILE = Path("/etc/hosts")
# Many unresponsive addresses of one name would delay other notifications.
MAX_ADDRESSES = 3
TOO_LATE = "the response took too long"


class BlockedAddressError(Exception):
    """A host name resolves to an address that webhooks must not reach."""

    @staticmethod
    def message_for(host: str) -> str:
        """Return the message to the user."""
        return (
            f"{host} is in a private network, which webhooks can't reach. Use a public address, or "
            "ask the operator to allow the network (VEDETTE_WEBHOOK_ALLOWED_NETWORKS)."
        )


def resolve(host: str) -> list[str]:
    """Return the addresses of a host, in bounded time.

    Addresses in any notation are converted, names in the hosts file are looked up there, and
    others by DNS: the system's own resolver has no time limit.

    Raises:
        OSError: the host has no address, or DNS did not answer in time.
    """
    with suppress(OSError, ValueError):
        return [socket.inet_ntoa(socket.inet_aton(host))]
    with suppress(ValueError):
        return [str(ipaddress.ip_address(host.partition("%")[0]))]
    if addresses := _hosts_file().get(host.lower().rstrip(".")):
        return addresses
    import dns.exception  # noqa: PLC0415 - 2 MiB that servers without webhooks save
    import dns.resolver  # noqa: PLC0415

    try:
        answers = dns.resolver.Resolver().resolve_name(host, lifetime=RESOLVE_SECONDS)
        return list(answers.addresses())
    except dns.exception.DNSException as error:
        raise socket.gaierror(f"{host} can't be resolved") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressPolicy:
    """Which addresses webhooks may reach: public ones, and the `allowed` networks."""

    allowed: tuple[Network, ...] = ()
    resolve: Resolve = resolve

    def addresses(self, host: str) -> list[Address]:
        """Return the addresses of a host, in the order of the resolver.

        Raises:
            OSError: the host has no address.
            BlockedAddressError: one of its addresses is blocked, whatever the others are.
        """
        # A zone (%eth0) names an interface: link-local, and blocked with or without it.
        texts = [text.partition("%")[0] for text in self.resolve(host)]
        addresses = [ipaddress.ip_address(text) for text in texts]
        if not all(is_within(address, self.allowed) or is_public(address) for address in addresses):
            raise BlockedAddressError
        return addresses


def host_of(url: SplitResult) -> str:
    """Return the host name as DNS encodes it (IDNA).

    Raises:
        OSError: it is not a valid host name.
    """
    try:
        return (url.hostname or "").encode("idna").decode()
    except UnicodeError as error:
        raise OSError("invalid host name") from error


class WebhookClient:
    """Sends requests to URLs of tenants.

    Args:
        timeout_seconds: limit for connecting to an address, and then for the whole response.
        policy: which addresses may be reached.
    """

    def __init__(self, timeout_seconds: float, *, policy: AddressPolicy) -> None:
        self._timeout_seconds = timeout_seconds
        self._policy = policy

    @cached_property
    def _context(self) -> ssl.SSLContext:
        from requests.utils import DEFAULT_CA_BUNDLE_PATH  # noqa: PLC0415 - 4 MiB

        context = ssl.create_default_context()
        context.load_verify_locations(DEFAULT_CA_BUNDLE_PATH)
        return context

    def request(
        self,
        method: str,
        target: str,
        *,
        body: bytes,
        headers: Headers,
        max_answer_bytes: int = 0,
    ) -> tuple[HTTPResponse, bytes]:
        """Return the response, and the beginning of its body.

        Raises:
            BlockedAddressError: the policy blocks the address.
            OSError: the host has no address, none of them responds in time, or the body is larger.
            http.client.HTTPException: the response is not HTTP.
        """
        url = urlsplit(target)
        path = parse_url(target).request_uri
        host = f"[{host_of(url)}]" if ":" in host_of(url) else host_of(url)
        host = host if url.port is None else f"{host}:{url.port}"
        headers = {**headers, **_credentials(url), "Host": host}
        with self._connected(url) as connection:
            connection.request(method, path, body=body, headers=headers)
            with connection.getresponse() as response:
                return response, response.read(max_answer_bytes) if max_answer_bytes else b""

    @contextmanager
    def _connected(self, url: SplitResult) -> Iterator[HTTPConnection]:
        port = url.port or DEFAULT_PORTS[url.scheme]
        sock = self._connect(self._policy.addresses(host_of(url)), port)
        if url.scheme == "https":
            sock = self._context.wrap_socket(
                sock, server_hostname=host_of(url), do_handshake_on_connect=False
            )
        connection = HTTPConnection(host_of(url), port)
        connection.sock = sock
        with closing(connection), _deadline(sock, self._timeout_seconds):
            if isinstance(sock, ssl.SSLSocket):
                sock.do_handshake()
            yield connection

    def _connect(self, addresses: list[Address], port: int) -> socket.socket:
        """Return a connection to the first address that accepts one."""
        error = OSError("the host has no address")
        for address in addresses[:MAX_ADDRESSES]:
            try:
                return socket.create_connection((str(address), port), self._timeout_seconds)
            except OSError as refused:
                error = refused
        raise error


@contextmanager
def _deadline(connection: socket.socket, seconds: float) -> Iterator[None]:
    """Close the connection when the block takes longer; socket timeouts restart with every byte.

    Raises:
        TimeoutError: the connection was closed for this, whatever the block met because of it.
    """
    is_late = threading.Event()

    def close() -> None:
        is_late.set()
        with suppress(OSError):
            # Not SSLSocket.shutdown, which drops the state of a read in progress.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, close)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, HTTPException) as error:
        if is_late.is_set():
            raise TimeoutError(TOO_LATE) from error
        raise
    finally:
        timer.cancel()
    if is_late.is_set():
        raise TimeoutError(TOO_LATE)


def _hosts_file() -> Mapping[str, list[str]]:
    """Return the addresses in the system's hosts file by name."""
    addresses: dict[str, list[str]] = {}
    with suppress(OSError):
        for line in HOSTS_FILE.read_text(encoding="utf-8", errors="replace").splitlines():
            address, *names = line.partition("#")[0].split() or [""]
            for name in names:
                addresses.setdefault(name.lower(), []).append(address)
    return addresses


def _credentials(url: SplitResult) -> dict[str, str]:
    if url.username is None:
        return {}
    pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
    return dict(make_headers(basic_auth=pair))
