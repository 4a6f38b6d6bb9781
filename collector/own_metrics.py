"""What the agent tells of itself: measurement `agent`, and `plugin` for each plugin."""

import time
from collections.abc import Callable, Mapping

from collector.buffering.buffer import DiskBuffer
from collector.reading.plugin_host import PluginHost
from collector.samples import EARLY_RATIO, SampleFlow
from collector.sending.addresses import PortalAddresses
from collector.sending.sender import Sender
from collector.usage import OwnUsage
from core.clock import Clock, to_ns
from plugins.base import present
from timeseries.points import Point


class OwnMetrics:
    """Adds the agent's own points to the samples, now and then.

    Args:
        more: gives further fields of the agent's point; None is left out.
    """

    def __init__(
        self,
        host: PluginHost,
        buffer: DiskBuffer,
        sender: Sender,
        *,
        addresses: PortalAddresses,
        flow: SampleFlow,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
        more: Callable[[], Mapping[str, float | int | None]] = dict,
    ) -> None:
        self._more = more
        self._host = host
        self._buffer = buffer
        self._sender = sender
        self._addresses = addresses
        self._flow = flow
        self._clock = clock
        self._monotonic = monotonic
        self._usage = OwnUsage(lambda: host.child_pids)
        self._due_seconds: float | None = None

    def add_when_due(self, interval_seconds: float) -> float:
        """Add the points when it is time; return the seconds until the next."""
        now = self._monotonic()
        if self._due_seconds is not None:
            left_seconds = self._due_seconds - now
            if EARLY_RATIO * interval_seconds < left_seconds <= interval_seconds:
                return left_seconds
        self._due_seconds = now + interval_seconds
        instant_at = self._clock()
        self._flow.add([self._agent_point(to_ns(instant_at)), *self._host.own_points(instant_at)])
        return interval_seconds

    def _agent_point(self, time_ns: int) -> Point:
        buffer, counters = self._buffer, self._sender.counters
        fields = present(
            {
                "buffered_bytes": buffer.size_bytes,
                "buffered_points": buffer.points,
                "backlog_points": buffer.backlog_points,
                "dropped_points": buffer.dropped_points,
                "dropped_by_age_points": buffer.dropped_by_age_points,
                "dropped_by_size_points": buffer.dropped_by_size_points,
                "damaged_bytes": buffer.damaged_bytes,
                "sent_points": counters.sent_points,
                "send_failures": counters.failures,
                "undeliverable_lines": counters.undeliverable_lines,
                "gather_failures": self._host.gather_failures,
                "access_point_latency_seconds": self._addresses.latency_seconds,
                **self._more(),
                **self._usage.fields(),
            }
        )
        return Point("agent", {}, fields, time_ns)
