"""Probes: how fast, and whether, each access point says that it is healthy."""

import time

from collector.sending.addresses import PortalAddresses
from collector.sending.connections import Connections, HTTPFailure
from collector.sending.tls import TLSContexts

PROBE_EVERY_SECONDS = 60.0
OK = 200


class AccessPointProber:
    """Asks every access point in turn; a loop of the agent when there is more than one.

    Each question opens a connection of its own, so that the way, TLS and the server are timed
    alike for all.
    """

    def __init__(
        self,
        addresses: PortalAddresses,
        *,
        tls: TLSContexts | None = None,
        timeout_seconds: float = 10.0,
    ) -> None:
        self._addresses = addresses
        self._tls = tls or TLSContexts()
        self._timeout_seconds = timeout_seconds

    def step(self) -> float:
        """Ask all of them once and return how long to wait for the next time."""
        self._addresses.mark_probed({url: self.probe(url) for url in self._addresses.urls})
        return PROBE_EVERY_SECONDS

    def probe(self, url: str) -> float | None:
        """Return the seconds until an address said that it is healthy; None when it did not."""
        connections = Connections(self._tls)
        began = time.perf_counter()
        try:
            response = connections.request(
                "GET",
                f"{url}/health",
                headers={"Connection": "close"},
                timeout_seconds=(self._timeout_seconds, self._timeout_seconds),
            )
        except HTTPFailure:
            return None
        finally:
            connections.close()
        return time.perf_counter() - began if response.status == OK else None
