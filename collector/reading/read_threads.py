"""Read threads: each reads its plugins in turn, and sleeps until one is due.

A reading that hangs can't be interrupted. When one exceeds its limit, its thread is abandoned and a
new one takes over the other plugins. The hung plugin is not read again until its reading returns,
so that it never blocks more than one thread.
"""

import logging
import time
from collections.abc import Callable, Iterable
from threading import Event, Lock, Thread

from collector.reading.plugin_reader import PluginReader, ReadResult
from core.clock import Clock
from timeseries.points import Point

log = logging.getLogger(__name__)

# A thread sleeps this long, and isn't watched, if nothing is due.
MAX_SLEEP_SECONDS = 3600.0
MIN_SLEEP_SECONDS = 0.005
CRASH_WAIT_SECONDS = 5.0

OnPoints = Callable[[list[Point]], None]
AfterReadings = Callable[[], float]


class _Run:
    """The life of one operating system thread, until it is abandoned."""

    def __init__(self) -> None:
        self.wake = Event()
        self.is_abandoned = False
        self.thread: Thread | None = None


class ReadThread:
    """Reads a set of plugins.

    Args:
        name: of the thread.
        on_points: called with each reading, in this thread.
        clock: the time.
        monotonic: seconds, not affected by changes of the wall clock.
        after_readings: called after the due plugins were read; returns the seconds until it is due
            again.
    """

    def __init__(
        self,
        name: str,
        *,
        on_points: OnPoints,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
        after_readings: AfterReadings | None = None,
    ) -> None:
        self._name = name
        self._on_points = on_points
        self._clock = clock
        self._monotonic = monotonic
        self._after_readings = after_readings
        self._lock = Lock()
        self._readers: list[PluginReader] = []
        self._retired: list[PluginReader] = []
        self._active: PluginReader | None = None
        self._active_since = 0.0
        self._is_stopping = False
        self._run = _Run()

    @property
    def readers(self) -> list[PluginReader]:
        """The plugins of this thread."""
        return list(self._readers)

    def assign(self, readers: Iterable[PluginReader]) -> None:
        """Set the plugins to read; the thread closes those that are removed."""
        assigned = list(readers)
        with self._lock:
            for reader in self._readers:
                if reader not in assigned:
                    reader.is_retired = True
                    self._retired += [] if reader.is_stuck else [reader]
            self._readers = assigned
            self._run.wake.set()

    def start(self) -> None:
        """Start reading."""
        self._start_thread(self._run)

    def stop(self) -> None:
        """Stop after the current reading."""
        self._is_stopping = True
        self._run.wake.set()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread to end; return whether it has ended."""
        thread = self._run.thread
        if thread is not None:
            thread.join(timeout_seconds)
        return thread is None or not thread.is_alive()

    def close(self) -> None:
        """Close the plugins that are not being read. Call it after the thread has ended."""
        for reader in self._take_retired() + self._readers:
            if not reader.is_stuck and reader is not self._active:
                self._close(reader)

    def read_due(self) -> float:
        """Read the plugins that are due; return the seconds until something is due again."""
        return self._read_due(self._run)

    def watch(self) -> float:
        """Abandon the thread if its current reading takes too long.

        Returns:
            The seconds within which no reading can exceed its limit.
        """
        with self._lock:
            now, reader = self._monotonic(), self._active
            if reader is None:
                limits = (assigned.plan.watchdog_seconds for assigned in self._readers)
                return min(limits, default=MAX_SLEEP_SECONDS)
            left_seconds = self._active_since + reader.plan.watchdog_seconds - now
            if left_seconds > 0:
                return left_seconds
            self._abandon(reader, now)
            run = self._run
        if not self._is_stopping:
            self._start_thread(run)
        return MIN_SLEEP_SECONDS

    def _abandon(self, reader: PluginReader, now: float) -> None:
        reader.is_stuck = True
        self._retired = [retired for retired in self._retired if retired is not reader]
        limit = f"{reader.plan.watchdog_seconds:g} s"
        reason = f"no response within {limit}; the other plugins continue without it"
        reader.record_timeout(at_seconds=now, reason=reason)
        self._active = None
        self._run.is_abandoned = True
        self._run = _Run()

    def _start_thread(self, run: _Run) -> None:
        name = f"read-{self._name}"
        run.thread = Thread(target=self._loop, args=(run,), name=name, daemon=True)
        run.thread.start()

    def _loop(self, run: _Run) -> None:
        while not (run.is_abandoned or self._is_stopping):
            run.wake.clear()
            wait_seconds = self._read_due(run)
            if not (run.is_abandoned or self._is_stopping):
                run.wake.wait(wait_seconds)
        if not run.is_abandoned:
            self.close()  # in this thread: the kernel kills a worker with the thread that forked it

    def _read_due(self, run: _Run) -> float:
        for reader in self._take_retired():
            self._close(reader)
        for reader in self._due():
            if points := self._read(reader, run):
                self._deliver(points, reader)
            if run.is_abandoned or self._is_stopping:
                return 0.0
        next_seconds = self._call_after_readings()
        now = self._monotonic()
        due = [reader.due_seconds for reader in self._readers if not reader.is_stuck]
        until_due = min(due, default=now + MAX_SLEEP_SECONDS) - now
        return max(MIN_SLEEP_SECONDS, min(until_due, next_seconds))

    def _deliver(self, points: list[Point], reader: PluginReader) -> None:
        try:
            self._on_points(points)
        except Exception:  # a third-party plugin may return anything; the others must be read
            log.exception("can't process the points of plugin %s", reader.name)

    def _close(self, reader: PluginReader) -> None:
        if points := reader.last_points(self._clock):
            self._deliver(points, reader)
        reader.close()

    def _take_retired(self) -> list[PluginReader]:
        with self._lock:
            retired, self._retired = self._retired, []
        return retired

    def _due(self) -> list[PluginReader]:
        now = self._monotonic()
        return [
            reader for reader in self._readers if reader.due_seconds <= now and not reader.is_stuck
        ]

    def _read(self, reader: PluginReader, run: _Run) -> list[Point]:
        """Return the plugin's points; none if this thread was abandoned in the meantime."""
        with self._lock:
            if reader.is_retired:
                return []
            began = self._monotonic()
            self._active, self._active_since = reader, began
        result = reader.gather(self._clock)
        with self._lock:
            if not run.is_abandoned:
                self._active = None
                reader.record(result, at_seconds=began)
                return result.points
        self._return_late(reader, result)
        return []

    def _return_late(self, reader: PluginReader, result: ReadResult) -> None:
        with self._lock:
            reader.record_late_return(result, at_seconds=self._monotonic())
            is_retired = reader.is_retired
            self._run.wake.set()
        if is_retired:
            reader.close()

    def _call_after_readings(self) -> float:
        if self._after_readings is None:
            return MAX_SLEEP_SECONDS
        try:
            return self._after_readings()
        except Exception:
            log.exception("read-%s failed, next try in %.0f s", self._name, CRASH_WAIT_SECONDS)
            return CRASH_WAIT_SECONDS
