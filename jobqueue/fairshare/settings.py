"""How a tenant orders its queue: the policy, the weights of a job's points, and what usage counts.

A job's *points* are the sum of its priority, fair share, age and size, each times its weight. The
age is in days and has no limit, so every job comes first in the end.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

MAX_WEIGHT = 1_000_000
MIN_HALF_LIFE_DAYS, MAX_HALF_LIFE_DAYS = 1 / 24, 365


class OrderPolicy(StrEnum):
    """How a queue is ordered: by submission and priority, or by points with a fair share."""

    FIFO = "fifo"
    FAIR_TREE = "fair_tree"
    DRF = "drf"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSettings:
    """The order of a tenant's queue.

    Attributes:
        half_life_days: after which usage counts half.
        priority_weight: the points of a job with the highest priority.
        fair_share_weight: the points of the user whose turn it is.
        age_weight: the points for each day of waiting.
        size_weight: the points of a job that needs the whole fleet; below 0, small jobs come first.
        gpu_usage_weight: what an allocated GPU costs; None is 1, or 0 where there are no GPUs.
        cpu_usage_weight: what an allocated CPU core costs; None is 0, or 1 where there are no GPUs.
        memory_usage_weight: what a GiB of memory costs.
    """

    policy: OrderPolicy = OrderPolicy.FIFO
    half_life_days: float = 7.0
    priority_weight: int = 1000
    fair_share_weight: int = 1000
    age_weight: int = 200
    size_weight: int = 0
    gpu_usage_weight: float | None = None
    cpu_usage_weight: float | None = None
    memory_usage_weight: float = 0.0

    @property
    def half_life(self) -> timedelta:
        """Return the time after which usage counts half."""
        return timedelta(days=self.half_life_days)

    def errors(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each invalid field with what is wrong."""
        if not MIN_HALF_LIFE_DAYS <= self.half_life_days <= MAX_HALF_LIFE_DAYS:
            days = f"{self.half_life_days:g}"
            yield (
                "half_life_days",
                f"half_life_days is {days}; enter 0.042 (one hour) to {MAX_HALF_LIFE_DAYS}.",
            )
        for name in ("priority_weight", "fair_share_weight", "age_weight", "size_weight"):
            weight = getattr(self, name)
            lowest = -MAX_WEIGHT if name == "size_weight" else 0
            if not lowest <= weight <= MAX_WEIGHT:
                yield name, f"{name} is {weight}; enter {lowest} to {MAX_WEIGHT}."
        if self.policy is not OrderPolicy.FIFO and not self.age_weight:
            yield "age_weight", "age_weight is 0; enter at least 1, or a job may wait forever."
        yield from self._usage_errors()

    def _usage_errors(self) -> Iterator[tuple[str, str]]:
        names = ("gpu_usage_weight", "cpu_usage_weight", "memory_usage_weight")
        weights = [getattr(self, name) for name in names]
        for name, weight in zip(names, weights, strict=True):
            if weight is not None and not (math.isfinite(weight) and 0 <= weight <= MAX_WEIGHT):
                yield name, f"{name} is {weight:g}; enter 0 to {MAX_WEIGHT}."
        if weights == [0, 0, 0]:
            yield "gpu_usage_weight", "All weights of usage are 0; enter one above 0."
