"""When a plugin is read: on a beat that all plugins of one agent share.

Plugins whose intervals fit into one another fall due together, so that one wake-up reads them all;
agents differ in their *phase*, so that a fleet does not come to the portal in one moment. All times
here are seconds of the monotonic clock: a wall clock that is set changes nothing.
"""

import math
import zlib
from dataclasses import dataclass
from datetime import datetime
from random import Random

UNAVAILABLE_RETRY_SECONDS = 300.0
LONGEST_RETRY_SECONDS = 600.0

_MOST_DOUBLINGS = 16
_DAY_SECONDS = 86_400.0
_HASHES = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """When one plugin is due.

    Attributes:
        anchor_seconds: an instant that all beats of this agent go through; see `phase_anchor`.
        interval_seconds: from one beat to the next.
        jitter_seconds: up to so much is added to each beat, anew each time.
    """

    anchor_seconds: float
    interval_seconds: float
    jitter_seconds: float = 0.0

    def next_after(self, planned: float | None, at_seconds: float, *, wait_seconds: float) -> float:
        """Return the beat nearest to `wait_seconds` from now.

        Args:
            planned: the beat that this reading was for, before jitter; None for the first.
            at_seconds: when the reading began. A late one does not shift the beat.
        """
        base = at_seconds - self.jitter_seconds
        if planned is None:
            base = at_seconds
        elif planned > base:
            base = planned
        beats = (base + wait_seconds - self.anchor_seconds) / self.interval_seconds
        return self.anchor_seconds + math.floor(beats + 0.5) * self.interval_seconds

    def with_jitter(self, planned: float, random: Random) -> float:
        """Return when to read for the beat `planned`."""
        return planned + random.random() * self.jitter_seconds if self.jitter_seconds else planned


def phase_anchor(seed: str, *, now: datetime, at_seconds: float) -> float:
    """Return the monotonic instant that an agent's beats go through.

    Args:
        seed: what tells this agent from the others.
        now: the wall clock's time, and `at_seconds` the monotonic clock's at the same moment.
    """
    offset_seconds = zlib.crc32(seed.encode()) / _HASHES * _DAY_SECONDS
    return at_seconds - (now.timestamp() - offset_seconds) % _DAY_SECONDS


def retry_seconds(interval_seconds: float, failures: int) -> float:
    """Return how long to wait after so many failures in a row: twice as long each time."""
    doubled = interval_seconds * 2.0 ** min(failures, _MOST_DOUBLINGS)
    return max(interval_seconds, min(LONGEST_RETRY_SECONDS, doubled))


def unavailable_seconds(interval_seconds: float) -> float:
    """Return how long to wait before a plugin is asked again that has nothing to read."""
    return max(interval_seconds, UNAVAILABLE_RETRY_SECONDS)
