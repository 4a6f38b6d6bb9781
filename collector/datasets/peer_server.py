"""Serves parts to other appliances of the site, which show their certificates."""

import logging
import re
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import msgspec

from collector.datasets.errors import DataError
from collector.datasets.peers import PeerParts, PeerTLS
from collector.sending.byte_rate import ByteRate

log = logging.getLogger(__name__)

Request = socket.socket | tuple[bytes, socket.socket]

HANDSHAKE_SECONDS = 10.0
IDLE_SECONDS = 60.0
_VERSION = re.compile(r"/v1/versions/([0-9A-Za-z-]{1,64})")
_PART = re.compile(r"/v1/versions/([0-9A-Za-z-]{1,64})/parts/([0-9]{1,6})/([0-9]{1,6})")
_RANGE = re.compile(r"bytes=([0-9]{1,9})-([0-9]{1,9})")
_MAX_RANGE_BYTES = 4 * 1024**2


class Shared(Protocol):
    """What an appliance has for its peers."""

    def parts_of_version(self, version_id: str) -> PeerParts | None:
        """Return what is there of a version; None if nothing is."""

    def read_part(
        self, version_id: str, page_index: int, part_index: int, offset: int, size_bytes: int
    ) -> Iterator[bytes]:
        """Yield a range of a part.

        Raises:
            DataError, OSError: it is not there.
        """


class PeerServer(ThreadingHTTPServer):
    """Listens on an address that the admin chose.

    Args:
        address: host and port.
        tls: certificates.
        shared: what there is.
        allowed: returns the appliances that may fetch from this one.
        max_connections: how many may be open.
        max_bytes_per_second: what all of them get together; 0 is no limit.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        address: tuple[str, int],
        *,
        tls: PeerTLS,
        shared: Shared,
        allowed: Callable[[], Collection[str]],
        max_connections: int,
        max_bytes_per_second: int,
    ) -> None:
        self.shared = shared
        self._tls = tls
        self._allowed = allowed
        self._permits = threading.BoundedSemaphore(max_connections)
        self.rate = ByteRate(max_bytes_per_second)
        self._context: tuple[tuple[int, int], ssl.SSLContext] | None = None
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def start(self) -> None:
        """Serve in a thread of its own."""
        threading.Thread(target=self.serve_forever, name="data-peers", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()

    def verify_request(self, request: object, client_address: object) -> bool:  # noqa: ARG002 - its interface's
        """Close a connection at once where too many are open."""
        return self._permits.acquire(blocking=False)

    def process_request_thread(self, request: Request, client_address: object) -> None:
        """Serve a connection, and make room for the next one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._permits.release()

    def finish_request(self, request: Request, client_address: object) -> None:
        """Shake hands in the connection's thread: a slow client holds up nobody else."""
        assert isinstance(request, socket.socket)  # noqa: S101 - checked before
        request.settimeout(HANDSHAKE_SECONDS)
        try:
            wrapped = self._current_context().wrap_socket(request, server_side=True)
        except OSError as error:
            log.debug("a peer's handshake failed: %s", error)
            return
        try:
            wrapped.settimeout(IDLE_SECONDS)
            _Handler(wrapped, client_address, self)
        except OSError as error:
            log.debug("a peer's connection ended: %s", error)
        finally:
            wrapped.close()

    def may_fetch(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return whether the portal lists the appliance of a checked certificate."""
        subject = (certificate or {}).get("subject")
        names = (
            dict(pair for part in subject for pair in part) if isinstance(subject, tuple) else {}
        )
        is_own_tenant = names.get("organizationName") == self._tls.identity.tenant_id
        return is_own_tenant and names.get("commonName") in self._allowed()

    def _current_context(self) -> ssl.SSLContext:
        stamp = self._tls.stamp
        if self._context is None or self._context[0] != stamp:
            self._context = stamp, self._tls.server_context()
        return self._context[1]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: PeerServer

    def do_GET(self) -> None:
        connection = self.connection
        certificate = connection.getpeercert() if isinstance(connection, ssl.SSLSocket) else None
        if not self.server.may_fetch(certificate):
            self._send(403)
        elif part := _PART.fullmatch(self.path):
            self._send_part(part[1], int(part[2]), int(part[3]))
        elif version := _VERSION.fullmatch(self.path):
            parts = self.server.shared.parts_of_version(version[1])
            # A version that is not here yet may be on its way: the peer asks again.
            self._send(200, msgspec.msgpack.encode(parts or PeerParts()))
        else:
            self._send(404)

    def _send_part(self, version_id: str, page_index: int, part_index: int) -> None:
        ranged = _RANGE.fullmatch(self.headers.get("Range", ""))
        size_bytes = int(ranged[2]) - int(ranged[1]) + 1 if ranged else 0
        if ranged is None or not 0 < size_bytes <= _MAX_RANGE_BYTES:
            self._send(416)
            return
        try:
            content = b"".join(
                self.server.shared.read_part(
                    version_id, page_index, part_index, int(ranged[1]), size_bytes
                )
            )
        except (DataError, OSError):  # it was evicted, or is not fetched yet
            self._send(404)
            return
        self.server.rate.wait(len(content))
        self._send(206, content)

    def _send(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base's name
        log.debug("peer %s: %s", self.client_address[0], format % args)
