"""TLS terminated by the server itself, for an installation without a reverse proxy.

Agents present client certificates issued by the portal; browsers need none. A renewed certificate
or a rotated list of authorities applies to the next connection, without a restart.
"""

import asyncio
import logging
import os
import socket
import ssl
from asyncio import Transport
from pathlib import Path
from threading import Lock
from typing import Any

from core.errors import ConfigurationError
from serving.http_protocol import LINGER_SECONDS, BoundedProtocol, Connections

log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int], ...]


class TLSHandshake(asyncio.Protocol):
    """Accepts a connection: counts it, and starts TLS with a deadline.

    The event loop's own TLS servers create no transport before the handshake is complete, so that
    nobody knows the address of a client that never completes it. This one knows it, and hands a
    duplicate of the socket to TLS.
    """

    def __init__(self, *, connections: Connections, tls: ssl.SSLContext, **options: Any) -> None:  # noqa: ANN401 - uvicorn's
        self._connections = connections
        self._tls = tls
        self._options = options

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Hand the connection to `TLSProtocol`, or close it."""
        protocol = TLSProtocol(connections=self._connections, **self._options)
        if self._connections.admit(protocol, transport):
            accepted = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
            protocol.handshake = asyncio.create_task(self._shake_hands(protocol, accepted))
        transport.abort()

    async def _shake_hands(self, protocol: "TLSProtocol", accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._connections.limits.header_seconds,
                ssl_shutdown_timeout=LINGER_SECONDS,
            )
        except OSError as error:
            log.debug("TLS handshake failed: %s", error)
        finally:
            if not protocol.is_ready:
                self._connections.forget(protocol)
                accepted.close()


class TLSProtocol(BoundedProtocol):
    """HTTP over TLS, which puts the verified client certificate into each request's scope.

    Source: the ASGI specification's TLS extension, which uvicorn does not offer.
    """

    _extensions: dict[str, dict[object, object]] | None = None
    handshake: asyncio.Task[None] | None = None
    is_ready = False

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Remember the client certificate of the connection, which is counted already."""
        self.is_ready = True
        self.begin(transport)
        certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if certificate:
            chain = [ssl.DER_cert_to_PEM_cert(certificate)]
            self._extensions = {"tls": {"client_cert_chain": chain}}

    def abort(self) -> None:
        """Close the connection, or end its handshake."""
        if self.is_ready:
            super().abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def check(self, now: float) -> None:
        """Close the connection if a deadline has passed; the handshake has its own."""
        if self.is_ready:
            super().check(now)

    def handle_websocket_upgrade(self) -> None:
        """Add the client certificate to the scope of a WebSocket, which begins after this."""
        super().handle_websocket_upgrade()
        protocol: Any = self.transport.get_protocol()
        if self._extensions is not None and protocol is not self:
            protocol.scope["extensions"] |= self._extensions

    def on_message_begin(self) -> None:
        """Add the client certificate to the scope of each request."""
        super().on_message_begin()
        if self._extensions is not None:
            self.scope["extensions"] = self._extensions


class ServerTLS:
    """The TLS context of the server, reloaded when a file changes.

    Args:
        certificate_file: the server certificate with its chain.
        key_file: the private key; None if the certificate file has it too.
        authorities_file: the CA certificates that sign client certificates.

    Raises:
        ConfigurationError: a file can't be used.
    """

    def __init__(
        self, certificate_file: Path, key_file: Path | None, *, authorities_file: Path
    ) -> None:
        self._certificate_file = certificate_file
        self._key_file = key_file
        self._authorities_file = authorities_file
        self._lock = Lock()
        try:
            self._stamp = self._read_stamp()
            self._current = self._load()
        except OSError as error:
            fault = (
                f"tls_certificate_file {certificate_file} or tls_key_file {key_file} can't be "
                f"used: {error.strerror or error}"
            )
            raise ConfigurationError([fault], source="The configuration") from error
        self.context = self._load()
        # Called for each new connection, even without a server name.
        self.context.sni_callback = self._use_newest

    def _use_newest(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _first: ssl.SSLContext
    ) -> None:
        with self._lock:
            try:
                stamp = self._read_stamp()
                if stamp != self._stamp:
                    self._current, self._stamp = self._load(), stamp
            except OSError as error:
                log.warning("can't load the changed TLS files, using the old ones: %s", error)
            connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without the callback, an encrypted key prompts for its password on the terminal.
        context.load_cert_chain(self._certificate_file, self._key_file, password=lambda: "")
        context.load_verify_locations(self._authorities_file)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _read_stamp(self) -> _Stamp:
        files = (self._certificate_file, self._key_file, self._authorities_file)
        states = [path.stat() for path in files if path is not None]
        return tuple((state.st_mtime_ns, state.st_size, state.st_ino) for state in states)
