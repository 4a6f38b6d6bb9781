"""Parts from other appliances of the site, over HTTPS with the agents' certificates both ways.

An agent's certificate names no address, and is for clients: so the agent that asks checks that the
other side's is signed by the portal's authority, and names the appliance that the portal listed.
"""

import random
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from collector.certificates import AUTHORITIES_NAME, CERTIFICATE_NAME
from collector.data_dir import Identity
from collector.datasets.errors import DataError, TemporaryDataError
from collector.datasets.parts import Origin, Part, Piece
from collector.datasets.pool import Pool
from collector.datasets.queue import Place
from protocol.datasets import PeerAddress

ASK_SECONDS = 1.0
DISTRUST_SECONDS = 30.0
TIMEOUT_SECONDS = 20.0
MAX_ANSWER_BYTES = 4 * 1024**2
_OK, _PARTIAL = 200, 206


class PeerParts(msgspec.Struct, frozen=True, kw_only=True):
    """What an appliance has of a version: GET /v1/versions/VERSION_ID, as MessagePack.

    `pages` has a bit for each part, by the index of the page.
    """

    is_complete: bool = False
    pages: dict[int, bytes] = {}

    def has(self, place: Place) -> bool:
        """Return whether it has a part."""
        if self.is_complete:
            return True
        bits, index = self.pages.get(place[0], b""), place[1]
        return index // 8 < len(bits) and bool(bits[index // 8] >> index % 8 & 1)


@dataclass(frozen=True, slots=True)
class PeerTLS:
    """The certificate by which appliances know each other.

    Attributes:
        data_dir: has the certificate that the portal issued, and its authorities.
        identity: this appliance.
    """

    data_dir: Path
    identity: Identity

    @property
    def is_ready(self) -> bool:
        """Whether the portal has issued a certificate."""
        return self._certificate.exists() and self._authorities.exists()

    @property
    def _certificate(self) -> Path:
        return self.data_dir / CERTIFICATE_NAME

    @property
    def _authorities(self) -> Path:
        return self.data_dir / AUTHORITIES_NAME

    @property
    def stamp(self) -> tuple[int, int]:
        """Changes when the certificate is renewed."""
        return self._certificate.stat().st_mtime_ns, self._authorities.stat().st_mtime_ns

    def server_context(self) -> ssl.SSLContext:
        """Return a context that asks clients for a certificate of the portal's authority.

        Raises:
            OSError: the files can't be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_verify_locations(self._authorities)
        context.verify_mode = ssl.CERT_REQUIRED
        return self._with_certificate(context)

    def client_context(self) -> ssl.SSLContext:
        """Return a context for connections whose other side `check` checks.

        Raises:
            OSError: the files can't be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return self._with_certificate(context)

    def _with_certificate(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self._certificate, password=lambda: "")
        return context

    def check(self, certificate: bytes | None, appliance_id: str) -> None:
        """Check that a certificate is of this tenant's appliance with this id.

        Raises:
            DataError: it is not.
        """
        # 5 MiB that agents without peers save.
        from cryptography import x509  # noqa: PLC0415 - only where it is used
        from cryptography.x509.oid import NameOID  # noqa: PLC0415 - only where it is used
        from cryptography.x509.verification import (  # noqa: PLC0415 - only where it is used
            PolicyBuilder,
            Store,
            VerificationError,
        )

        try:
            leaf = x509.load_der_x509_certificate(certificate or b"")
            roots = x509.load_pem_x509_certificates(self._authorities.read_bytes())
            PolicyBuilder().store(Store(roots)).build_client_verifier().verify(leaf, [])
            names = {name.oid: name.value for name in leaf.subject}
        except (ValueError, OSError, VerificationError) as error:
            raise DataError(f"The peer's certificate is not the portal's: {error}") from error
        expected = {
            NameOID.COMMON_NAME: appliance_id,
            NameOID.ORGANIZATION_NAME: self.identity.tenant_id,
        }
        if names != expected:
            raise DataError("The peer's certificate is that of another appliance.")


@dataclass(slots=True)
class _Peer:
    address: PeerAddress
    parts: PeerParts = field(default_factory=PeerParts)
    distrusted_until: float = 0.0


class PeerClient:
    """The peers of one version; see `collector.datasets.fetching.Peers`. Thread-safe."""

    def __init__(
        self,
        tls: PeerTLS,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        ask_seconds: float = ASK_SECONDS,
    ) -> None:
        self._tls = tls
        self._monotonic = monotonic
        self._ask_seconds = ask_seconds
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._asked_at: float | None = None
        self._peers: dict[str, _Peer] = {}
        self._pools: dict[PeerAddress, Pool[HTTPSConnection]] = {}
        self._version_id = ""

    def update(self, version_id: str, peers: Sequence[PeerAddress]) -> None:
        """Ask who has what, unless that was just asked."""
        if not self._asking.acquire(blocking=False):
            return
        try:
            now = self._monotonic()
            if self._asked_at is not None and now - self._asked_at < self._ask_seconds:
                return
            self._version_id = version_id
            with self._lock:
                own_id = self._tls.identity.appliance_id
                self._peers = {
                    address.appliance_id: self._known(address)
                    for address in peers
                    if address.appliance_id != own_id and address.url
                }
                asked = [peer for peer in self._peers.values() if peer.distrusted_until <= now]
            for peer in asked:
                if not peer.parts.is_complete:
                    self._ask(peer)
            self._asked_at = self._monotonic()
        finally:
            self._asking.release()

    def others(self) -> list[str]:
        """Return who answered, and may be fetching the version."""
        now = self._monotonic()
        with self._lock:
            return [own_id for own_id, peer in self._peers.items() if peer.distrusted_until <= now]

    def having(self, place: Place) -> list[Origin]:
        """Return who has a part, in random order: the load spreads."""
        now = self._monotonic()
        with self._lock:
            peers = [
                peer
                for peer in self._peers.values()
                if peer.distrusted_until <= now and peer.parts.has(place)
            ]
        random.shuffle(peers)
        return [_PeerOrigin(self, peer.address) for peer in peers]

    def distrust(self, origin: Origin) -> None:
        """Leave out a peer for a while."""
        if isinstance(origin, _PeerOrigin):
            self._distrust(origin.address.appliance_id)

    def get(self, address: PeerAddress, path: str, headers: dict[str, str]) -> bytes:
        """Return the body of an answer.

        Raises:
            DataError: there is none, or it is no success.
        """
        with self._lock:
            pool = self._pools.setdefault(address, Pool(lambda: self._connect(address)))
        try:
            with pool.borrowed() as connection:
                connection.request("GET", path, headers=headers)
                response = connection.getresponse()
                body = response.read(MAX_ANSWER_BYTES + 1)
                if response.status not in {_OK, _PARTIAL} or len(body) > MAX_ANSWER_BYTES:
                    raise TemporaryDataError(f"{address.url}{path} answered {response.status}")
        except (OSError, HTTPException) as error:
            raise TemporaryDataError(f"{address.url}: {error}") from error
        return body

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            for pool in self._pools.values():
                pool.close()

    @property
    def version_id(self) -> str:
        """The version."""
        return self._version_id

    def _known(self, address: PeerAddress) -> _Peer:
        peer = self._peers.get(address.appliance_id)
        return peer if peer is not None and peer.address == address else _Peer(address)

    def _ask(self, peer: _Peer) -> None:
        try:
            body = self.get(peer.address, f"/v1/versions/{self._version_id}", {})
            peer.parts = msgspec.msgpack.decode(body, type=PeerParts)
        except (DataError, msgspec.MsgspecError):
            self._distrust(peer.address.appliance_id)

    def _distrust(self, appliance_id: str) -> None:
        with self._lock:
            if (peer := self._peers.get(appliance_id)) is not None:
                peer.distrusted_until = self._monotonic() + DISTRUST_SECONDS
                peer.parts = PeerParts()

    def _connect(self, address: PeerAddress) -> HTTPSConnection:
        parts = urlsplit(address.url)
        connection = HTTPSConnection(
            parts.hostname or "",
            parts.port or 443,
            timeout=TIMEOUT_SECONDS,
            context=self._tls.client_context(),
        )
        connection.connect()
        sock = connection.sock
        certificate = (
            sock.getpeercert(binary_form=True) if isinstance(sock, ssl.SSLSocket) else None
        )
        try:
            self._tls.check(certificate, address.appliance_id)
        except DataError:
            connection.close()
            raise
        return connection


class _PeerOrigin:
    """One peer as where parts come from."""

    reads_whole_parts = True

    def __init__(self, client: PeerClient, address: PeerAddress) -> None:
        self.name = address.url
        self.address = address
        self._client = client

    def read(self, part: Part, piece: Piece) -> memoryview:
        """Return a piece."""
        path = f"/v1/versions/{self._client.version_id}/parts/{part.page_index}/{part.part_index}"
        end = piece.part_offset + piece.size_bytes - 1
        body = self._client.get(self.address, path, {"Range": f"bytes={piece.part_offset}-{end}"})
        if len(body) != piece.size_bytes:
            raise TemporaryDataError(f"{self.name} sent {len(body)} of {piece.size_bytes} bytes")
        return memoryview(body)
