"""Bytes to and from the access point in use, for the speed test to time."""

import os
from collections.abc import Iterable, Iterator, Mapping

import urllib3

from collector.certificates.own_certificate import OwnCertificate
from collector.sending.addresses import PortalAddresses
from collector.sending.answers import root_cause, sentence_of
from collector.sending.connections import Connections, HTTPFailure
from collector.sending.tls import TLSContexts
from plugins.base import PluginError, PluginUnavailableError

PATH = "/agent/v1/transfer"
CHUNK_BYTES = 64 * 1024
# Farther apart than any common compression looks back, so that no proxy shortens the way.
NOISE_BYTES = 16 * CHUNK_BYTES
OK, NOT_FOUND = 200, 404


class PortalTransfer:
    """Moves bytes over one kept connection. Not to be shared by threads.

    Args:
        addresses: the portal's access points; a test never moves the agent to another one.
        agent_token: this appliance's secret.
        timeout_seconds: how long the line may stand still.
        tls: whom to trust and what to show.
        certificate: what the portal gave to show; it may make the secret needless.
    """

    def __init__(
        self,
        addresses: PortalAddresses,
        *,
        agent_token: str,
        timeout_seconds: float = 10.0,
        tls: TLSContexts | None = None,
        certificate: OwnCertificate | None = None,
    ) -> None:
        self._certificate = certificate
        self._addresses = addresses
        self._timeout = urllib3.Timeout(connect=timeout_seconds, read=timeout_seconds)
        self._proof = {"Authorization": f"Bearer {agent_token}"}
        self._connections = Connections(tls)

    def download(self, size_bytes: int) -> None:
        """Fetch so many bytes and forget them.

        Raises:
            PluginError: the access point did not send them.
        """
        received_bytes = self._ask("GET", f"{PATH}?size_bytes={size_bytes}")
        if received_bytes != size_bytes:
            raise PluginError(
                f"{self._addresses.current} sent {received_bytes} of {size_bytes} bytes"
            )

    def upload(self, size_bytes: int) -> None:
        """Send so many bytes, which the access point forgets.

        Raises:
            PluginError: the access point did not take them.
        """
        headers = {
            "Content-Length": str(size_bytes),
            "Content-Type": "application/octet-stream",
        }
        self._ask("POST", PATH, body=_noise(size_bytes), headers=headers)

    def close(self) -> None:
        """Let the connection go; the next transfer opens another."""
        self._connections.close()

    def _ask(
        self,
        method: str,
        path: str,
        *,
        body: Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Return the length of the answer, of which no more than a piece is kept."""
        url = f"{self._addresses.current}{path}"
        try:
            response = self._connections.pool_for(url).request(
                method,
                url,
                body=body,
                headers={**self._headers_for(url), **(headers or {})},
                timeout=self._timeout,
                retries=False,
                redirect=False,
                preload_content=False,
            )
            if response.status != OK:
                raise _refusal(response, url.partition("?")[0])
            received_bytes = sum(len(piece) for piece in response.stream(CHUNK_BYTES))
            response.release_conn()
        except HTTPFailure as error:
            self.close()
            raise PluginError(
                f"{self._addresses.current} does not answer: {root_cause(error)}"
            ) from error
        return received_bytes

    def _headers_for(self, url: str) -> Mapping[str, str]:
        plain = {"Accept-Encoding": "identity"}
        if self._certificate is not None and self._certificate.is_enough_for(url):
            return plain
        return plain | self._proof


def _noise(size_bytes: int) -> Iterator[bytes]:
    """Yield so many bytes that can't be compressed."""
    noise, sent_bytes = os.urandom(min(size_bytes, NOISE_BYTES)), 0
    while sent_bytes < size_bytes:
        offset = sent_bytes % NOISE_BYTES
        piece = noise[offset : offset + min(CHUNK_BYTES, size_bytes - sent_bytes)]
        sent_bytes += len(piece)
        yield piece


def _refusal(response: urllib3.BaseHTTPResponse, address: str) -> PluginError:
    sentence = sentence_of(response.data, otherwise=response.reason or "")
    if response.status == NOT_FOUND:
        return PluginUnavailableError(f"{address} offers no speed test: {sentence}")
    return PluginError(f"{address} answered {response.status}: {sentence}")
