"""A day of requests with noise and bursts, and services that follow it.

The load has two peaks, noise that is new every few seconds, minutes of doubled or tripled load, and
minutes of silence. Instances serve a minute after they were added.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

from jobqueue.services.autoscaling.decision import Memory, Observation, decide
from protocol.autoscaling import Autoscaling
from tests.cast import NOON

STEP_SECONDS = 15
STEPS_OF_MINUTE = 60 // STEP_SECONDS
START_STEPS = STEPS_OF_MINUTE


@dataclass(frozen=True)
class Replay:
    """The instances at each step, and what came of them."""

    instances: Sequence[int]
    loads: Sequence[float]
    target: float

    @property
    def changes(self) -> int:
        """How often their number changed."""
        return sum(before != after for before, after in pairwise(self.instances))

    @property
    def reversals(self) -> int:
        """How often it grew after it had shrunk, or the reverse."""
        pairs = pairwise(self.instances)
        signs = [after > before for before, after in pairs if before != after]
        return sum(sign != other for sign, other in pairwise(signs))

    @property
    def short_share(self) -> float:
        """The share of the requests above what the ready instances are for."""
        ready = [
            min(self.instances[max(0, step - START_STEPS) : step + 1])
            for step in range(len(self.instances))
        ]
        short = sum(
            max(0.0, load - self.target * count)
            for load, count in zip(self.loads, ready, strict=True)
        )
        return short / sum(self.loads)

    @property
    def instance_hours(self) -> float:
        """What they cost."""
        return sum(self.instances) * STEP_SECONDS / 3600


def noisy_day(seed: int = 7) -> list[float]:
    """Return the requests per second of each step of a day."""
    random_numbers = random.Random(seed)  # noqa: S311 - a trace, not a secret
    steps = 24 * 3600 // STEP_SECONDS
    factors = [1.0] * steps
    for factor, count in ((2.0, 10), (3.0, 6), (0.0, 6)):
        for _ in range(count):
            first = random_numbers.randrange(steps)
            for step in range(first, min(steps, first + random_numbers.randrange(4, 20))):
                factors[step] = factor
    loads = []
    for step in range(steps):
        hours = step * STEP_SECONDS / 3600
        usual = (
            30 + 90 * math.sin(math.pi * hours / 24) ** 2 + 50 * math.sin(math.pi * hours / 8) ** 2
        )
        loads.append(max(0.0, usual * factors[step] * random_numbers.gauss(1, 0.25)))
    return loads


def follow(loads: Sequence[float], policy: Autoscaling) -> Replay:
    """Return what a service with a policy does."""
    memory, awake, numbers = Memory(), policy.min_instances or 1, list[int]()
    for step, load in enumerate(loads):
        last_minute = loads[max(0, step - STEPS_OF_MINUTE + 1) : step + 1]
        seen = Observation(
            awake=awake,
            ready=min(numbers[-START_STEPS:], default=awake),
            load=sum(last_minute) / len(last_minute),
            burst=load,
            is_used=load > 0,
        )
        now = NOON + timedelta(seconds=step * STEP_SECONDS)
        decision = decide(policy, memory, seen, now=now)
        memory, awake = decision.memory, decision.wanted
        numbers.append(awake)
    return Replay(numbers, loads, policy.target)


def follow_naively(loads: Sequence[float], policy: Autoscaling) -> Replay:
    """Return what a service does that always has the instances of the present load."""
    wish: Callable[[float], int] = lambda load: math.ceil(load / policy.target)  # noqa: E731 - short
    numbers = [min(max(wish(load), 1), policy.max_instances) for load in loads]
    return Replay(numbers, loads, policy.target)
