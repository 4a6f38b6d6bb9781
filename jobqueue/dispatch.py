"""Dispatch: place the waiting jobs of every tenant and write the decisions down.

The choice is `jobqueue.placement`'s; here it is applied. A tenant is dispatched by one process at a
time, from the snapshot to the last write, so no GPU is given twice. Users and appliances change
jobs meanwhile, so jobs move by guarded updates: a decision that comes too late is dropped, and the
next cycle decides afresh.
"""

import dataclasses
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from jobqueue.guarded import move_attempt, move_job
from jobqueue.history import record_event, shorten
from jobqueue.models import Attempt, Job
from jobqueue.placement import Action, Decision, Plan, plan
from jobqueue.refusals import Refusal
from jobqueue.snapshot import WAITING, TenantRows, read_tenant, waiting_tenants
from jobqueue.states import AttemptState, JobState, Reason
from tenants.fleet.appliances import bump_generation
from tenants.models import Tenant

# Refusals that a job's message spells out; the rest are counted.
_MAX_SPELT_OUT = 5


@dataclass(frozen=True, slots=True)
class DispatchSummary:
    """How many jobs one cycle started, bound to an appliance, and left waiting."""

    assigned: int = 0
    bound: int = 0
    waiting: int = 0


def dispatch(session: Session, *, now: datetime) -> DispatchSummary:
    """Place what waits, tenant by tenant."""
    done: Counter[Action] = Counter()
    for tenant_id in waiting_tenants(session):
        lock_tenant(session, tenant_id)
        rows = read_tenant(session, tenant_id, now=now)
        done += apply_plan(session, rows, plan(rows.snapshot))
    return DispatchSummary(
        assigned=done[Action.ASSIGN],
        bound=done[Action.BIND],
        waiting=done[Action.STAY] + done[Action.UNPLACED],
    )


def apply_plan(session: Session, rows: TenantRows, made: Plan) -> Counter[Action]:
    """Write the decisions of a plan made from `rows`; return how many of each kind came about."""
    writer = _Writer(session, rows)
    done = Counter(writer.apply(decision) for decision in made.decisions)
    writer.tell_agents()
    return done


def lock_tenant(session: Session, tenant_id: str) -> None:
    """Keep dispatchers from this tenant until the transaction ends.

    An update that changes nothing locks the tenant's row on MySQL, and on SQLite, which knows no
    row locks, it begins the one writing transaction.
    """
    session.execute(
        update(Tenant).where(Tenant.id == tenant_id).values(slug=Tenant.slug),
        execution_options={"synchronize_session": False},
    )


class _Writer:
    """Writes one tenant's decisions."""

    def __init__(self, session: Session, rows: TenantRows) -> None:
        self._session = session
        self._rows = rows
        self._now = rows.snapshot.now
        self._changed_appliances: set[str] = set()

    def apply(self, decision: Decision) -> Action:
        """Write one decision; return what became of the job."""
        job = self._rows.jobs[decision.job_id]
        if decision.action is Action.ASSIGN:
            return Action.ASSIGN if self._assign(job, decision) else Action.STAY
        if decision.action is Action.BIND:
            self._bind(job, decision)
        elif decision.action is Action.STAY:
            self._stay(job, decision)
        else:
            self._unplace(job, decision)
        return decision.action

    def tell_agents(self) -> None:
        """Move the generation of the appliances that have something new to run."""
        for appliance_id in sorted(self._changed_appliances):
            bump_generation(self._session, appliance_id)

    def _assign(self, job: Job, decision: Decision) -> bool:
        values = {"state": JobState.STARTING, "reason": Reason.NONE, "message": decision.reason}
        if not move_job(self._session, job.id, expected=WAITING, **values):
            return False
        self._write_attempt(job, decision, state=AttemptState.STARTING, assigned_at=self._now)
        self._changed_appliances.add(decision.appliance_id or "")
        self._record(job, JobState.STARTING, Reason.NONE, decision.reason)
        return True

    def _bind(self, job: Job, decision: Decision) -> None:
        message = _waiting_message(decision)
        if self._set_waiting(job, Reason.WAITING_FOR_RESOURCES, message):
            self._write_attempt(job, decision, state=AttemptState.BOUND, bound_at=self._now)
            self._record(job, JobState.QUEUED, Reason.WAITING_FOR_RESOURCES, message)

    def _stay(self, job: Job, decision: Decision) -> None:
        message = _waiting_message(decision)
        attempt = job.attempt
        if message == job.message or attempt is None:
            return
        if self._set_waiting(job, Reason.WAITING_FOR_RESOURCES, message):
            move_attempt(
                self._session, attempt.id, expected={AttemptState.BOUND},
                placement=attempt.placement | {"refused": _refused(decision.refused)},
            )  # fmt: skip

    def _unplace(self, job: Job, decision: Decision) -> None:
        message = _waiting_message(decision)
        is_news = job.reason is not Reason.WAITING_FOR_APPLIANCE or job.state is JobState.SUBMITTED
        if not is_news and message == job.message:
            return
        if self._set_waiting(job, Reason.WAITING_FOR_APPLIANCE, message):
            self._take_back(job)
            if is_news:
                self._record(job, JobState.QUEUED, Reason.WAITING_FOR_APPLIANCE, message)

    def _take_back(self, job: Job) -> None:
        # A bound attempt was never shown to an agent: it can go without a trace.
        if job.attempt and job.attempt.state is AttemptState.BOUND:
            self._session.delete(job.attempt)
            self._session.flush()
            self._session.expire(job, ["attempts"])

    def _set_waiting(self, job: Job, reason: Reason, message: str) -> bool:
        return move_job(
            self._session, job.id, expected=WAITING,
            state=JobState.QUEUED, reason=reason, message=message,
        )  # fmt: skip

    def _write_attempt(
        self, job: Job, decision: Decision, *, state: AttemptState, **instants: datetime
    ) -> None:
        values: dict[str, Any] = {
            "state": state,
            "appliance_id": decision.appliance_id,
            "gpu_uuids": list(decision.gpu_uuids),
            "placement": _explanation(decision),
            **instants,
        }
        last = job.attempt
        if last and last.state is AttemptState.BOUND:
            move_attempt(self._session, last.id, expected={AttemptState.BOUND}, **values)
            return
        number = last.number + 1 if last else 1
        values.setdefault("bound_at", self._now)
        self._session.add(Attempt(job_id=job.id, tenant_id=job.tenant_id, number=number, **values))

    def _record(self, job: Job, state: JobState, reason: Reason, message: str) -> None:
        record_event(
            self._session, job.id, tenant_id=job.tenant_id, state=state, reason=reason,
            message=message, now=self._now,
        )  # fmt: skip


def _explanation(decision: Decision) -> dict[str, Any]:
    return {
        "policy": decision.policy.value if decision.policy else "",
        "reason": decision.reason,
        "refused": _refused(decision.refused),
    }


def _refused(refusals: tuple[Refusal, ...]) -> list[dict[str, str]]:
    return [dataclasses.asdict(refusal) for refusal in refusals]


def _waiting_message(decision: Decision) -> str:
    if not decision.refused:
        return f"{decision.reason} There is none: enrol one."
    spelt_out = [refusal.reason for refusal in decision.refused[:_MAX_SPELT_OUT]]
    rest = len(decision.refused) - len(spelt_out)
    if rest:
        spelt_out.append(f"and {rest} more")
    return shorten(f"{decision.reason} {'; '.join(spelt_out)}.")
