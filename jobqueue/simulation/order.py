"""The order in which waiting jobs are considered.

Jobs of one *lane* keep the order of their places in the queue; lanes are compared by their rank,
which may change while jobs run. So an order that depends on usage has a lane for each account, and
an order that doesn't has a single one.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from jobqueue.placement.views import PRIORITY_POINT
from jobqueue.simulation.recording import RecordedJob
from protocol.gpu_slices import WHOLE_GPU

HALF_LIFE_SECONDS = 7 * 86_400.0
_POINT_SECONDS = PRIORITY_POINT.total_seconds()


class Order(Protocol):
    """An order of the queue; instants are seconds since the start of the recording."""

    def lane(self, job: RecordedJob) -> int:
        """Return the lane of a job."""

    def place(self, job: RecordedJob) -> float:
        """Return the place of a job in its lane, the lowest first."""

    def rank(self, lane: int, now: float) -> float:
        """Return the rank of a lane, the lowest first."""

    def started(self, job: RecordedJob, now: float) -> None:
        """Count a job as running."""

    def ended(self, job: RecordedJob, now: float) -> None:
        """Count a job no longer as running."""


class Submission:
    """The order of submission, whatever the priority."""

    def __init__(self, _shares: Mapping[int, float]) -> None:
        pass

    def lane(self, _job: RecordedJob) -> int:
        """Return the only lane."""
        return 0

    def place(self, job: RecordedJob) -> float:
        """Return when the job was submitted."""
        return job.submitted_seconds

    def rank(self, _lane: int, _now: float) -> float:
        """Return the same rank always."""
        return 0.0

    def started(self, job: RecordedJob, now: float) -> None:
        """Ignore usage."""

    def ended(self, job: RecordedJob, now: float) -> None:
        """Ignore usage."""


class Priority(Submission):
    """The order of the queue: submission, moved by priority; see `views.queue_time`."""

    def place(self, job: RecordedJob) -> float:
        """Return the place in the queue."""
        return job.submitted_seconds - job.priority * _POINT_SECONDS


class ProjectShares(Priority):
    """The project that has used the least for its shares comes first.

    Usage is time of GPUs and, a hundredth as much, of cores; it halves every `HALF_LIFE_SECONDS`.
    """

    def __init__(self, shares: Mapping[int, float]) -> None:
        self._shares = shares
        self._usage: defaultdict[int, _Usage] = defaultdict(_Usage)

    def lane(self, job: RecordedJob) -> int:
        """Return the project."""
        return job.project

    def rank(self, lane: int, now: float) -> float:
        """Return the decayed usage by share."""
        return self._usage[lane].until(now) / self._shares.get(lane, 1.0)

    def started(self, job: RecordedJob, now: float) -> None:
        """Add the resources of a job to what runs."""
        self._usage[job.project].run(_size(job), now)

    def ended(self, job: RecordedJob, now: float) -> None:
        """Take them back."""
        self._usage[job.project].run(-_size(job), now)


@dataclass(slots=True)
class _Usage:
    """Decayed usage at an instant, and what runs since then."""

    used: float = 0.0
    running: float = 0.0
    at: float = 0.0

    def until(self, now: float) -> float:
        left = math.exp2(-(now - self.at) / HALF_LIFE_SECONDS)
        return self.used * left + self.running * (1 - left) * HALF_LIFE_SECONDS / math.log(2)

    def run(self, size: float, now: float) -> None:
        self.used, self.at = self.until(now), now
        self.running += size


def _size(job: RecordedJob) -> float:
    # A hundred cores count as a GPU, so that projects without GPUs have usage, too.
    return job.gpus * job.gpu_milli / WHOLE_GPU + job.cpus / 100


ORDERS: Mapping[str, Callable[[Mapping[int, float]], Order]] = {
    "fifo": Submission,
    "priority": Priority,
    "project_shares": ProjectShares,
}
ORDER_NAMES = tuple(ORDERS)
