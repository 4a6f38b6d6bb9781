"""The order in which waiting jobs are considered.

Jobs of one *lane* keep the order of their places in the queue; how lanes compare may change while
jobs run. So an order that depends on usage has a lane for each account, and an order that doesn't
has a single one.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

from jobqueue.fairshare.accounts import Projects, billed
from jobqueue.fairshare.drf import Resources
from jobqueue.fairshare.points import Shares, order_queue
from jobqueue.fairshare.settings import OrderPolicy
from jobqueue.fairshare.usage import Account, decay_factor, decayed_seconds
from jobqueue.placement.views import PRIORITY_POINT
from jobqueue.projects.models import Project
from jobqueue.simulation.recording import RecordedJob, RecordedProject, Recording
from protocol.gpu_slices import WHOLE_GPU
from protocol.job_spec import MAX_PRIORITY

# Any day will do.
START = datetime(2000, 1, 1, tzinfo=UTC)
# What has been used changes slowly, so ranks by usage are computed anew after so long.
RANKED_EVERY_SECONDS = 60.0
_POINT_SECONDS = PRIORITY_POINT.total_seconds()
_DAY_SECONDS = 86_400.0


class Order(Protocol):
    """An order of the queue; instants are seconds since the start of the recording.

    Attributes:
        is_fixed: whether the keys of jobs never change.
    """

    is_fixed: bool

    def lane(self, job: RecordedJob) -> int:
        """Return the lane of a job."""

    def place(self, job: RecordedJob) -> float:
        """Return the place of a job in its lane, the lowest first."""

    def key(self, lane: int, place: float, now: float) -> tuple[float, float]:
        """Return what jobs of all lanes are compared by, the lowest first."""

    def queued(self, job: RecordedJob, *, sign: int) -> None:
        """Count a job as waiting, or no longer."""

    def started(self, job: RecordedJob, now: float) -> None:
        """Count a job as running."""

    def ended(self, job: RecordedJob, now: float) -> None:
        """Count a job no longer as running."""


class Submission:
    """The order of submission, whatever the priority."""

    is_fixed = True

    def __init__(self, _recording: Recording) -> None:
        pass

    def lane(self, _job: RecordedJob) -> int:
        """Return the only lane."""
        return 0

    def place(self, job: RecordedJob) -> float:
        """Return when the job was submitted."""
        return job.submitted_seconds

    def key(self, _lane: int, place: float, _now: float) -> tuple[float, float]:
        """Return the place alone."""
        return 0.0, place

    def queued(self, job: RecordedJob, *, sign: int) -> None:
        """Ignore who waits."""

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

    Usage is time of GPUs and, a hundredth as much, of cores.
    """

    is_fixed = False

    def __init__(self, recording: Recording) -> None:
        self._shares = recording.shares()
        half_life = recording.rules.ordering.half_life
        self._usage: defaultdict[int, _Usage] = defaultdict(lambda: _Usage(half_life))

    def lane(self, job: RecordedJob) -> int:
        """Return the project."""
        return job.project

    def key(self, lane: int, place: float, now: float) -> tuple[float, float]:
        """Return the decayed usage by share before the place."""
        return self._usage[lane].until(now) / self._shares.get(lane, 1.0), place

    def started(self, job: RecordedJob, now: float) -> None:
        """Add the resources of a job to what runs."""
        self._usage[job.project].run(_size(job), now)

    def ended(self, job: RecordedJob, now: float) -> None:
        """Take them back."""
        self._usage[job.project].run(-_size(job), now)


class Points(Priority):
    """The order of a queue with fair shares: by the points of `jobqueue.fairshare.points`.

    A lane is a user in a project. Its fair share is that of its latest job among the latest of all
    lanes, as `order_queue` computes it.
    """

    is_fixed = False

    def __init__(self, recording: Recording) -> None:
        rules = recording.rules
        self._settings = replace(rules.ordering, policy=OrderPolicy(rules.order))
        fleet = recording.appliances
        self._fleet = Resources(
            sum(len(appliance.gpus) for appliance in fleet),
            sum(appliance.cpus for appliance in fleet),
            sum(appliance.memory_bytes for appliance in fleet),
        )
        self._projects = _projects(recording)
        self._lanes: dict[Account, int] = {}
        self._latest: dict[int, _Row] = {}
        self._usage: dict[Account, _Usage] = {}
        self._running: defaultdict[Account, Resources] = defaultdict(Resources)
        self._waiting: Counter[int] = Counter()
        self._fair_shares: dict[int, float] = {}
        self._ranked_until = 0.0

    def lane(self, job: RecordedJob) -> int:
        """Return the user in the project."""
        account = _account(job)
        return self._lanes.setdefault(account, len(self._lanes))

    def place(self, job: RecordedJob) -> float:
        """Return the points that don't change beside those of other jobs, the most first."""
        settings = self._settings
        size = max(_request(job).parts_of(self._fleet))
        return -(
            settings.priority_weight * job.priority / MAX_PRIORITY
            + settings.size_weight * size
            - settings.age_weight * job.submitted_seconds / _DAY_SECONDS
        )

    def key(self, lane: int, place: float, now: float) -> tuple[float, float]:
        """Return all points, the most first."""
        if not self._fair_shares or now >= self._ranked_until:
            self._rank(now)
        return place - self._settings.fair_share_weight * self._fair_shares[lane], place

    def queued(self, job: RecordedJob, *, sign: int) -> None:
        """Note the job as the latest of its lane."""
        account, lane = _account(job), self.lane(job)
        self._waiting[lane] += sign
        if sign > 0:
            request = _request(job)
            self._latest[lane] = _Row(str(lane), account.project_id, account.user_id, *request)
        if lane not in self._fair_shares or self._settings.policy is OrderPolicy.DRF:
            self._fair_shares.clear()

    def started(self, job: RecordedJob, now: float) -> None:
        """Add the resources of a job to what runs."""
        self._run(job, now, sign=1)

    def ended(self, job: RecordedJob, now: float) -> None:
        """Take them back."""
        self._run(job, now, sign=-1)

    def _run(self, job: RecordedJob, now: float, *, sign: int) -> None:
        account = _account(job)
        request = Resources(*(sign * amount for amount in _request(job)))
        self._running[account] = self._running[account].plus(request)
        usage = self._usage.setdefault(account, _Usage(self._settings.half_life))
        usage.run(billed(request, self._settings, has_gpus=self._fleet.gpus > 0), now)
        if self._settings.policy is OrderPolicy.DRF:
            self._fair_shares.clear()

    def _rank(self, now: float) -> None:
        shares = Shares(
            projects=self._projects,
            usage={account: usage.until(now) for account, usage in self._usage.items()},
            running=self._running,
            fleet=self._fleet,
        )
        # Progressive filling gives to those who wait; Fair Tree ranks everybody.
        is_ranked = self._settings.policy is OrderPolicy.FAIR_TREE
        rows: list[Any] = [
            row for lane, row in self._latest.items() if is_ranked or self._waiting[lane]
        ]
        order = order_queue(rows, shares, self._settings, now=START)
        column = order.values[:, 1].tolist()
        self._fair_shares = {
            int(ident): value for ident, value in zip(order.ids, column, strict=True)
        }
        self._ranked_until = now + RANKED_EVERY_SECONDS


class _Row(NamedTuple):
    """The latest job of a lane as `order_queue` reads it."""

    id: str
    project_id: str
    user_id: str
    gpus: float
    cpus: float
    memory_bytes: float
    queue_at: datetime = START
    priority: int = 0


@dataclass(slots=True)
class _Usage:
    """Decayed usage at an instant, and what runs since then."""

    half_life: timedelta
    used: float = 0.0
    running: float = 0.0
    at: float = 0.0

    def until(self, now: float) -> float:
        since, until = timedelta(seconds=self.at), timedelta(seconds=now)
        seconds = decayed_seconds(
            START + since, START + until, at=START + until, half_life=self.half_life
        )
        return self.used * decay_factor(until - since, self.half_life) + self.running * seconds

    def run(self, size: float, now: float) -> None:
        self.used, self.at = self.until(now), now
        self.running += size


def _projects(recording: Recording) -> Projects:
    listed = {project.project: project for project in recording.projects}
    others = {job.project for job in recording.jobs if job.project} - listed.keys()
    projects = [*listed.values(), *(RecordedProject(project=number) for number in sorted(others))]
    rows = {
        str(project.project): Project(
            id=str(project.project),
            name=str(project.project),
            parent_id=str(project.parent) if project.parent else None,
            shares=project.shares,
        )
        for project in projects
    }
    shares = {
        Account(str(project.project), str(user)): amount
        for project in projects
        for user, amount in project.member_shares.items()
    }
    return Projects(rows, shares)


def _account(job: RecordedJob) -> Account:
    return Account(str(job.project) if job.project else "", str(job.user))


def _request(job: RecordedJob) -> Resources:
    gpus = job.gpus * job.gpu_milli / WHOLE_GPU
    return Resources(gpus * job.nodes, job.cpus * job.nodes, job.memory_bytes * job.nodes)


def _size(job: RecordedJob) -> float:
    # A hundred cores count as a GPU, so that projects without GPUs have usage, too.
    return (job.gpus * job.gpu_milli / WHOLE_GPU + job.cpus / 100) * job.nodes


ORDERS: Mapping[str, Callable[[Recording], Order]] = {
    "fifo": Submission,
    "priority": Priority,
    "project_shares": ProjectShares,
    OrderPolicy.FAIR_TREE.value: Points,
    OrderPolicy.DRF.value: Points,
}
ORDER_NAMES = tuple(ORDERS)
