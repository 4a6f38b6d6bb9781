"""Transfers to and from the access point in use, for the speed test."""

import os
from collections.abc import Iterable, Iterator, Mapping

import urllib3

from collector.sending.http import HTTP_ERRORS, error_message, root_cause
from collector.sending.portal_connection import PortalConnection
from plugins.base import PluginError, PluginUnavailableError

PATH = "/agent/v1/transfer"
CHUNK_BYTES = 64 * 1024
# Longer than the window of common compression, so that no proxy can compress a transfer.
NOISE_BYTES = 16 * CHUNK_BYTES
OK, NOT_FOUND = 200, 404


class PortalTransfer:
    """Transfers bytes over one keep-alive connection. For one thread.

    Args:
        portal: a connection; a failed test does not switch the agent to another access point.
    """

    def __init__(self, portal: PortalConnection) -> None:
        self._portal = portal

    def download(self, size_bytes: int) -> None:
        """Download this many bytes and discard them.

        Raises:
            PluginError: the transfer failed.
        """
        received_bytes = self._request("GET", f"{PATH}?size_bytes={size_bytes}")
        if received_bytes != size_bytes:
            raise PluginError(
                f"{self._portal.access_points.current} sent {received_bytes} of {size_bytes} bytes"
            )

    def upload(self, size_bytes: int) -> None:
        """Upload this many bytes, which the portal discards.

        Raises:
            PluginError: the transfer failed.
        """
        headers = {
            "Content-Length": str(size_bytes),
            "Content-Type": "application/octet-stream",
        }
        self._request("POST", PATH, body=_noise(size_bytes), headers=headers)

    def close(self) -> None:
        """Close the connection; the next transfer opens a new one."""
        self._portal.close()

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Return the length of the response, which is streamed."""
        portal = self._portal
        address = portal.access_points.current
        url, seconds = f"{address}{path}", portal.timeout_seconds
        try:
            response = portal.http.pool_for(url).request(
                method,
                url,
                body=body,
                headers={
                    "Accept-Encoding": "identity",
                    **portal.auth_headers(url),
                    **(headers or {}),
                },
                timeout=urllib3.Timeout(connect=seconds, read=seconds),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            if response.status != OK:
                raise _plugin_error(response, url.partition("?")[0])
            received_bytes = sum(len(chunk) for chunk in response.stream(CHUNK_BYTES))
            response.release_conn()
        except HTTP_ERRORS as error:
            self.close()
            raise PluginError(f"{address} does not answer: {root_cause(error)}") from error
        return received_bytes


def _noise(size_bytes: int) -> Iterator[bytes]:
    """Yield this many incompressible bytes."""
    noise, sent_bytes = os.urandom(min(size_bytes, NOISE_BYTES)), 0
    while sent_bytes < size_bytes:
        offset = sent_bytes % NOISE_BYTES
        chunk = noise[offset : offset + min(CHUNK_BYTES, size_bytes - sent_bytes)]
        sent_bytes += len(chunk)
        yield chunk


def _plugin_error(response: urllib3.BaseHTTPResponse, address: str) -> PluginError:
    reason = error_message(response.data, default=response.reason or "")
    if response.status == NOT_FOUND:
        return PluginUnavailableError(f"{address} offers no speed test: {reason}")
    return PluginError(f"{address} answered {response.status}: {reason}")
