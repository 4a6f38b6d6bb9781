"""Dominant resource fairness: give to whoever has the least of the resource it needs the most.

The *dominant share* of a user or project is the largest of its shares of the fleet's resources.
*Progressive filling* hands out jobs one by one: at each level of the tree to the child whose
dominant share, divided by its normalized shares, is the lowest. What runs already counts.

Source: Ghodsi, Zaharia, Hindman, Konwinski, Shenker and Stoica, "Dominant Resource Fairness: Fair
Allocation of Multiple Resource Types", NSDI 2011, algorithm 1 and section 4.3 (weights).
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Resources(NamedTuple):
    """An amount of each resource that is shared."""

    gpus: float = 0.0
    cpus: float = 0.0
    memory_bytes: float = 0.0

    def plus(self, other: "Resources") -> "Resources":
        """Return the sum of both."""
        return Resources(
            self.gpus + other.gpus,
            self.cpus + other.cpus,
            self.memory_bytes + other.memory_bytes,
        )

    def parts_of(self, fleet: "Resources") -> "Resources":
        """Return which part of each resource of the fleet this is; 0 of one that it lacks."""
        return Resources(
            *(amount / total if total else 0.0 for amount, total in zip(self, fleet, strict=True))
        )


class QueuedJob(NamedTuple):
    """A waiting job: its number in the queue, and the part of the fleet that it requests."""

    number: int
    request: Resources


class Filling:
    """A project or user of the tree, with the part of the fleet that it has been given.

    Args:
        weight: its shares, normalized to those of its siblings.
        children: the nodes below a project.
        allocated: what runs of it, beside what its children have, as a part of the fleet.
        jobs: the waiting jobs of a user, in their order.
    """

    def __init__(
        self,
        weight: float = 1.0,
        children: Sequence["Filling"] = (),
        *,
        allocated: Resources = Resources(),  # noqa: B008 - it is immutable
        jobs: Sequence[QueuedJob] = (),
    ) -> None:
        self.weight = weight
        self.children = children
        self.gpus, self.cpus, self.memory_bytes = allocated
        self.jobs = list(reversed(jobs))
        self.hungry: list[tuple[float, int, Filling]] = []
        """The children with waiting jobs, as a heap by their levels."""

    @property
    def dominant_share(self) -> float:
        """The largest part that it has been given of a resource of the fleet."""
        return max(self.gpus, self.cpus, self.memory_bytes)

    @property
    def level(self) -> float:
        """The dominant share divided by what the node's shares promise."""
        return self.dominant_share / self.weight if self.weight else float("inf")

    def fill(self) -> Iterator[tuple[QueuedJob, float]]:
        """Yield the jobs in the order of progressive filling, each with the level before it.

        The level is the weighted dominant share of the first node on the way down that has
        siblings. It never falls: 0 has nothing, and 1 has exactly what its shares promise.
        """
        self.prepare()
        compared = self
        while len(compared.children) == 1 and compared.children[0].children:
            compared = compared.children[0]
        while self.hungry or self.jobs:
            level = compared.hungry[0][0] if compared.hungry else compared.level
            yield self.take(), level

    def prepare(self) -> None:
        """Sum up what the children have, and make a heap of those with waiting jobs."""
        for child in self.children:
            child.prepare()
            self._add(child.gpus, child.cpus, child.memory_bytes)
        self.hungry = [
            (child.level, position, child)
            for position, child in enumerate(self.children)
            if child.hungry or child.jobs
        ]
        heapq.heapify(self.hungry)

    def take(self) -> QueuedJob:
        """Give to the next job of the child with the lowest level; return the job."""
        if not self.hungry:
            job = self.jobs.pop()
        else:
            _, position, child = self.hungry[0]
            job = child.take()
            if child.hungry or child.jobs:
                heapq.heapreplace(self.hungry, (child.level, position, child))
            else:
                heapq.heappop(self.hungry)
        self._add(*job.request)
        return job

    def _add(self, gpus: float, cpus: float, memory_bytes: float) -> None:
        self.gpus += gpus
        self.cpus += cpus
        self.memory_bytes += memory_bytes
