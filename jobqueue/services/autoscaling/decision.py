"""Decide how many instances a service should have: pure, from what is seen and remembered.

The wish is the load over the target of an instance, rounded up. Within `TOLERANCE` of the target
nothing changes. It grows to the smallest wish of the last `up_seconds`, and shrinks to the largest
of the last `down_seconds`. A burst is not waited out: when the last seconds ask for twice the
instances, it grows at once, and does not shrink for a minute.

Source: the algorithm of Kubernetes' HPA
(https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/), and the panic mode of
Knative (https://knative.dev/docs/serving/autoscaling/kpa-specific/).
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from core.schedule_times import next_time
from protocol.autoscaling import MAX_INSTANCES, Autoscaling, ScalingMetric

TOLERANCE = 0.1
BURST_FACTOR = 2
BURST_CALM_SECONDS = 60
_UNITS = {
    ScalingMetric.CONCURRENT_REQUESTS: "{} concurrent requests",
    ScalingMetric.REQUESTS_PER_SECOND: "{} requests/s",
    ScalingMetric.GPU_UTILIZATION: "GPUs utilized by {} %",
}


class Memory(msgspec.Struct, kw_only=True):
    """What a service remembers between two decisions; times are in seconds since 1970.

    Attributes:
        wishes: time and number of instances of the decisions in the damping windows.
        busy_at: when it was last used, or woken.
        calm_at: until when it does not shrink after a burst.
    """

    wishes: list[tuple[float, int]] = []
    busy_at: float = 0.0
    calm_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a service does now.

    Attributes:
        awake: instances that serve, start or wait for an appliance.
        ready: those of them that serve.
        load: the metric over the last minute, as a sum of all instances; None if it is not known.
        burst: the same over the last seconds.
        is_used: whether it has requests, or samples above 0.
        obstacle: why instances can't be added now, as a sentence; "" if they can.
        spent: why it should have its fewest instances alone; "" if it should not.
    """

    awake: int
    ready: int
    load: float | None
    burst: float | None = None
    is_used: bool = False
    obstacle: str = ""
    spent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How many instances should be awake, and why; `is_refused` if more would be needed."""

    wanted: int
    why: str
    memory: Memory
    is_refused: bool = False


def decide(policy: Autoscaling, memory: Memory, seen: Observation, *, now: datetime) -> Decision:
    """Return how many instances a service should have now."""
    at = now.timestamp()
    low, high = bounds(policy, now=now)
    memory = Memory(
        # After a pause of the decisions it shrinks no sooner than in the beginning.
        wishes=_recent(memory.wishes, policy, at=at) or [(at, seen.awake)],
        busy_at=at if seen.is_used else memory.busy_at or at,
        calm_at=memory.calm_at,
    )
    wish, why = _wish(policy, seen)
    burst = _instances(seen.burst, policy.target)
    if seen.awake and burst >= BURST_FACTOR * seen.awake:
        memory.calm_at = at + BURST_CALM_SECONDS
    is_burst = at < memory.calm_at
    if is_burst:
        wish = max(wish, burst, seen.awake)
    wish = min(max(wish, low, 1), high)
    memory.wishes = [*memory.wishes, (at, wish)]
    wanted = wish if is_burst else _damped(memory.wishes, policy, seen.awake, at=at)
    wanted = min(max(wanted, low, 1), high, seen.awake + policy.max_step)
    if low == 0 and not seen.is_used:
        quiet_seconds = at - memory.busy_at
        if seen.awake == 0 or quiet_seconds >= policy.zero_seconds:
            wanted = 0
            why = f"no requests for {quiet_seconds:.0f} s"
    if wanted > low and seen.spent:
        return Decision(wanted=low, why=f"{why}; {seen.spent}", memory=memory, is_refused=True)
    if wanted > seen.awake and seen.obstacle:
        return Decision(
            wanted=seen.awake, why=f"{why}; {seen.obstacle}", memory=memory, is_refused=True
        )
    if seen.awake < low or seen.awake > high:
        why = f"{low} to {high} instances are allowed now"
    return Decision(wanted=wanted, why=why, memory=memory)


def bounds(policy: Autoscaling, *, now: datetime) -> tuple[int, int]:
    """Return the fewest and the most instances at a time; of windows that overlap, the largest."""
    lows, highs = [], []
    for window in policy.windows:
        began_after = now - timedelta(seconds=window.duration_seconds)
        opened_at = next_time(window.schedule, window.time_zone, after=began_after)
        if opened_at is not None and opened_at <= now:
            lows.append(window.min_instances)
            highs.append(window.max_instances)
    return max(lows, default=policy.min_instances), max(highs, default=policy.max_instances)


def _wish(policy: Autoscaling, seen: Observation) -> tuple[int, str]:
    metric = ScalingMetric(policy.metric)
    if metric is ScalingMetric.SCHEDULE:
        return 0, "as its schedule says"
    if seen.load is None:
        return seen.awake, f"{metric.value} is not known now"
    wish = _instances(seen.load, policy.target)
    if seen.awake and abs(seen.load / (policy.target * seen.awake) - 1) <= TOLERANCE:
        wish = seen.awake
    over = f"over {seen.ready} instance{'' if seen.ready == 1 else 's'}, target {policy.target:g}"
    is_share = metric is ScalingMetric.GPU_UTILIZATION
    shown = seen.load / max(1, seen.ready) if is_share else seen.load
    text = _UNITS.get(metric, f"{policy.samples} is {{}}").format(f"{shown:.3g}")
    return wish, f"{text} {over}"


def _instances(load: float | None, target: float) -> int:
    # A part of an instance that is only an error of rounding is none; and the quotient of a small
    # target may be infinite.
    return math.ceil(min(load / target - 1e-9, 2 * MAX_INSTANCES)) if load else 0


def _recent(
    wishes: list[tuple[float, int]], policy: Autoscaling, *, at: float
) -> list[tuple[float, int]]:
    since = at - max(policy.up_seconds, policy.down_seconds)
    return [wish for wish in wishes if since <= wish[0] <= at]


def _damped(wishes: list[tuple[float, int]], policy: Autoscaling, awake: int, *, at: float) -> int:
    """Return the number after the damping windows, which changes nothing in most steps."""
    last = wishes[-1][1]
    grown = min((wish for time, wish in wishes if time > at - policy.up_seconds), default=last)
    shrunk = max((wish for time, wish in wishes if time > at - policy.down_seconds), default=last)
    return grown if grown > awake else min(awake, shrunk)
