"""The decisions of a plan about waiting jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from jobqueue.placement.filters import Rejection
from jobqueue.placement.rentals import RentalView
from jobqueue.placement.views import JobView, RunningJob
from protocol.gpu_slices import GPUSlice


class Rule(StrEnum):
    """Which rule chose the appliance, beside the policies by name."""

    LEAST_RECENTLY_USED = "least_recently_used"
    REQUESTED = "requested"
    TRIAL = "trial"
    GANG = "gang"
    RECLAIM = "reclaim"
    RENTED = "rented"


class Action(StrEnum):
    """The action for a waiting job.

    A held one would exceed a cap or a quota; WAIT is for gangs, and for jobs that only rented
    appliances can run: they wait without a place of their own.
    """

    ASSIGN = "assign"
    BIND = "bind"
    STAY = "stay"
    WAIT = "wait"
    UNPLACED = "unplaced"
    HELD = "held"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision for one job, the reason, and the rejections of other appliances.

    Attributes:
        appliance_id: where it runs (ASSIGN) or waits (BIND, STAY); None when it is UNPLACED.
        policy: the name of the policy or `Rule` that chose it.
        gpu_uuids: the GPUs allocated to it; only with ASSIGN.
        gpu_slice: the part that it gets of its only GPU; None for whole ones.
        rejections: the most relevant first.
        victims: the running jobs that must stop for it, by id.
        is_trial: whether its start shows if the appliance can leave its quarantine.
        guarantor: the project for whose guarantee the victims stop; "" if not for one.
        cached_bytes: how much of its datasets the appliance had.
        dataset_bytes: the size of its datasets.
        is_queued: whether it is to wait in the queue of a cluster (ASSIGN).
        is_on_cluster: whether the appliance is the connector of a cluster.
        rental: how the appliance is rented (ASSIGN); None for an own one.
        waits_for_data: whether it waits only for its data there (BIND, STAY).
    """

    job_id: str
    action: Action
    reason: str
    appliance_id: str | None = None
    policy: str = ""
    gpu_uuids: Sequence[str] = ()
    gpu_slice: GPUSlice | None = None
    rejections: Sequence[Rejection] = ()
    victims: Sequence[str] = ()
    is_trial: bool = False
    guarantor: str = ""
    cached_bytes: int = 0
    dataset_bytes: int = 0
    is_queued: bool = False
    is_on_cluster: bool = False
    rental: RentalView | None = None
    waits_for_data: bool = False


def in_order(jobs: Sequence[JobView]) -> list[JobView]:
    """Return jobs in the order of the queue."""
    return sorted(jobs, key=lambda job: job.order)


def stopping_text(victims: Sequence[RunningJob]) -> str:
    """Return which jobs must stop, as the end of a sentence about an appliance."""
    if not victims:
        return ""
    names = ", ".join(repr(victim.name) for victim in victims[:3])
    rest = f" and {len(victims) - 3} more" if len(victims) > 3 else ""  # noqa: PLR2004
    return f", where {names}{rest} must stop for it"
