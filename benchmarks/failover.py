"""How long samples wait when an access point is lost, and whether samples are lost.

An agent's buffer, sender and prober deliver numbered lines to one of two access points, each a
process that writes what it accepts to a file before it answers. At a random moment the one in use
is killed with SIGKILL (its port then refuses connections), or stopped with SIGSTOP (its port
accepts connections, and nobody answers). There are no heartbeats and long polls, which would notice
sooner.

    seconds_without_delivery    from the loss to the first line at the other access point; with a
                                line every 10 s, up to 10 s of them pass before there is a line
    seconds_late                of the line that waited longest, from its writing to its acceptance
"""

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from benchmarks.shared.document import Figures, Outcome, Promise, median, rounded
from collector.buffering.buffer import DiskBuffer
from collector.buffering.frames import Frame
from collector.config import AgentConfig
from collector.data_dir import Identity
from collector.periodic_task import PeriodicTask
from collector.sending.delivery import Delivery, build_buffer, build_delivery
from core.clock import to_ns, utc_now
from tests.fixtures.polling import eventually
from tests.fixtures.recording_portal import AGENT_TOKEN
from tests.fixtures.recording_process import RecordingProcess, accepted_lines

MOST_SECONDS = 10.0
WAIT_SECONDS = 0.2
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How often an access point is lost, for each interval of lines and kind of loss."""

    repetitions: int = 10
    short_seconds: float = 1.0
    long_seconds: float = 10.0


FULL = Plan()
QUICK = Plan(repetitions=2)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Lose access points, and see when and what arrives."""
    results: dict[str, Any] = {}
    chosen = random.Random(1)  # noqa: S311 - repeatable
    for interval_seconds in (plan.short_seconds, plan.long_seconds):
        for name, number in SIGNALS.items():
            group = f"{name}_every_{interval_seconds:g}_s"
            results[group] = _summary(
                [
                    _lose_one(
                        folder / f"{group}-{repetition}",
                        number,
                        interval_seconds=interval_seconds,
                        after_seconds=chosen.uniform(0, interval_seconds),
                    )
                    for repetition in range(plan.repetitions)
                ]
            )
    short = [group for group in results if group.endswith(f"_{plan.short_seconds:g}_s")]
    without = max(results[group]["most_seconds_without_delivery"] for group in short)
    late = max(group["most_seconds_late"] for group in results.values())
    lost = sum(group["lost_samples"] for group in results.values())
    promises = [
        Promise("no delivery after the loss of an access point", without, MOST_SECONDS, "seconds"),
        Promise("the latest sample of all intervals", late, MOST_SECONDS, "seconds"),
        Promise("lost samples", lost, 0, "samples"),
    ]
    return Outcome(results, promises)


def _summary(repetitions: list[Figures]) -> dict[str, Any]:
    waits = [figures["seconds_without_delivery"] or 0.0 for figures in repetitions]
    delays = [figures["seconds_late"] or 0.0 for figures in repetitions]
    return {
        "median_seconds_without_delivery": median(waits),
        "most_seconds_without_delivery": max(waits),
        "median_seconds_late": median(delays),
        "most_seconds_late": max(delays),
        "lost_samples": sum(figures["lost_samples"] or 0 for figures in repetitions),
        "repetitions": repetitions,
    }


def _lose_one(
    folder: Path, number: signal.Signals, *, interval_seconds: float, after_seconds: float
) -> Figures:
    folder.mkdir()
    accepted = folder / "accepted"
    pair = [RecordingProcess(accepted), RecordingProcess(accepted)]
    try:
        with _delivering(folder, [process.url for process in pair], interval_seconds) as agent:
            delivery, written_at = agent
            # The first choice is made, and something has arrived by it.
            eventually(lambda: _count(accepted, delivery.access_points.state.current))
            time.sleep(after_seconds)
            url = delivery.access_points.current
            lost_at = time.time()
            next(process for process in pair if process.url == url).send_signal(number)
            eventually(lambda: _first_elsewhere(accepted, url, since=lost_at))
        first_at = _first_elsewhere(accepted, url, since=lost_at)
        arrived_at: dict[str, float] = {}
        for at, _, line in accepted_lines(accepted):
            arrived_at.setdefault(line, at)
        delays = [arrived_at[line] - at for line, at in written_at.items() if line in arrived_at]
        return {
            "seconds_without_delivery": rounded(first_at - lost_at),
            "seconds_late": rounded(max(delays)),
            "lost_samples": len(written_at.keys() - arrived_at.keys()),
        }
    finally:
        for process in pair:
            process.end()


def _count(accepted: Path, url: str) -> int:
    return sum(at_url == url for _, at_url, _ in accepted_lines(accepted))


def _first_elsewhere(accepted: Path, url: str, *, since: float) -> float:
    """Return when the first line arrived at another address; 0 if none has."""
    return next((at for at, by, _ in accepted_lines(accepted) if by != url and at >= since), 0.0)


@contextmanager
def _delivering(
    folder: Path, urls: list[str], interval_seconds: float
) -> Iterator[tuple[Delivery, dict[str, float]]]:
    """Write a line at each interval and deliver it; drain the buffer at the end of the block."""
    config = AgentConfig(portal_urls=urls, data_dir=folder)
    identity = Identity(appliance_id="a", tenant_id="t", agent_token=AGENT_TOKEN)
    buffer = build_buffer(config, clock=utc_now)
    delivery = build_delivery(config, identity, buffer, clock=utc_now)
    stop, stop_writing, written_at = Event(), Event(), dict[str, float]()

    def send() -> float:
        if buffer.wait_for_frames(WAIT_SECONDS):
            return delivery.sender.send_next().wait_seconds
        return 0.0

    tasks = [PeriodicTask("sender", send, stop=stop, on_end=delivery.sender.close)]
    if delivery.prober is not None:
        tasks += delivery.prober.tasks(partial(PeriodicTask, stop=stop))
    writer = Thread(target=_write, args=[buffer, written_at, interval_seconds, stop_writing])
    for task in tasks:
        task.start()
    writer.start()
    try:
        yield delivery, written_at
        stop_writing.set()
        writer.join()
        eventually(lambda: buffer.points == 0)
    finally:
        stop_writing.set()
        stop.set()
        for task in tasks:
            task.join(MOST_SECONDS)
        buffer.close()


def _write(
    buffer: DiskBuffer, written_at: dict[str, float], interval_seconds: float, stop: Event
) -> None:
    number = 0
    while True:
        number += 1
        now = utc_now()
        line = f"failover number={number} {to_ns(now)}"
        written_at[line] = now.timestamp()
        buffer.append(Frame(line.encode(), 1, to_ns(now)))
        if stop.wait(interval_seconds):
            return
