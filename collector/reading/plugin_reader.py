"""One plugin as the host sees it: its plan, schedule, failures and metrics.

All plugins of an agent share one schedule: those whose intervals fit into one another are due
together, so that one wake-up reads them all. Agents differ in their *phase*, so that a fleet does
not contact the portal all at once. Times are seconds of the monotonic clock, so that setting the
wall clock changes nothing.
"""

import logging
import math
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from random import Random

from collector.errors import ReadingTimedOutError
from core.clock import Clock, to_ns
from plugins.base import Plugin, PluginClass, PluginError, PluginUnavailableError
from timeseries.points import Point

log = logging.getLogger(__name__)

SLOW_GATHER_SECONDS = 2.0
REPORT_INTERVAL_SECONDS = 60.0
# Interpreter, imports and the plugin's own start, on a host under full load.
WORKER_START_SECONDS = 30.0
# A worker process that exceeds a limit is killed; its read thread hangs only if that takes long.
WORKER_GRACE_SECONDS = 5.0
UNAVAILABLE_RETRY_SECONDS = 300.0
MAX_RETRY_SECONDS = 600.0

_MAX_DOUBLINGS = 16
_DAY_SECONDS = 86_400.0
_HASHES = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The times at which a plugin is due.

    Attributes:
        anchor_seconds: a tick that all schedules of this agent share; see `phase_anchor`.
        interval_seconds: from one tick to the next.
        jitter_seconds: up to this much is added to each tick, at random.
    """

    anchor_seconds: float
    interval_seconds: float
    jitter_seconds: float = 0.0

    def next_tick(self, planned: float | None, at_seconds: float, *, wait_seconds: float) -> float:
        """Return the tick that is nearest to `wait_seconds` from now.

        Args:
            planned: the tick of this reading, before jitter; None for the first.
            at_seconds: when the reading began. A late one does not shift the schedule.
            wait_seconds: the interval, or the wait after a failure.
        """
        base = at_seconds - self.jitter_seconds
        if planned is None:
            base = at_seconds
        elif planned > base:
            base = planned
        ticks = (base + wait_seconds - self.anchor_seconds) / self.interval_seconds
        return self.anchor_seconds + math.floor(ticks + 0.5) * self.interval_seconds

    def with_jitter(self, planned: float, random: Random) -> float:
        """Return when to read for a tick."""
        return planned + random.random() * self.jitter_seconds if self.jitter_seconds else planned


def phase_anchor(seed: str, *, now: datetime, at_seconds: float) -> float:
    """Return the monotonic instant of a tick that all schedules of an agent share.

    Args:
        seed: differs between agents.
        now: the time of the wall clock.
        at_seconds: the time of the monotonic clock at the same moment.
    """
    offset_seconds = zlib.crc32(seed.encode()) / _HASHES * _DAY_SECONDS
    return at_seconds - (now.timestamp() - offset_seconds) % _DAY_SECONDS


def retry_seconds(interval_seconds: float, failures: int) -> float:
    """Return the wait after consecutive failures, which doubles each time."""
    doubled = interval_seconds * 2.0 ** min(failures, _MAX_DOUBLINGS)
    return max(interval_seconds, min(MAX_RETRY_SECONDS, doubled))


def unavailable_seconds(interval_seconds: float) -> float:
    """Return the wait before an unavailable plugin is tried again."""
    return max(interval_seconds, UNAVAILABLE_RETRY_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginPlan:
    """The plan of reading a plugin: its traits and its configuration combined."""

    name: str
    plugin_class: PluginClass
    config: object
    interval_seconds: float
    jitter_seconds: float
    time_limit_seconds: float
    worker: str = ""
    own_thread: bool = False

    @property
    def thread(self) -> str:
        """The read thread, which reads its plugins in turn."""
        return self.worker or (f"own {self.name}" if self.own_thread else "")

    @property
    def watchdog_seconds(self) -> float:
        """After how long the read thread counts as hung."""
        worker_seconds = WORKER_START_SECONDS + WORKER_GRACE_SECONDS if self.worker else 0.0
        return self.time_limit_seconds + worker_seconds

    def is_same_plugin(self, other: "PluginPlan") -> bool:
        """Return whether the plugin needs no restart: only its schedule may differ."""
        return (self.plugin_class, self.config) == (other.plugin_class, other.config)


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The result of a reading."""

    points: list[Point]
    error: Exception | None
    duration_seconds: float


class PluginReader:
    """Reads one plugin and counts its failures. Its read thread takes care of locking.

    Args:
        plan: how to read it.
        build: creates the plugin, at its first reading.
        anchor_seconds: see `Schedule`.

    Attributes:
        due_seconds: when it is read next, by the monotonic clock.
        is_stuck: a reading exceeded its limit and has not returned, so it can't be read.
        is_retired: it was removed; the thread that is reading it closes it.
        errors, timeouts: failed readings, and those that exceeded the limit, since the start.
        samples: values in the last reading.
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
        self._random = Random()  # noqa: S311 - jitter, not a secret
        self._failures = 0
        self._is_unavailable = False
        self._reported_seconds: float | None = None
        self._reported_failures = 0
        self._readings = 0
        self._total_seconds = 0.0
        self.plan = plan
        self._planned: float | None = None

    @property
    def name(self) -> str:
        """The plugin's name."""
        return self.plan.name

    @property
    def is_starting(self) -> bool:
        """Return whether no reading has finished yet."""
        return self._planned is None

    def reschedule(self, plan: PluginPlan, *, at_seconds: float) -> None:
        """Change interval, jitter or limit of the same plugin."""
        if plan == self.plan:
            return
        self.plan = plan
        if self._planned is not None:
            self._plan_next(at_seconds, plan.interval_seconds)

    def gather(self, clock: Clock) -> ReadResult:
        """Read now. Nothing is recorded yet: the reading may return too late."""
        began_seconds = time.perf_counter()
        points: list[Point] = []
        failure: Exception | None = None
        try:
            if self._plugin is None:
                self._plugin = self._build()
            points = _checked(self._plugin.gather(clock()))
        except Exception as error:  # noqa: BLE001 - a third-party plugin may raise anything
            failure = error
        return ReadResult(points, failure, time.perf_counter() - began_seconds)

    def last_points(self, clock: Clock) -> list[Point]:
        """Return what the plugin collected since its last reading, before it is closed."""
        last_points = getattr(self._plugin, "last_points", None)
        if last_points is None:
            return []
        try:
            return list(last_points(clock()))
        except Exception:
            log.exception("can't take the last samples of plugin %s", self.name)
            return []

    def close(self) -> None:
        """Close the plugin, if it was created."""
        plugin, self._plugin = self._plugin, None
        if plugin is None:
            return
        try:
            plugin.close()
        except Exception:
            log.exception("can't close plugin %s", self.name)

    def record(self, result: ReadResult, *, at_seconds: float) -> None:
        """Record a reading and plan the next one.

        Args:
            result: what it returned.
            at_seconds: when it began, by the host's monotonic clock.
        """
        error, interval_seconds = result.error, self.plan.interval_seconds
        self._readings += 1
        self._total_seconds += result.duration_seconds
        self.samples = sum(len(point.fields) for point in result.points)
        if error is None:
            self._failures, self._is_unavailable = 0, False
            self._plan_next(at_seconds, interval_seconds)
            if result.duration_seconds > SLOW_GATHER_SECONDS:
                log.warning("plugin %s is slow: %.1f s", self.name, result.duration_seconds)
        elif isinstance(error, PluginUnavailableError):
            if not self._is_unavailable:
                log.info("plugin %s is not available: %s", self.name, error)
            self._is_unavailable = True
            self._plan_next(at_seconds, unavailable_seconds(interval_seconds))
        elif isinstance(error, ReadingTimedOutError):
            self.record_timeout(at_seconds=at_seconds, reason=str(error))
        else:
            self.errors += 1
            self._retry(error, at_seconds=at_seconds)

    def record_timeout(self, *, at_seconds: float, reason: str) -> None:
        """Record that a reading exceeded its limit."""
        self.timeouts += 1
        self._retry(reason, at_seconds=at_seconds)

    def record_late_return(self, result: ReadResult, *, at_seconds: float) -> None:
        """Record that a stuck reading returned; the plugin is read again after its wait."""
        self.is_stuck = False
        log.warning(
            "plugin %s returned after %.1f s; dropped %d points",
            self.name,
            result.duration_seconds,
            len(result.points),
        )
        self._plan_next(at_seconds, retry_seconds(self.plan.interval_seconds, self._failures))

    def own_point(self, now: datetime, *, at_seconds: float) -> Point | None:
        """Return the plugin's metrics once a minute and after a failure; else None."""
        failures = self.errors + self.timeouts
        if failures == self._reported_failures:
            last = self._reported_seconds
            is_recent = last is not None and at_seconds - last < REPORT_INTERVAL_SECONDS
            if self._readings == 0 or is_recent or self._is_unavailable:
                return None
        fields: Mapping[str, float | int] = {
            "duration_seconds": self._total_seconds / max(1, self._readings),
            "samples": self.samples,
            "errors": self.errors,
            "timeouts": self.timeouts,
        }
        self._reported_seconds, self._reported_failures = at_seconds, failures
        self._readings, self._total_seconds = 0, 0.0
        return Point("plugin", {"plugin": self.name}, fields, to_ns(now))

    def _retry(self, reason: object, *, at_seconds: float) -> None:
        self._failures += 1
        wait_seconds = retry_seconds(self.plan.interval_seconds, self._failures)
        log.warning("plugin %s failed, next try in %.0f s: %s", self.name, wait_seconds, reason)
        self._plan_next(at_seconds, wait_seconds)

    def _plan_next(self, at_seconds: float, wait_seconds: float) -> None:
        schedule = Schedule(
            anchor_seconds=self._anchor_seconds,
            interval_seconds=self.plan.interval_seconds,
            jitter_seconds=self.plan.jitter_seconds,
        )
        self._planned = schedule.next_tick(self._planned, at_seconds, wait_seconds=wait_seconds)
        self.due_seconds = schedule.with_jitter(self._planned, self._random)


def _checked(points: Iterable[Point]) -> list[Point]:
    """Return the points of a reading.

    Raises:
        PluginError: it contains something else.
    """
    checked = list(points)
    for point in checked:
        if not isinstance(point, Point) or not isinstance(point.fields, Mapping):
            raise PluginError(f"it returned {point!r:.200} instead of a point")
    return checked
