"""Reading plugins now, outside an agent: what `vedette agent once` shows."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Thread

from collector.errors import ReadingTimedOutError
from collector.reading.child_plugin import ChildPlugin
from collector.reading.child_process import ChildProcess
from collector.reading.readers import PluginPlan
from core.clock import Clock
from plugins.base import MetricKind, Plugin, PluginContext
from timeseries.points import Point

# Plugins that are read this rarely by themselves cost something: they are not read twice.
RARE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class OneReading:
    """What a plugin gave; `fault` says why it gave nothing."""

    plugin: str
    points: tuple[Point, ...]
    fault: Exception | None


def read_once(
    plans: Iterable[PluginPlan],
    context: PluginContext,
    *,
    clock: Clock,
    wait: Callable[[], None],
) -> list[OneReading]:
    """Return a reading of each plugin, under its own time limit.

    Args:
        wait: called once before plugins whose rates need two readings are read again.
    """
    children: dict[str, ChildProcess] = {}
    workers: dict[str, _Worker] = {}
    opened = [_Opened(plan, context, children) for plan in plans]
    try:
        readings = {one: _read(one, workers, clock) for one in opened}
        again = [one for one, reading in readings.items() if _needs_another(one.plan, reading)]
        if again:
            wait()
            readings |= {
                one: _completed(readings[one], _read(one, workers, clock)) for one in again
            }
        return list(readings.values())
    finally:
        for one in opened:
            one.close()
        for child in children.values():
            child.close()
        for worker in workers.values():
            worker.end()


class _Worker:
    """A thread that reads, one plugin after the other; it is left behind when one hangs.

    Children end with the thread that started them, so each child has one worker for all readings.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], OneReading] | None] = SimpleQueue()
        self._results: SimpleQueue[OneReading] = SimpleQueue()
        Thread(target=self._run, daemon=True).start()

    def do(self, task: Callable[[], OneReading], *, timeout_seconds: float) -> OneReading | None:
        """Return what the task gives; None when that takes too long."""
        self._tasks.put(task)
        try:
            return self._results.get(timeout=timeout_seconds)
        except Empty:
            return None

    def end(self) -> None:
        """Let the thread end."""
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            self._results.put(task())


class _Opened:
    """One plugin, built at its first reading."""

    def __init__(
        self, plan: PluginPlan, context: PluginContext, children: dict[str, ChildProcess]
    ) -> None:
        self.plan = plan
        self.is_stuck = False
        self._context = context
        self._children = children
        self._plugin: Plugin | ChildPlugin | None = None

    def read(self, clock: Clock) -> OneReading:
        """Return a reading, or the fault that there was."""
        try:
            if self._plugin is None:
                self._plugin = self._open()
            return OneReading(self.plan.name, tuple(self._plugin.gather(clock())), None)
        except Exception as error:  # noqa: BLE001 - a foreign plugin may raise anything
            return OneReading(self.plan.name, (), error)

    def close(self) -> None:
        """Close the plugin, unless a reading is stuck in it."""
        if self._plugin is not None and not self.is_stuck:
            self._plugin.close()

    def _open(self) -> Plugin | ChildPlugin:
        plan = self.plan
        if not plan.child:
            return plan.plugin_class(plan.config, self._context)
        child = self._children.setdefault(plan.child, ChildProcess(plan.child))
        return ChildPlugin(plan, self._context, child)


def _read(opened: _Opened, workers: dict[str, _Worker], clock: Clock) -> OneReading:
    """Read in the lane's worker, under the plugin's time limit."""
    plan = opened.plan
    worker = workers.get(plan.lane) or _Worker()
    workers[plan.lane] = worker
    reading = worker.do(lambda: opened.read(clock), timeout_seconds=plan.watch_limit_seconds)
    if reading is not None:
        return reading
    opened.is_stuck = True
    del workers[plan.lane]
    fault = ReadingTimedOutError(f"it did not come back within {plan.time_limit_seconds:g} s")
    return OneReading(plan.name, (), fault)


def _completed(first: OneReading, second: OneReading) -> OneReading:
    """Return the second reading, with what only the first has: some things are read more rarely."""
    if second.fault is not None:
        return second
    points = {_series(one): one for one in first.points}
    for one in second.points:
        known = points.pop(_series(one), one)
        points[_series(one)] = replace(one, fields={**known.fields, **one.fields})
    return replace(second, points=tuple(points.values()))


def _series(point: Point) -> tuple[object, ...]:
    return point.measurement, *sorted(point.tags.items())


def pause(seconds: float) -> Callable[[], None]:
    """Return a `wait` for `read_once` that lets time pass."""
    return lambda: time.sleep(seconds)


def _needs_another(plan: PluginPlan, reading: OneReading) -> bool:
    """Whether a second reading gives more: rates need two."""
    if reading.fault is not None:
        return False
    if not reading.points:
        return True
    metrics: Sequence[object] = [metric.kind for metric in plan.plugin_class.metrics]
    interval_seconds = plan.plugin_class.traits.interval_seconds or 0.0
    return MetricKind.RATE in metrics and interval_seconds < RARE_SECONDS
