"""The end of an outage: the real sender drains a buffer to a real gateway, and new samples come."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from benchmarks.shared.big_appliance import TickTemplate
from benchmarks.shared.document import percentile, rounded
from benchmarks.shared.meter import cpu_seconds
from collector.buffering.buffer import Batch, DiskBuffer
from collector.config import AgentConfig
from collector.data_dir import load_identity
from collector.sending.delivery import BUFFER_NAME, build_delivery
from collector.sending.sender import Sender
from core.clock import utc_now

IDLE_SECONDS = 0.2
LIVE_INTERVAL_SECONDS = 1.0


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

    def append_live(self, template: TickTemplate) -> None:
        """Append a tick that was read just now."""
        frame = template.frame(utc_now())
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
    config: AgentConfig, templates: list[TickTemplate], *, seconds: float, server_pid: int
) -> dict[str, Any]:
    """Drain an agent's buffer for a while and return the figures; it keeps what is left."""
    began = time.perf_counter()
    buffer = TimedBuffer(config)
    open_seconds, waiting = time.perf_counter() - began, buffer.points
    with sending(buffer, config) as sender:
        own, server, began = time.process_time(), cpu_seconds(server_pid), time.perf_counter()
        _live_ticks(buffer, templates, seconds=seconds)
        took = time.perf_counter() - began
        own, server = time.process_time() - own, cpu_seconds(server_pid) - server
        sent, left = buffer.backlog_sent, buffer.backlog_points
    delays = buffer.delays_seconds
    return {
        "limit_points_per_second": config.backlog_points_per_second,
        "open_seconds": rounded(open_seconds),
        "waiting_points": waiting,
        "slice_seconds": rounded(took),
        "sent_points": sent,
        "points_per_second": rounded(sent / took),
        "left_points": left,
        "failed_requests": sender.counters.failures,
        "whole_backlog_hours": rounded(waiting * took / sent / 3600) if sent else None,
        "sender_cpu_percent": rounded(100 * own / took),
        "server_cpu_percent": rounded(100 * server / took),
        "live_ticks": len(delays),
        **{f"live_delay_seconds_p{percent}": percentile(delays, percent) for percent in (50, 99)},
    }


@contextmanager
def sending(buffer: DiskBuffer, config: AgentConfig) -> Iterator[Sender]:
    """Run the agent's sender in a thread for the length of the block; then close the buffer."""
    identity, stop = load_identity(config.data_dir), Event()
    sender = build_delivery(config, identity, buffer, clock=utc_now).sender

    def run() -> None:
        while not stop.is_set():
            if buffer.wait_for_frames(IDLE_SECONDS):
                stop.wait(sender.send_next().wait_seconds)

    thread = Thread(target=run, name="sender", daemon=True)
    thread.start()
    try:
        yield sender
    finally:
        stop.set()
        buffer.stop_waiting()
        thread.join()
        sender.close()
        buffer.close()


def _live_ticks(buffer: TimedBuffer, templates: list[TickTemplate], *, seconds: float) -> None:
    """Append a live tick now and then, for some seconds or until nothing waits any more."""
    began, turn = time.monotonic(), 0
    while (now := time.monotonic()) - began < seconds and (buffer.points or not turn):
        buffer.append_live(templates[turn % len(templates)])
        turn += 1
        time.sleep(max(0.0, began + turn * LIVE_INTERVAL_SECONDS - now))
