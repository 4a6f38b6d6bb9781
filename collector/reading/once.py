"""Single readings of plugins without a running agent, for `vedette agent once`."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

from collector.errors import ReadingTimedOutError
from collector.reading.plugin_reader import PluginPlan, PluginReader, ReadResult
from collector.reading.worker_process import WorkerProcess, open_plugin
from core.clock import Clock
from plugins.base import MetricKind, PluginContext
from timeseries.points import Point

# Plugins with a long interval are expensive: they are not read twice.
EXPENSIVE_INTERVAL_SECONDS = 60.0
SECONDS_BETWEEN_READINGS = 1.0
# For a program to write what is due.
MARGIN_SECONDS = 0.5


def read_once(
    plans: Iterable[PluginPlan],
    context: PluginContext,
    *,
    clock: Clock,
    wait: Callable[[float], None],
) -> list[ReadResult]:
    """Return a reading of each plugin, within its time limit.

    Args:
        plans: what to read.
        context: what plugins share.
        clock: the time.
        wait: waits before plugins whose rates need another reading are read again, by default
            this many seconds.
    """
    workers: dict[str, WorkerProcess] = {}
    threads: dict[str, _Thread] = {}
    readers = [
        PluginReader(plan, partial(open_plugin, plan, context, workers), anchor_seconds=0.0)
        for plan in plans
    ]
    try:
        readings = {reader: _read(reader, threads, clock) for reader in readers}
        rounds = 0
        second_readers = [
            reader for reader, reading in readings.items() if _needs_second(reader.plan, reading)
        ]
        while second_readers:
            wait(max(map(_seconds_to_rates, second_readers)))
            readings |= {
                reader: _merged(readings[reader], _read(reader, threads, clock))
                for reader in second_readers
            }
            rounds += 1
            second_readers = [
                reader
                for reader in second_readers
                if reader.plan.plugin_class.traits.intervals_to_rates > rounds
            ]
        return list(readings.values())
    finally:
        for reader in readers:
            if not reader.is_stuck:
                reader.close()
        for worker in workers.values():
            worker.close()
        for thread in threads.values():
            thread.stop()


class _Thread:
    """A thread that reads plugins; it is abandoned when one hangs.

    A worker process dies with the thread that started it, so that all its readings need the same.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], ReadResult] | None] = SimpleQueue()
        self._results: SimpleQueue[ReadResult] = SimpleQueue()
        Thread(target=self._run, daemon=True).start()

    def run(self, task: Callable[[], ReadResult], *, timeout_seconds: float) -> ReadResult | None:
        """Return the task's result; None after the timeout."""
        self._tasks.put(task)
        try:
            return self._results.get(timeout=timeout_seconds)
        except Empty:
            return None

    def stop(self) -> None:
        """End the thread."""
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            self._results.put(task())


def _read(reader: PluginReader, threads: dict[str, _Thread], clock: Clock) -> ReadResult:
    """Read in the plugin's read thread, within its time limit."""
    plan = reader.plan
    thread = threads.get(plan.thread) or _Thread()
    threads[plan.thread] = thread
    reading = thread.run(lambda: reader.gather(clock), timeout_seconds=plan.watchdog_seconds)
    if reading is not None:
        return reading
    reader.is_stuck = True
    del threads[plan.thread]
    error = ReadingTimedOutError(f"no response within {plan.time_limit_seconds:g} s")
    return ReadResult([], error, plan.time_limit_seconds)


def _merged(first: ReadResult, second: ReadResult) -> ReadResult:
    """Return the second reading, with what only the first has: some values are read less often."""
    if second.error is not None:
        return second
    points = {_series(point): point for point in first.points}
    for point in second.points:
        former = points.pop(_series(point), point)
        points[_series(point)] = replace(point, fields={**former.fields, **point.fields})
    return replace(second, points=list(points.values()))


def _series(point: Point) -> tuple[object, ...]:
    return point.measurement, *sorted(point.tags.items())


def _seconds_to_rates(reader: PluginReader) -> float:
    """Return how long to wait before another reading."""
    plan = reader.plan
    if not plan.plugin_class.traits.intervals_to_rates:
        return SECONDS_BETWEEN_READINGS
    return plan.interval_seconds + MARGIN_SECONDS


def _needs_second(plan: PluginPlan, reading: ReadResult) -> bool:
    """Return whether a second reading has more values: rates need two."""
    if reading.error is not None:
        return False
    if not reading.points:
        return True
    if plan.plugin_class.traits.intervals_to_rates:
        return True
    has_rates = any(metric.kind is MetricKind.RATE for metric in plan.plugin_class.metrics)
    interval_seconds = plan.plugin_class.traits.interval_seconds or 0.0
    return has_rates and interval_seconds < EXPENSIVE_INTERVAL_SECONDS
