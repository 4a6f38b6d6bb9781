"""Lanes: a lane is a thread that reads its plugins in turn, and sleeps until one is due.

A reading that hangs can't be stopped from outside. When one passes its limit, the lane's thread is
left behind inside that plugin, and a fresh thread takes over all the others. The plugin that hangs
is not read again before its reading comes back: it can never hold more than one thread.
"""

import logging
import time
from collections.abc import Callable, Iterable
from threading import Event, Lock, Thread

from collector.reading.readers import Outcome, PluginReader
from core.clock import Clock
from timeseries.points import Point

log = logging.getLogger(__name__)

# How long a lane sleeps, and stays unwatched, where nothing is due.
LONGEST_SLEEP_SECONDS = 3600.0
SHORTEST_SLEEP_SECONDS = 0.005
FAULT_WAIT_SECONDS = 5.0

Deliver = Callable[[list[Point]], None]
Chore = Callable[[], float]


class _Shift:
    """One thread's time at work in a lane; `is_over` once it was left behind inside a plugin."""

    def __init__(self) -> None:
        self.wake = Event()
        self.is_over = False
        self.thread: Thread | None = None


class Lane:
    """Reads a set of plugins in a thread of its own.

    Args:
        deliver: takes what was read; called in the lane's thread.
        chore: done after each round of readings; returns the seconds until it is wanted again.
        monotonic: seconds that no change of the wall clock moves.
    """

    def __init__(
        self,
        name: str,
        *,
        deliver: Deliver,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
        chore: Chore | None = None,
    ) -> None:
        self._name = name
        self._deliver = deliver
        self._clock = clock
        self._monotonic = monotonic
        self._chore = chore
        self._lock = Lock()
        self._readers: list[PluginReader] = []
        self._leaving: list[PluginReader] = []
        self._inside: PluginReader | None = None
        self._inside_since = 0.0
        self._is_stopping = False
        self._shift = _Shift()

    @property
    def readers(self) -> list[PluginReader]:
        """The plugins of this lane."""
        return list(self._readers)

    def assign(self, readers: Iterable[PluginReader]) -> None:
        """Read these from now on; plugins that are in the lane no more are closed by it."""
        wanted = list(readers)
        with self._lock:
            for reader in self._readers:
                if reader not in wanted:
                    reader.is_retired = True
                    self._leaving += [] if reader.is_stuck else [reader]
            self._readers = wanted
            self._shift.wake.set()

    def start(self) -> None:
        """Begin to read."""
        self._start_thread(self._shift)

    def stop(self) -> None:
        """Ask the lane to end after the reading that it is in."""
        self._is_stopping = True
        self._shift.wake.set()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end; return whether it came."""
        thread = self._shift.thread
        if thread is not None:
            thread.join(timeout_seconds)
        return thread is None or not thread.is_alive()

    def close(self) -> None:
        """Close the plugins that nobody is inside of. For after the end."""
        for reader in self._take_leaving() + self._readers:
            if not reader.is_stuck and reader is not self._inside:
                reader.close()

    def turn(self) -> float:
        """Read what is due and return the seconds until the next reading or chore."""
        return self._turn(self._shift)

    def watch(self) -> float:
        """Leave the thread behind that is inside a plugin for too long.

        Returns:
            The seconds within which no reading can pass its limit.
        """
        with self._lock:
            now, reader = self._monotonic(), self._inside
            if reader is None:
                limits = (one.watch_limit_seconds for one in self._readers)
                return min(limits, default=LONGEST_SLEEP_SECONDS)
            left_seconds = self._inside_since + reader.watch_limit_seconds - now
            if left_seconds > 0:
                return left_seconds
            self._leave_behind(reader, now)
            fresh, has_thread = self._shift, self._shift.thread is None
        if has_thread and not self._is_stopping:
            self._start_thread(fresh)
        return SHORTEST_SLEEP_SECONDS

    def _leave_behind(self, reader: PluginReader, now: float) -> None:
        reader.is_stuck = True
        self._leaving = [one for one in self._leaving if one is not reader]
        limit = f"{reader.watch_limit_seconds:g} s"
        reason = f"it did not come back within {limit}; the others go on without it"
        reader.book_timeout(at_seconds=now, reason=reason)
        self._inside = None
        self._shift.is_over = True
        self._shift = _Shift()

    def _start_thread(self, shift: _Shift) -> None:
        name = f"lane-{self._name}"
        shift.thread = Thread(target=self._run, args=(shift,), name=name, daemon=True)
        shift.thread.start()

    def _run(self, shift: _Shift) -> None:
        while not (shift.is_over or self._is_stopping):
            shift.wake.clear()
            wait_seconds = self._turn(shift)
            if not (shift.is_over or self._is_stopping):
                shift.wake.wait(wait_seconds)
        if not shift.is_over:
            self.close()  # here, for the kernel ends a child together with the thread that began it

    def _turn(self, shift: _Shift) -> float:
        for reader in self._take_leaving():
            reader.close()
        for reader in self._due():
            if points := self._read(reader, shift):
                self._hand_over(points, reader)
            if shift.is_over or self._is_stopping:
                return 0.0
        chore_seconds = self._do_chore()
        now = self._monotonic()
        due = [reader.due_seconds for reader in self._readers if not reader.is_stuck]
        until_due = min(due, default=now + LONGEST_SLEEP_SECONDS) - now
        return max(SHORTEST_SLEEP_SECONDS, min(until_due, chore_seconds))

    def _hand_over(self, points: list[Point], reader: PluginReader) -> None:
        try:
            self._deliver(points)
        except Exception:  # a foreign plugin may give anything; the lane has others to read
            log.exception("what plugin %s gave can't be taken in whole", reader.name)

    def _take_leaving(self) -> list[PluginReader]:
        with self._lock:
            leaving, self._leaving = self._leaving, []
        return leaving

    def _due(self) -> list[PluginReader]:
        now = self._monotonic()
        return [one for one in self._readers if one.due_seconds <= now and not one.is_stuck]

    def _read(self, reader: PluginReader, shift: _Shift) -> list[Point]:
        """Return what the plugin gives; nothing when it came back after it was left behind."""
        with self._lock:
            if reader.is_retired:
                return []
            began = self._monotonic()
            self._inside, self._inside_since = reader, began
        outcome = reader.gather(self._clock)
        with self._lock:
            if not shift.is_over:
                self._inside = None
                reader.book(outcome, at_seconds=began)
                return outcome.points
        self._return(reader, outcome)
        return []

    def _return(self, reader: PluginReader, outcome: Outcome) -> None:
        with self._lock:
            reader.book_return(outcome, at_seconds=self._monotonic())
            is_retired = reader.is_retired
            self._shift.wake.set()
        if is_retired:
            reader.close()

    def _do_chore(self) -> float:
        if self._chore is None:
            return LONGEST_SLEEP_SECONDS
        try:
            return self._chore()
        except Exception:
            log.exception("lane %s goes on in %.0f s", self._name, FAULT_WAIT_SECONDS)
            return FAULT_WAIT_SECONDS
