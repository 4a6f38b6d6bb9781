"""The points of waiting jobs, by which a queue with a fair share is ordered.

The value of the fair share is from 0 to 1. By Fair Tree it is the place of the job's user among
all; by dominant resource fairness it is 2 ^ -level, so 1 with nothing and 0.5 with what the shares
promise, at the level at which progressive filling comes to the job. The order of the queue among
jobs with the same points is the usual one.

Source: Slurm's multifactor priority, https://slurm.schedmd.com/priority_multifactor.html; there the
age has a limit, so a job may starve.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

import numpy as np
import numpy.typing as npt

from jobqueue.fairshare.accounts import Projects, filling_tree, share_tree
from jobqueue.fairshare.drf import QueuedJob, Resources
from jobqueue.fairshare.settings import OrderPolicy, OrderSettings
from jobqueue.fairshare.tree import ShareNode, rank_tree
from jobqueue.fairshare.usage import Account
from jobqueue.placement.views import PRIORITY_POINT, Part
from protocol.job_spec import MAX_PRIORITY

Floats = npt.NDArray[np.float64]

_DAY_SECONDS = 86_400
# Progressive filling goes on until the jobs that it handed out would fill the fleet so many times;
# those behind them come last, in the usual order.
_FILLED_FLEETS = 1.0
_PART_NAMES = ("priority", "fair_share", "age", "size")


class WaitingRow(Protocol):
    """The columns of a waiting job that its points need."""

    id: str
    queue_at: datetime
    priority: int
    project_id: str | None
    user_id: str | None
    gpus: int
    cpus: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What the order of a queue depends on beside its jobs.

    Attributes:
        projects: of the tenant.
        usage: decayed, in billed units, by account.
        running: the resources of running jobs by account.
        fleet: the resources of all appliances.
    """

    projects: Projects
    usage: Mapping[Account, float]
    running: Mapping[Account, Resources]
    fleet: Resources


@dataclass(frozen=True, slots=True)
class QueueOrder:
    """The jobs of a queue by id, the first one first; without points it is the usual order.

    Attributes:
        ids: the jobs.
        points: of the jobs, by id.
        values: of the jobs in the order of `ids`, with a column for each part.
        weights: of the parts.
        ranks: of the users of the jobs, in the order of `ids`; none unless Fair Tree gives them.
        user_count: how many users have a rank.
    """

    ids: Sequence[str]
    points: Mapping[str, float] = field(default_factory=dict)
    values: Floats = field(default_factory=lambda: np.zeros((0, len(_PART_NAMES))))
    weights: Sequence[int] = ()
    ranks: Sequence[int] = ()
    user_count: int = 0

    def reordered(self, ids: Sequence[str]) -> "QueueOrder":
        """Return the same jobs in another order."""
        places = {ident: place for place, ident in enumerate(self.ids)}
        moved = [places[ident] for ident in ids]
        values = self.values[moved] if self.weights else self.values
        ranks = [self.ranks[place] for place in moved] if self.ranks else ()
        return replace(self, ids=ids, values=values, ranks=ranks)

    def parts(self, position: int) -> list[Part]:
        """Return the parts of the points of the job at a position, from 0."""
        if not self.weights:
            return []
        values = self.values[position].tolist()
        return [Part(*part) for part in zip(_PART_NAMES, values, self.weights, strict=True)]


def order_queue(
    rows: Sequence[WaitingRow], shares: Shares, settings: OrderSettings, *, now: datetime
) -> QueueOrder:
    """Order waiting jobs, given in the usual order, by their points."""
    if not rows:
        return QueueOrder([])
    owners = [(row.project_id, row.user_id) for row in rows]
    account_of = {owner: shares.projects.account(*owner) for owner in set(owners)}
    accounts = [account_of[owner] for owner in owners]
    root, users = share_tree(shares.projects, shares.usage, {*account_of.values(), *shares.running})
    user_count = len(rank_tree(root))
    requests = _requests(rows, shares.fleet)
    is_ranked = settings.policy is OrderPolicy.FAIR_TREE
    if is_ranked:
        fair_share = np.array([users[account].factor for account in accounts])
    else:
        fair_share = _filled(accounts, requests, shares, (root, users))
    priorities = np.array([row.priority for row in rows], np.float64)
    base = np.array([row.queue_at.timestamp() for row in rows], np.float64)
    waited = now.timestamp() - base - priorities * PRIORITY_POINT.total_seconds()
    age = np.maximum(waited, 0) / _DAY_SECONDS
    size = requests.max(axis=1)
    values = np.column_stack([priorities / MAX_PRIORITY, fair_share, age, size])
    weights = [getattr(settings, f"{name}_weight") for name in _PART_NAMES]
    points = values @ np.array(weights, np.float64)
    order = np.argsort(-points, kind="stable")
    return QueueOrder(
        [rows[at].id for at in order.tolist()],
        dict(zip((row.id for row in rows), points.tolist(), strict=True)),
        values[order],
        weights,
        [users[accounts[at]].rank for at in order.tolist()] if is_ranked else (),
        user_count,
    )


def _requests(rows: Sequence[WaitingRow], fleet: Resources) -> Floats:
    """Return the part of each resource of the fleet that each job requests."""
    amounts = np.array([(row.gpus, row.cpus, row.memory_bytes) for row in rows], np.float64)
    totals = np.array(fleet, np.float64)
    return np.divide(amounts, totals, out=np.zeros_like(amounts), where=totals > 0)


def _filled(
    accounts: Sequence[Account],
    requests: Floats,
    shares: Shares,
    tree: tuple[ShareNode, Mapping[Account, ShareNode]],
) -> Floats:
    """Return the value of the fair share of each job by progressive filling."""
    jobs: defaultdict[Account, list[QueuedJob]] = defaultdict(list)
    for number, request in enumerate(requests.tolist()):
        jobs[accounts[number]].append(QueuedJob(number, Resources(*request)))
    running = {account: used.parts_of(shares.fleet) for account, used in shares.running.items()}
    levels = np.full(len(accounts), np.nan)
    filling = filling_tree(*tree, running, jobs)
    level, enough = 0.0, 0.0
    for job, level in filling.fill():
        levels[job.number] = level
        enough = enough or filling.dominant_share + _FILLED_FLEETS
        if filling.dominant_share > enough:
            break
    values: Floats = np.exp2(-np.nan_to_num(levels, nan=level))
    return values
