"""One plugin with all that the host knows of it: its plan, beat, failures and figures."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from random import Random

from collector.errors import ReadingTimedOutError
from collector.reading.schedule import Beat, retry_seconds, unavailable_seconds
from core.clock import Clock, to_ns
from plugins.base import Plugin, PluginClass, PluginError, PluginUnavailableError
from timeseries.points import Point

log = logging.getLogger(__name__)

SLOW_GATHER_SECONDS = 2.0
REPORT_EVERY_SECONDS = 60.0
# Interpreter, imports and the plugin's own start, on a host whose processors are all busy.
CHILD_START_SECONDS = 30.0
# A child process that passes a limit is killed; only where that takes long is its lane stuck.
CHILD_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginPlan:
    """How a plugin is to be read: its traits and its configuration, put together."""

    name: str
    plugin_class: PluginClass
    config: object
    interval_seconds: float
    jitter_seconds: float
    time_limit_seconds: float
    child: str = ""
    own_thread: bool = False

    @property
    def lane(self) -> str:
        """Which thread reads it: all plugins of a lane are read by one, in turn."""
        return self.child or (f"own {self.name}" if self.own_thread else "")

    @property
    def watch_limit_seconds(self) -> float:
        """After how long the thread that reads it is taken to hang."""
        child_seconds = CHILD_START_SECONDS + CHILD_GRACE_SECONDS if self.child else 0.0
        return self.time_limit_seconds + child_seconds

    def is_same_plugin(self, other: "PluginPlan") -> bool:
        """Whether the plugin can go on as it is; only when it is read may differ."""
        return (self.plugin_class, self.config) == (other.plugin_class, other.config)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a reading."""

    points: list[Point]
    fault: Exception | None
    took_seconds: float


class PluginReader:
    """Reads one plugin and keeps its accounts. The lane that owns it takes care of threads.

    Args:
        build: makes the plugin, at its first reading.

    Attributes:
        due_seconds: when it is to be read next, by the monotonic clock.
        is_stuck: a reading passed its limit and has not come back: it can't be read.
        is_retired: it is no longer wanted; who is inside closes it.
        errors, timeouts: readings that failed, and that passed the limit, since the agent began.
        samples: values that the last reading gave.
    """

    def __init__(
        self, plan: PluginPlan, build: Callable[[], Plugin], *, anchor_seconds: float
    ) -> None:
        self._build = build
        self._plugin: Plugin | None = None
        self.is_stuck = False
        self.is_retired = False
        self.due_seconds = 0.0
        self.errors = 0
        self.timeouts = 0
        self.samples = 0
        self._anchor_seconds = anchor_seconds
        self._random = Random()  # noqa: S311 - spreads load, guards nothing
        self._failures = 0
        self._is_unavailable = False
        self._reported_seconds: float | None = None
        self._reported_faults = 0
        self._readings = 0
        self._total_seconds = 0.0
        self.plan = plan
        self._beat = self._beat_of(plan)
        self._planned: float | None = None

    @property
    def name(self) -> str:
        """The plugin's name."""
        return self.plan.name

    @property
    def watch_limit_seconds(self) -> float:
        """After how long the thread that reads it is taken to hang."""
        return self.plan.watch_limit_seconds

    @property
    def is_new(self) -> bool:
        """Whether no reading has come to an end yet."""
        return self._planned is None

    def reschedule(self, plan: PluginPlan, *, at_seconds: float) -> None:
        """Go on with the same plugin at another interval, jitter or limit."""
        if plan == self.plan:
            return
        self.plan, self._beat = plan, self._beat_of(plan)
        if self._planned is not None:
            self._plan_next(at_seconds, plan.interval_seconds)

    def gather(self, clock: Clock) -> Outcome:
        """Read now; nothing is booked, for the reading may come back too late."""
        began_seconds = time.perf_counter()
        points: list[Point] = []
        fault: Exception | None = None
        try:
            if self._plugin is None:
                self._plugin = self._build()
            points = _checked(self._plugin.gather(clock()))
        except Exception as error:  # noqa: BLE001 - a foreign plugin may raise anything
            fault = error
        return Outcome(points, fault, time.perf_counter() - began_seconds)

    def close(self) -> None:
        """Close the plugin, where it was built."""
        plugin, self._plugin = self._plugin, None
        if plugin is None:
            return
        try:
            plugin.close()
        except Exception:
            log.exception("plugin %s could not be closed", self.name)

    def book(self, outcome: Outcome, *, at_seconds: float) -> None:
        """Take a reading to account and plan the next.

        Args:
            at_seconds: when it began, by the host's monotonic clock.
        """
        fault, interval_seconds = outcome.fault, self.plan.interval_seconds
        self._readings += 1
        self._total_seconds += outcome.took_seconds
        self.samples = sum(len(point.fields) for point in outcome.points)
        if fault is None:
            self._failures, self._is_unavailable = 0, False
            self._plan_next(at_seconds, interval_seconds)
        elif isinstance(fault, PluginUnavailableError):
            if not self._is_unavailable:
                log.info("plugin %s has nothing to read here: %s", self.name, fault)
            self._is_unavailable = True
            self._plan_next(at_seconds, unavailable_seconds(interval_seconds))
        elif isinstance(fault, ReadingTimedOutError):
            self.book_timeout(at_seconds=at_seconds, reason=str(fault))
        else:
            self.errors += 1
            self._failed(fault, at_seconds=at_seconds)
        if outcome.took_seconds > SLOW_GATHER_SECONDS and fault is None:
            log.warning("plugin %s took %.1f s to read", self.name, outcome.took_seconds)

    def book_timeout(self, *, at_seconds: float, reason: str) -> None:
        """Take to account that a reading passed its limit."""
        self.timeouts += 1
        self._failed(reason, at_seconds=at_seconds)

    def book_return(self, outcome: Outcome, *, at_seconds: float) -> None:
        """Take back a reading that was given up before; it is read again after its wait."""
        self.is_stuck = False
        log.warning(
            "plugin %s came back after %.1f s; its %d points are dropped",
            self.name,
            outcome.took_seconds,
            len(outcome.points),
        )
        self._plan_next(at_seconds, retry_seconds(self.plan.interval_seconds, self._failures))

    def own_point(self, now: datetime, *, at_seconds: float) -> Point | None:
        """Return the plugin's own figures once a minute and after a fault; else None."""
        faults = self.errors + self.timeouts
        is_idle = self._readings == 0 and faults == self._reported_faults
        is_fresh = (
            self._reported_seconds is not None
            and at_seconds - self._reported_seconds < REPORT_EVERY_SECONDS
        )
        if is_idle or (is_fresh and faults == self._reported_faults):
            return None
        if self._is_unavailable and faults == self._reported_faults:
            return None
        fields: Mapping[str, float | int] = {
            "duration_seconds": self._total_seconds / max(1, self._readings),
            "samples": self.samples,
            "errors": self.errors,
            "timeouts": self.timeouts,
        }
        self._reported_seconds, self._reported_faults = at_seconds, faults
        self._readings, self._total_seconds = 0, 0.0
        return Point("plugin", {"plugin": self.name}, fields, to_ns(now))

    def _failed(self, reason: object, *, at_seconds: float) -> None:
        self._failures += 1
        wait_seconds = retry_seconds(self.plan.interval_seconds, self._failures)
        log.warning("plugin %s failed, next in %.0f s: %s", self.name, wait_seconds, reason)
        self._plan_next(at_seconds, wait_seconds)

    def _plan_next(self, at_seconds: float, wait_seconds: float) -> None:
        self._planned = self._beat.next_after(self._planned, at_seconds, wait_seconds=wait_seconds)
        self.due_seconds = self._beat.with_jitter(self._planned, self._random)

    def _beat_of(self, plan: PluginPlan) -> Beat:
        return Beat(
            anchor_seconds=self._anchor_seconds,
            interval_seconds=plan.interval_seconds,
            jitter_seconds=plan.jitter_seconds,
        )


def _checked(points: Iterable[Point]) -> list[Point]:
    """Return the points of a reading.

    Raises:
        PluginError: something else is among them.
    """
    taken = list(points)
    for point in taken:
        if not isinstance(point, Point) or not isinstance(point.fields, Mapping):
            raise PluginError(f"it gave {point!r:.200} in place of a point")
    return taken
