"""How far a version is: bytes, rate of the last minute, and what an attempt's page shows."""

import time
from collections import deque
from collections.abc import Callable
from threading import Lock

from core.quantities import format_duration, format_size
from protocol.attempts import StagingProgress

WINDOW_SECONDS = 60.0
_SAMPLE_SECONDS = 1.0
_LEAST_SECONDS = 2.0


class Progress:
    """The progress of one version. Thread-safe.

    Attributes:
        total_bytes: of the version.
        staged_bytes: what of it is there.
        fetched_bytes: what came over the line since the agent started.
        peer_bytes: what of that came from peers.
        note: what it waits for, if it does.
    """

    def __init__(
        self, name: str, total_bytes: int, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.total_bytes = total_bytes
        self.staged_bytes = 0
        self.fetched_bytes = 0
        self.peer_bytes = 0
        self.note = ""
        self._monotonic = monotonic
        self._lock = Lock()
        self._samples: deque[tuple[float, int]] = deque()

    def begin(self, staged_bytes: int) -> None:
        """Set what is there before anything is fetched."""
        with self._lock:
            self.staged_bytes = staged_bytes
            self._samples.clear()
            self._samples.append((self._monotonic(), staged_bytes))

    def add(self, size_bytes: int) -> None:
        """Count what was written."""
        now = self._monotonic()
        with self._lock:
            self.staged_bytes += size_bytes
            if not self._samples or now - self._samples[-1][0] >= _SAMPLE_SECONDS:
                self._samples.append((now, self.staged_bytes))
                while now - self._samples[0][0] > WINDOW_SECONDS:
                    self._samples.popleft()

    def add_fetched(self, size_bytes: int, *, is_from_peer: bool) -> None:
        """Count what came over the line."""
        with self._lock:
            self.fetched_bytes += size_bytes
            self.peer_bytes += size_bytes if is_from_peer else 0

    def bytes_per_second(self) -> float | None:
        """Return the rate of the last minute; None while that is unknown."""
        with self._lock:
            if not self._samples:
                return None
            began, began_bytes = self._samples[0]
            elapsed, done_bytes = self._monotonic() - began, self.staged_bytes - began_bytes
            if elapsed < _LEAST_SECONDS or done_bytes <= 0:
                return None
            return done_bytes / elapsed

    def remaining_seconds(self) -> float | None:
        """Return how long it takes at the rate of the last minute; None while that is unknown."""
        rate = self.bytes_per_second()
        return None if rate is None else max(0.0, (self.total_bytes - self.staged_bytes) / rate)


def combined(versions: list[Progress]) -> tuple[str, StagingProgress]:
    """Return the message about the versions of an attempt, and how far all of them are."""
    staged_bytes = sum(progress.staged_bytes for progress in versions)
    total_bytes = sum(progress.total_bytes for progress in versions)
    missing = [
        progress for progress in versions if progress.staged_bytes < progress.total_bytes
    ] or versions[:1]
    names = ", ".join(progress.name for progress in missing[:3])
    message = f"Fetching {names}: {format_size(staged_bytes)} of {format_size(total_bytes)}"
    estimates = [progress.remaining_seconds() for progress in missing]
    remaining = None
    if all(estimate is not None for estimate in estimates):
        remaining = max((estimate or 0.0 for estimate in estimates), default=0.0)
        message += f", about {format_duration(remaining)} left"
    notes = [progress.note for progress in missing if progress.note]
    if notes:
        message += f". {notes[0]}"
    return message, StagingProgress(
        staged_bytes=staged_bytes, total_bytes=total_bytes, remaining_seconds=remaining
    )
