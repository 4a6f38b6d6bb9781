"""A relay as a whole: its parts, what runs beside requests, its metrics and reports."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from resource import getpagesize
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from collector.buffering.undeliverable import UndeliverableLines
from core.clock import Clock, from_ns, to_ns, utc_now
from core.errors import UnavailableError
from core.quantities import format_duration
from protocol.relays import REPORT_SECONDS, RelayReport
from relay.app import RelayAPI
from relay.drain import Drain
from relay.errors import UpstreamAwayError, UpstreamRefusedError
from relay.passing import Passing
from relay.polls import Polls
from relay.registry import Registry
from relay.salvage import Salvage
from relay.sender import Sender
from relay.settings import RelaySettings, relay_token, upstream_tls
from relay.spool import Spool, SpoolLevel
from relay.upstream import State, Upstream

log = logging.getLogger(__name__)

RESTART_SECONDS = 5.0
MAX_UNDELIVERABLE_BYTES = 64 * 2**20
_STATM = Path("/proc/self/statm")


class Relay:
    """Everything that a relay is made of. Made in the event loop that serves it.

    Args:
        settings: of the relay.
        registry: who may authenticate, as read from disk or from the portal.
        clock: the time.

    Attributes:
        app: the agent API.
    """

    def __init__(
        self, settings: RelaySettings, registry: Registry, *, clock: Clock = utc_now
    ) -> None:
        token, tls = relay_token(settings), upstream_tls(settings)
        self._settings = settings
        self._clock = clock
        self._started_at = clock()
        self._registry = registry
        self.spool = Spool(
            settings.spool_dir,
            max_bytes=settings.max_spool_bytes,
            min_free_bytes=settings.min_free_disk_bytes,
        )
        self.upstream = Upstream(settings.upstream, token=token, tls=tls)
        self.sender = Sender(self.upstream, self.spool)
        self.undeliverable = UndeliverableLines(
            settings.undeliverable_file, max_bytes=MAX_UNDELIVERABLE_BYTES
        )
        self.salvage = Salvage(self.upstream, self.undeliverable, clock=clock)
        self.drain = Drain(
            self.upstream,
            self.spool,
            self.sender,
            self.salvage,
            max_bytes_per_second=settings.max_drain_bytes_per_second,
        )
        self.polls = Polls(self.upstream)
        self.passing = Passing(
            settings.upstream,
            token=token,
            tls=tls,
            max_connections=settings.max_upstream_connections,
            max_tunnels=settings.max_tunnels,
        )
        self.app = RelayAPI(
            registry,
            self.sender,
            self.polls,
            self.passing,
            max_body_bytes=settings.max_body_bytes,
            problem=self.problem,
            clock=clock,
        )

    @asynccontextmanager
    async def running(self, *, answered_requests: Callable[[], float]) -> AsyncIterator[None]:
        """Do beside requests what has to be done, until the block ends.

        Args:
            answered_requests: returns how many this process has answered.
        """
        tasks = [
            asyncio.create_task(_forever(name, work))
            for name, work in (
                ("registry", lambda: self._registry.follow(self.upstream)),
                ("drain", self.drain.run),
                ("polls", self.polls.run),
                ("reports", lambda: self._report(answered_requests)),
            )
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.sender.drained()
            await asyncio.to_thread(self.spool.close)
            await self.passing.close()
            await self.upstream.close()

    def problem(self) -> str:
        """Return why samples can't be accepted; "" if they can."""
        if not self._registry.is_fresh:
            age_seconds = self._registry.age_seconds
            age = "never" if age_seconds is None else f"{format_duration(age_seconds)} ago"
            return f"The portal has confirmed the registry of agents {age}."
        if self.upstream.state is State.REFUSED:
            return self.upstream.reason
        if not self.upstream.is_up:
            self.spool.check_room()
            return self.spool.problem
        return ""

    def probe_samples(self) -> None:
        """Raise `UnavailableError` if samples can't be accepted."""
        problem = self.problem()
        if problem:
            raise UnavailableError(problem)

    def probe_upstream(self) -> None:
        """Raise `UnavailableError` if the portal does not answer."""
        if not self.upstream.is_up:
            raise UnavailableError(self.upstream.reason)

    def probe_undeliverable(self) -> None:
        """Raise `UnavailableError` if there are lines that the portal did not store."""
        if self.undeliverable.size_bytes:
            raise UnavailableError(
                f"{self._settings.undeliverable_file} has lines that the portal did not store, "
                "with the reasons. Send what you need of them again, and delete the file."
            )

    async def _report(self, answered_requests: Callable[[], float]) -> None:
        """Report to the portal, every few seconds."""
        readings = (time.monotonic(), time.process_time(), answered_requests())
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            before = readings
            readings = (time.monotonic(), time.process_time(), answered_requests())
            seconds, cpu_seconds, requests = (
                new - old for new, old in zip(readings, before, strict=True)
            )
            level = await asyncio.to_thread(self.spool.level)
            report = RelayReport(
                version=version("vedette"),
                started_at_ns=to_ns(self._started_at),
                agents=self.app.active_agents(),
                spool_bytes=level.waiting_bytes,
                max_spool_bytes=self._settings.max_spool_bytes,
                oldest_spooled_at_ns=level.oldest_ns,
                refused_writes=self.sender.refused,
                undeliverable_bytes=self.undeliverable.size_bytes,
                requests_per_second=requests / seconds,
                cpu_percent=100 * cpu_seconds / seconds,
                memory_bytes=_resident_bytes(),
            )
            try:
                await self.upstream.report(report)
            except (UpstreamAwayError, UpstreamRefusedError) as error:
                log.debug("the report was not sent: %s", error.message)


class RelayCollector(Collector):
    """The metrics of a relay, read when they are scraped."""

    def __init__(self, relay: Relay, registry: Registry, *, clock: Clock = utc_now) -> None:
        self._relay = relay
        self._registry = registry
        self._clock = clock

    def describe(self) -> Iterator[Metric]:
        """Return nothing: names are not checked before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return the metrics."""
        relay = self._relay
        level = relay.spool.level()
        age_seconds = self._registry.age_seconds
        gauges = {
            "agents": ("Agents that sent something in the last minute.", relay.app.active_agents()),
            "registry_agents": ("Agents that may authenticate.", self._registry.size),
            "registry_age_seconds": (
                "Time since the portal confirmed the registry.",
                float("nan") if age_seconds is None else age_seconds,
            ),
            "polls": ("Polls of desired states that wait.", relay.polls.waiting),
            "upstream_up": ("Whether the portal answers.", float(relay.upstream.is_up)),
            "upstream_seconds": (
                "Time of a request of samples to the portal, a moving average.",
                relay.upstream.latency_seconds,
            ),
            "spool_bytes": ("Writes on disk that wait for the portal.", level.waiting_bytes),
            "spool_disk_bytes": ("Files of the spool.", level.disk_bytes),
            "undeliverable_bytes": (
                "Lines on disk that the portal did not store.",
                relay.undeliverable.size_bytes,
            ),
            "spool_oldest_seconds": ("Age of the oldest write that waits.", self._age(level)),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"vedette_relay_{name}", text, value)
        yield from self._counters(level)

    def _counters(self, level: SpoolLevel) -> Iterator[Metric]:
        sender, drain, passing = self._relay.sender, self._relay.drain, self._relay.passing
        writes = CounterMetricFamily(
            "vedette_relay_writes", "Writes of agents, by what became of them.", labels=["outcome"]
        )
        outcomes = {
            "forwarded": sender.forwarded,
            "spooled": sender.spooled,
            "refused": sender.refused,
            "delivered": drain.delivered,
            "rejected": self._relay.salvage.rejected,
            "revoked": drain.revoked,
        }
        for outcome, count in outcomes.items():
            writes.add_metric([outcome], count)
        yield writes
        passed = CounterMetricFamily(
            "vedette_relay_passed_requests", "Requests passed on.", labels=["outcome"]
        )
        passed.add_metric(["answered"], passing.passed)
        passed.add_metric(["failed"], passing.failed)
        yield passed
        yield CounterMetricFamily(
            "vedette_relay_damaged_bytes",
            "Bytes of the spool that could not be read back.",
            level.damaged_bytes,
        )

        yield CounterMetricFamily(
            "vedette_relay_undeliverable_lines",
            "Lines that the portal did not store.",
            self._relay.salvage.undeliverable_lines,
        )

    def _age(self, level: SpoolLevel) -> float:
        if not level.oldest_ns:
            return 0.0
        return max(0.0, (self._clock() - from_ns(level.oldest_ns)).total_seconds())


def _resident_bytes() -> int:
    return int(_STATM.read_text(encoding="ascii").split()[1]) * getpagesize()


async def _forever(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do work that should never end; begin anew after a bug, which is logged."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("the task %s failed, starting it again", name)
        await asyncio.sleep(RESTART_SECONDS)
