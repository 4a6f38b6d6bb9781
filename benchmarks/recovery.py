"""The end of an outage: the real sender drains a buffer to a real gateway, and new samples come."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread

from benchmarks.figures import percentile, rounded
from benchmarks.meter import cpu_ns
from benchmarks.outage import TickTemplate
from collector.buffering.buffer import Batch, DiskBuffer
from collector.config import AgentConfig
from collector.data_dir import load_identity
from collector.sending.delivery import BUFFER_NAME, build_delivery
from collector.sending.sender import Sender
from core.clock import Clock, utc_now

NO_LIMIT_POINTS_PER_SECOND = 1e12
IDLE_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The time to watch a drain, and the interval of live ticks meanwhile."""

    seconds: float
    live_interval_seconds: float = 1.0


class TimedBuffer(DiskBuffer):
    """A buffer that notes when each live frame came and how long it waited to be acknowledged."""

    def __init__(self, config: AgentConfig) -> None:
        super().__init__(
            config.data_dir / BUFFER_NAME,
            max_bytes=config.buffer_max_bytes,
            max_age_seconds=config.buffer_max_age_seconds,
            clock=utc_now,
            backlog_points_per_second=config.backlog_points_per_second,
        )
        self._came: dict[int, float] = {}
        self.delays_seconds: list[float] = []
        self.backlog_sent = 0

    def append_live(self, template: TickTemplate, clock: Clock) -> None:
        """Append a tick that was read just now."""
        frame = template.frame(clock())
        self._came[frame.time_ns] = time.perf_counter()
        self.append(frame)

    def acknowledge(self, batch: Batch) -> None:
        """Let go of a batch and note how long its live frames have waited."""
        super().acknowledge(batch)
        now = time.perf_counter()
        for frame in batch.frames:
            came = self._came.pop(frame.time_ns, None)
            if came is None:
                self.backlog_sent += frame.points
            else:
                self.delays_seconds.append(now - came)


def drain(
    config: AgentConfig, templates: list[TickTemplate], *, part: Slice, server_pid: int
) -> dict[str, object]:
    """Drain an agent's buffer for a while and return the figures; it keeps what is left."""
    opened = time.perf_counter()
    buffer = TimedBuffer(config)
    open_seconds = time.perf_counter() - opened
    waiting = buffer.points
    with _sending(buffer, config) as (sender, stop):
        own_ns, server_ns, began = time.process_time_ns(), cpu_ns(server_pid), time.perf_counter()
        _live_ticks(buffer, templates, part=part, is_done=lambda: not buffer.points)
        took_seconds = time.perf_counter() - began
        sent, left = buffer.backlog_sent, buffer.backlog_points
        own_ns, server_ns = time.process_time_ns() - own_ns, cpu_ns(server_pid) - server_ns
        failures = sender.counters.failures
        stop.set()
    rate = sent / took_seconds
    return {
        "limit_points_per_second": config.backlog_points_per_second,
        "open_seconds": rounded(open_seconds),
        "waiting_points": waiting,
        "slice_seconds": rounded(took_seconds),
        "sent_points": sent,
        "points_per_second": rounded(rate),
        "left_points": left,
        "failed_requests": failures,
        "whole_backlog_hours": rounded(waiting / rate / 3600) if rate else None,
        "sender_cpu_percent": rounded(100 * own_ns / 1e9 / took_seconds),
        "server_cpu_percent": rounded(100 * server_ns / 1e9 / took_seconds),
        "live_ticks": len(buffer.delays_seconds),
        "live_delay_seconds_p50": percentile(buffer.delays_seconds, 50),
        "live_delay_seconds_p99": percentile(buffer.delays_seconds, 99),
        "live_delay_seconds_max": percentile(buffer.delays_seconds, 100),
    }


class _sending:  # noqa: N801 - a context manager
    """Runs the sender in a thread for the length of the block."""

    def __init__(self, buffer: DiskBuffer, config: AgentConfig) -> None:
        self._buffer = buffer
        self._stop = Event()
        identity = load_identity(config.data_dir)
        self._sender = build_delivery(config, identity, buffer, clock=utc_now).sender
        self._thread = Thread(target=self._run, name="sender", daemon=True)

    def __enter__(self) -> tuple[Sender, Event]:
        self._thread.start()
        return self._sender, self._stop

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._buffer.stop_waiting()
        self._thread.join()
        self._sender.close()
        self._buffer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._buffer.wait_for_frames(IDLE_SECONDS):
                self._stop.wait(self._sender.send_next().wait_seconds)


def _live_ticks(
    buffer: TimedBuffer,
    templates: list[TickTemplate],
    *,
    part: Slice,
    is_done: Callable[[], bool],
) -> None:
    """Append a live tick now and then, until the slice is over or nothing waits any more."""
    began = time.monotonic()
    turn = 0
    while (now := time.monotonic()) - began < part.seconds and not (turn and is_done()):
        buffer.append_live(templates[turn % len(templates)], utc_now)
        turn += 1
        time.sleep(max(0.0, began + turn * part.live_interval_seconds - now))
