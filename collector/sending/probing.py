"""Probes of access points: `GET /health`, each over a new connection.

Rounds compare the addresses, about once a minute. A suspicion is followed up at once: the address
in use and the next ones are probed together. A portal with one address gets no probes.

From a request that a lost address does not answer to the next one elsewhere it takes 2.5 s until it
is overdue, and 2 s for the probes.
"""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from random import Random

from collector.periodic_task import PeriodicTask
from collector.sending.access_points import AccessPoints
from collector.sending.http import HTTP_ERRORS, HTTPClient
from collector.tls import TLSContexts

ROUND_SECONDS = 60.0
ROUND_JITTER = 0.25
# With addresses that were never probed; also the longest wait before the first round.
NEW_ROUND_SECONDS = 5.0
# Agents get a new list within seconds of each other, and use it over this time.
RELISTED_SECONDS = 30.0
PROBE_SECONDS = 3.0
SUSPICION_PROBE_SECONDS = 2.0
IDLE_SECONDS = 600.0
# Few, so that they don't measure each other.
PARALLEL_PROBES = 4
OK = 200


class AccessPointProber:
    """Two tasks of the agent, which do nothing while there is one address.

    Args:
        access_points: what to probe.
        tls: for https.
        timeout_seconds: of requests; probes take a few seconds at most.
        random: jitter.
        monotonic: measures durations.
    """

    def __init__(
        self,
        access_points: AccessPoints,
        *,
        tls: TLSContexts | None = None,
        timeout_seconds: float = 10.0,
        random: Random | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access_points = access_points
        self._tls = tls or TLSContexts()
        self._timeout_seconds = timeout_seconds
        self._random = random or Random()  # noqa: S311 - jitter, not a secret
        self._monotonic = monotonic
        self._due_at = monotonic() + self._random.uniform(0, NEW_ROUND_SECONDS)
        self._revision = access_points.revision

    def tasks(self, make_task: Callable[..., PeriodicTask]) -> list[PeriodicTask]:
        """Return the tasks, made by a function with the arguments of `PeriodicTask`."""
        return [
            make_task("access-points", self.probe_when_due, wake=self._access_points.relisted),
            make_task("failover", self.check, wake=self._access_points.suspected),
        ]

    def probe_when_due(self) -> float:
        """Probe a round if it is due; return the seconds until the next one."""
        points = self._access_points
        points.relisted.clear()
        if points.revision != self._revision:
            self._revision = points.revision
            self._due_at = self._monotonic() + self._random.uniform(0, RELISTED_SECONDS)
        if len(points) == 1:
            return IDLE_SECONDS
        if (left_seconds := self._due_at - self._monotonic()) > 0:
            return left_seconds
        points.record_probes(self.probe_all(points.urls_to_probe(), seconds=PROBE_SECONDS))
        interval_seconds = NEW_ROUND_SECONDS if points.has_new else ROUND_SECONDS
        wait_seconds = interval_seconds * self._random.uniform(1 - ROUND_JITTER, 1 + ROUND_JITTER)
        self._due_at = self._monotonic() + wait_seconds
        return wait_seconds

    def check(self) -> float:
        """Follow up a suspicion, and store what has changed; return the seconds until the next."""
        points = self._access_points
        points.suspected.clear()
        points.save()
        if len(points) == 1:
            return IDLE_SECONDS
        if suspicion := points.suspicion():
            urls = points.urls_to_judge()
            points.judge(suspicion, self.probe_all(urls, seconds=SUSPICION_PROBE_SECONDS))
        return points.seconds_to_suspicion()

    def probe_all(self, urls: Sequence[str], *, seconds: float) -> dict[str, float | None]:
        """Return the latency of each address, a few at once; None for those that aren't healthy."""
        seconds = min(seconds, self._timeout_seconds)
        executor = ThreadPoolExecutor(min(PARALLEL_PROBES, len(urls)), "access-point-probe")
        probes = {url: executor.submit(self.probe, url, seconds=seconds) for url in urls}
        # Connecting and reading may take the time twice, names may take longer to resolve.
        wait(probes.values(), timeout=seconds * math.ceil(len(urls) / PARALLEL_PROBES))
        latencies_seconds = {
            url: probe.result() if probe.done() else None for url, probe in probes.items()
        }
        executor.shutdown(wait=False, cancel_futures=True)
        return latencies_seconds

    def probe(self, url: str, *, seconds: float = PROBE_SECONDS) -> float | None:
        """Return the latency of an address in seconds; None if it isn't healthy."""
        http = HTTPClient(self._tls)
        began = time.perf_counter()
        try:
            response = http.request(
                "GET",
                f"{url}/health",
                headers={"Connection": "close"},
                timeout_seconds=seconds,
            )
        except HTTP_ERRORS:
            return None
        finally:
            http.close()
        return time.perf_counter() - began if response.status == OK else None
