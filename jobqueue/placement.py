"""Placement: which appliance and which GPUs each waiting job gets, and why not the others.

Pure: a `Snapshot` of one tenant goes in, a `Plan` comes out; nothing is read or written here. So
the same code places jobs, explains ("why does it wait?") and simulates ("what if?").

Words: an appliance is *suitable* when it is online, takes jobs and its totals suffice; it is *free*
for a job when what is left of it suffices too. A job that finds no free appliance is *bound* to a
suitable one and waits there. `jobqueue/README.md` draws the flow.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from jobqueue.refusals import ApplianceView, JobView, Refusal, Remainder, not_free, unsuitable

# A job that has waited this long on an appliance keeps later jobs from starting there.
HOLD_AFTER = timedelta(minutes=10)


class Policy(StrEnum):
    """Which rule chose the appliance."""

    FIRST_FREE = "first_free"
    LEAST_RECENTLY_USED = "least_recently_used"
    REQUESTED = "requested"


class Action(StrEnum):
    """What to do with a waiting job."""

    ASSIGN = "assign"
    BIND = "bind"
    STAY = "stay"
    UNPLACED = "unplaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One tenant's appliances, and its waiting jobs with the longest waiting first."""

    now: datetime
    appliances: tuple[ApplianceView, ...]
    jobs: tuple[JobView, ...]
    hold_after: timedelta = HOLD_AFTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What becomes of one job, why, and why not elsewhere.

    Attributes:
        appliance_id: where it runs (ASSIGN) or waits (BIND, STAY); None when it is UNPLACED.
        gpu_uuids: the GPUs it is given; only with ASSIGN.
        moved_from: the appliance it waited on before, when that is another one.
    """

    job_id: str
    action: Action
    reason: str
    appliance_id: str | None = None
    policy: Policy | None = None
    gpu_uuids: tuple[str, ...] = ()
    moved_from: str | None = None
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """One decision per waiting job, in the order in which they were taken."""

    decisions: tuple[Decision, ...]


def plan(snapshot: Snapshot) -> Plan:
    """Decide for every waiting job in turn; what one gets is gone for those after it."""
    ledger = _Ledger(snapshot)
    return Plan(tuple(_decide(job, ledger) for job in snapshot.jobs))


@dataclass(slots=True)
class _Ledger:
    """What is left of each appliance while the plan grows."""

    snapshot: Snapshot
    appliances: dict[str, ApplianceView] = field(init=False)
    left: dict[str, Remainder] = field(init=False)
    least_recent: list[str] = field(init=False)
    held_for: dict[str, JobView] = field(default_factory=dict)

    def __post_init__(self) -> None:
        views = sorted(self.snapshot.appliances, key=lambda view: (view.name, view.id))
        self.appliances = {view.id: view for view in views}
        self.left = {view.id: Remainder.of(view) for view in views}
        never_used = [view.id for view in views if view.last_used_at is None]
        used = [(view.last_used_at, view.id) for view in views if view.last_used_at is not None]
        self.least_recent = never_used + [ident for _, ident in sorted(used)]

    def use(self, ident: str) -> None:
        """Make an appliance the most recently used one."""
        self.least_recent.remove(ident)
        self.least_recent.append(ident)


def _decide(job: JobView, ledger: _Ledger) -> Decision:
    refused: dict[str, Refusal] = {}
    suitable = []
    for view in ledger.appliances.values():
        refusal = unsuitable(job, view)
        if refusal is None:
            suitable.append(view)
        else:
            refused[view.id] = refusal
    # Where it waits comes first; the sort is stable, so the others keep their order by name.
    second_best: ApplianceView | None = None
    for view in sorted(suitable, key=lambda view: view.id != job.bound_to):
        left = ledger.left[view.id]
        refusal = _held(job, view, ledger) or not_free(job, view, left)
        if refusal is not None:
            refused[view.id] = refusal
        elif left.needs_degraded(job):
            second_best = second_best or view
        else:
            passed_over = second_best is not None
            return _assign(job, view, ledger, tuple(refused.values()), passed_over=passed_over)
    if second_best is not None:
        return _assign(job, second_best, ledger, tuple(refused.values()))
    return _wait(job, suitable, ledger, tuple(refused.values()))


def _assign(
    job: JobView,
    view: ApplianceView,
    ledger: _Ledger,
    refused: tuple[Refusal, ...],
    *,
    passed_over: bool = False,
) -> Decision:
    """Give the job the appliance; `passed_over` says that degraded GPUs were free elsewhere."""
    gpu_uuids = ledger.left[view.id].take(job)
    ledger.use(view.id)
    moved_from = job.bound_to if job.bound_to not in {None, view.id} else None
    policy, reason = Policy.FIRST_FREE, f"{view.name} was the first free appliance."
    if job.requested:
        policy, reason = Policy.REQUESTED, f"{view.name} was asked for and is free."
    elif passed_over:
        reason = f"{view.name} was the first free appliance with enough healthy GPUs."
    elif job.bound_to == view.id:
        policy, reason = Policy.LEAST_RECENTLY_USED, f"{view.name}, where it waited, is free now."
    elif moved_from:
        reason = f"{view.name} became free before {_name_of(moved_from, ledger)}, where it waited."
    return Decision(
        job_id=job.id, action=Action.ASSIGN, reason=reason, appliance_id=view.id, policy=policy,
        gpu_uuids=gpu_uuids, moved_from=moved_from, refused=refused,
    )  # fmt: skip


def _wait(
    job: JobView, suitable: list[ApplianceView], ledger: _Ledger, refused: tuple[Refusal, ...]
) -> Decision:
    bound = ledger.appliances.get(job.bound_to or "")
    if bound and (bound in suitable or _is_only_stale(job, bound)):
        _hold(job, bound, ledger)
        return Decision(
            job_id=job.id, action=Action.STAY, reason=f"It waits on {bound.name}.",
            appliance_id=bound.id, policy=_waiting_policy(job), refused=refused,
        )  # fmt: skip
    ranked = sorted(suitable, key=lambda view: ledger.least_recent.index(view.id))
    if not ranked:
        return Decision(
            job_id=job.id, action=Action.UNPLACED, reason="No appliance can take it now.",
            moved_from=job.bound_to, refused=refused,
        )  # fmt: skip
    chosen = ranked[0]
    ledger.use(chosen.id)
    _hold(job, chosen, ledger)
    return Decision(
        job_id=job.id, action=Action.BIND, reason=_binding_reason(job, chosen, ledger),
        appliance_id=chosen.id, policy=_waiting_policy(job), moved_from=job.bound_to,
        refused=refused,
    )  # fmt: skip


def _held(job: JobView, view: ApplianceView, ledger: _Ledger) -> Refusal | None:
    earlier = ledger.held_for.get(view.id)
    if earlier is None or earlier.id == job.id:
        return None
    minutes = int((ledger.snapshot.now - earlier.submitted_at).total_seconds() // 60)
    return Refusal.of(
        view, "held_for_earlier_job", f"held for {earlier.name!r}, which has waited {minutes} min"
    )


def _hold(job: JobView, view: ApplianceView, ledger: _Ledger) -> None:
    if ledger.snapshot.now - job.submitted_at >= ledger.snapshot.hold_after:
        ledger.held_for.setdefault(view.id, job)


def _is_only_stale(job: JobView, view: ApplianceView) -> bool:
    # A silence of seconds is no reason to send a waiting job elsewhere.
    refusal = unsuitable(job, view)
    return refusal is not None and refusal.code == "stale"


def _waiting_policy(job: JobView) -> Policy:
    return Policy.REQUESTED if job.requested else Policy.LEAST_RECENTLY_USED


def _binding_reason(job: JobView, view: ApplianceView, ledger: _Ledger) -> str:
    if job.requested:
        return f"{view.name} was asked for and is busy; it waits there."
    reason = f"No appliance is free; {view.name} is the least recently used, so it waits there."
    if job.bound_to:
        return f"{_name_of(job.bound_to, ledger)} takes no jobs now. {reason}"
    return reason


def _name_of(ident: str, ledger: _Ledger) -> str:
    view = ledger.appliances.get(ident)
    return view.name if view else "the appliance before"
