"""The choice of an access point: by latency, and among those about as fast by weighted rendezvous.

Each agent hashes its id with each address, so all agents together spread by weight, an agent's
choice stays as long as the address is there, and a new one takes only its share from the others.
"""

import hashlib
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from statistics import median

WINDOW = 5
AVOID_SECONDS = 15.0
MAX_AVOID_SECONDS = 600.0
# A faster one is faster by both; the one in use is left for twice as much only.
FASTER_RATIO = 0.2
FASTER_SECONDS = 0.005
SLACK_IN_USE = 2.0
DEFAULT_WEIGHT = 100


class Tier(IntEnum):
    """The order in which addresses are used: the next tier only where none of this one answers."""

    LISTED = 0
    DRAINING = 1
    CONFIGURED = 2
    """In the agent's configuration, but not in the portal's list."""
    REMOVED = 3
    """In neither of them; its agent is about to leave it."""


def _window() -> deque[float]:
    return deque(maxlen=WINDOW)


@dataclass(slots=True, eq=False)
class AccessPoint:
    """An address, and what the agent has measured there. Times are monotonic seconds.

    Attributes:
        failures: outages since it answered last, each of which makes `avoided_until` later.
        is_answering: whether it answered the last probe.
        probed_at: the time of the last probe.
        answered_at: the time of the last response other than an error of the server.
        unavailable_since: the time of the first of `unavailable` errors in a row, such as 503.
        judged_at: the time when a suspicion was followed up last; `is_alive` if that cleared it.
    """

    url: str
    weight: int = DEFAULT_WEIGHT
    tier: Tier = Tier.LISTED
    probes: deque[float] = field(default_factory=_window)
    writes: deque[float] = field(default_factory=_window)
    failures: int = 0
    avoided_until: float = -math.inf
    is_answering: bool = True
    probed_at: float = -math.inf
    answered_at: float = -math.inf
    unavailable: int = 0
    unavailable_since: float = 0.0
    judged_at: float = -math.inf
    is_alive: bool = False

    @property
    def latency_seconds(self) -> float:
        """The median of the last probes; infinite before the first."""
        return median(self.probes) if self.probes else math.inf

    @property
    def is_new(self) -> bool:
        """Return whether it was never probed."""
        return self.probed_at == -math.inf

    def record_probe(self, latency_seconds: float | None, *, now: float) -> None:
        """Record its latency; None if it isn't healthy."""
        self.probed_at = now
        self.is_answering = latency_seconds is not None
        if latency_seconds is None:
            self.probes.clear()
        else:
            self.probes.append(latency_seconds)

    def avoid(self, *, now: float) -> None:
        """Avoid it for a while, longer after each outage, which counts once."""
        if now >= self.avoided_until:
            doubled = AVOID_SECONDS * 2.0 ** min(self.failures, 16)
            self.avoided_until = now + min(MAX_AVOID_SECONDS, doubled)
            self.failures += 1

    def is_healthy(self, now: float) -> bool:
        """Return whether it is not avoided now."""
        return self.is_answering and now >= self.avoided_until


def choose(
    points: Sequence[AccessPoint], *, key: str, in_use: AccessPoint | None = None
) -> AccessPoint:
    """Return the access point that an agent should use.

    Args:
        points: the healthy ones; at least one.
        key: the agent's id.
        in_use: counts as fast up to a higher latency, so that noise doesn't move the agent.

    Source: Schindelhauer and Schomaker, Weighted distributed hash tables, 2005.
    """
    tier = min(point.tier for point in points)
    candidates = [point for point in points if point.tier is tier]
    fastest_seconds = min(point.latency_seconds for point in candidates)
    equals = [
        point
        for point in candidates
        if is_about_as_fast(
            point.latency_seconds, fastest_seconds, slack=SLACK_IN_USE if point is in_use else 1.0
        )
    ]
    return max(equals, key=lambda point: rendezvous_score(key, point.url, point.weight))


def ranked(points: Sequence[AccessPoint], *, key: str, now: float) -> list[AccessPoint]:
    """Return points in the order of their use: the choice, then the nearest healthy ones."""
    ordered = sorted(
        points, key=lambda point: (not point.is_healthy(now), point.tier, point.latency_seconds)
    )
    if healthy := [point for point in ordered if point.is_healthy(now)]:
        chosen = choose(healthy, key=key)
        ordered.sort(key=lambda point: point is not chosen)
    return ordered


def is_about_as_fast(seconds: float, fastest_seconds: float, *, slack: float = 1.0) -> bool:
    """Return whether a latency is as good as the lowest, for which `slack` raises the limit."""
    by_ratio = fastest_seconds / (1 - FASTER_RATIO * slack)
    return seconds <= max(by_ratio, fastest_seconds + FASTER_SECONDS * slack)


def rendezvous_score(key: str, url: str, weight: int) -> float:
    """Return the score of an address for an agent; the highest wins.

    Args:
        key: the agent's id.
        url: the address.
        weight: its share of the agents; 0 is as good as 1, for addresses that are all drained.
    """
    digest = hashlib.sha256(f"{key}\n{url}".encode()).digest()
    uniform = (int.from_bytes(digest[:7]) + 0.5) / 2**56
    return max(1, weight) / -math.log(uniform)
