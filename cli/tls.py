"""TLS in the server itself, for an installation without a proxy in front.

Agents show the certificates that the portal gave them; people's browsers need none. Files that were
replaced, such as a renewed certificate or the list of authorities after a rotation, are taken up by
the next connection without a restart.
"""

import logging
import ssl
from asyncio import Transport
from pathlib import Path
from threading import Lock

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from core.errors import ConfigurationError
from core.settings import ServerSettings

log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int], ...]


class TLSProtocol(HttpToolsProtocol):
    """HTTP that puts the verified client certificate of a connection into each request's scope.

    Source: the ASGI specification's TLS extension, which uvicorn does not offer.
    """

    _extensions: dict[str, dict[object, object]] | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Note whose connection it is."""
        super().connection_made(transport)
        connection = transport.get_extra_info("ssl_object")
        shown = connection.getpeercert(binary_form=True) if connection is not None else None
        if shown:
            chain = [ssl.DER_cert_to_PEM_cert(shown)]
            self._extensions = {"tls": {"client_cert_chain": chain}}

    def on_message_begin(self) -> None:
        """Begin a request of this connection."""
        super().on_message_begin()
        if self._extensions is not None:
            self.scope["extensions"] = self._extensions


class ServerTLS:
    """The context of the server's connections, made anew when a file was replaced.

    Args:
        certificate_file: the server's own, with its chain.
        key_file: its key; None where the certificate's file holds it too.
        authorities_file: whose signatures on clients' certificates are believed.

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
            self._stamp = self._present_stamp()
            self._current = self._make()
        except OSError as error:
            fault = (
                f"tls_certificate_file {certificate_file} or tls_key_file {key_file} can't be "
                f"used: {error.strerror or error}"
            )
            raise ConfigurationError([fault], source="The configuration") from error
        self.context = self._make()
        # It is called for every new connection, also where the client names no server.
        self.context.sni_callback = self._choose

    @classmethod
    def of(cls, settings: ServerSettings, authorities_file: Path) -> "ServerTLS":
        """Return the TLS that the settings ask for."""
        if settings.tls_certificate_file is None:
            raise ValueError("the settings name no certificate")
        return cls(
            settings.tls_certificate_file,
            settings.tls_key_file,
            authorities_file=authorities_file,
        )

    def _choose(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _first: ssl.SSLContext
    ) -> None:
        connection.context = self._newest()

    def _newest(self) -> ssl.SSLContext:
        with self._lock:
            try:
                stamp = self._present_stamp()
                if stamp != self._stamp:
                    self._current, self._stamp = self._make(), stamp
            except OSError as error:
                log.warning("the TLS files can't be used, going on with the old: %s", error)
            return self._current

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # An encrypted key would ask for its password on the terminal.
        context.load_cert_chain(self._certificate_file, self._key_file, password=lambda: "")
        context.load_verify_locations(self._authorities_file)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _present_stamp(self) -> _Stamp:
        files = (self._certificate_file, self._key_file, self._authorities_file)
        states = [path.stat() for path in files if path is not None]
        return tuple((state.st_mtime_ns, state.st_size, state.st_ino) for state in states)
