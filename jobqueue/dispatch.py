"""Dispatch: apply the decisions of `jobqueue.placement` to the waiting jobs of every tenant.

One process dispatches a tenant at a time, from the snapshot to the last write, so that no GPU is
allocated twice. Users and appliances change jobs concurrently: a decision that comes too late is
dropped, and the next cycle makes a new one. Rows are written in bulk; a cycle writes a bounded
number of decisions, so that others get to write, too.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from jobqueue.dependencies import resolve_dependencies
from jobqueue.models import Attempt, Job, JobEvent
from jobqueue.placement.plan import Action, Decision, plan
from jobqueue.snapshot import WAITING, TenantRows, WaitingJob, read_tenant
from jobqueue.states import ALLOCATED_STATES, AttemptState, JobState, Reason
from jobqueue.transitions import lock_jobs, move_attempt, move_locked, record_event, shorten
from tenants.fleet.appliances import bump_generations
from tenants.models import Tenant

# A job's message gives this many reasons why it waits.
_MAX_LISTED = 3
# Decisions that one cycle writes for a tenant; the next cycle goes on.
MAX_WRITTEN = 4000
# Jobs at the front of the queue, whose messages follow what changes.
MAX_FOLLOWED = 100

Row = dict[str, Any]


def dispatch(session: Session, *, now: datetime) -> Counter[Action]:
    """Place the waiting jobs, tenant by tenant; return the number of decisions by action."""
    done: Counter[Action] = Counter()
    tenants = select(Job.tenant_id).where(Job.state.in_(WAITING)).distinct()
    for tenant_id in session.scalars(tenants.order_by(Job.tenant_id)).all():
        lock_tenant(session, tenant_id)
        resolve_dependencies(session, tenant_id, now=now)
        # More than it writes is only read if jobs that can't start are in front.
        rows = read_tenant(session, tenant_id, now=now, limit=MAX_WRITTEN + MAX_FOLLOWED)
        decisions = plan(rows.snapshot, max_changes=MAX_WRITTEN)
        if len(decisions) == MAX_WRITTEN + MAX_FOLLOWED:
            rows = read_tenant(session, tenant_id, now=now)
            decisions = plan(rows.snapshot, max_changes=MAX_WRITTEN)
        done += apply_plan(session, rows, decisions)
    return done


def apply_plan(
    session: Session, rows: TenantRows, decisions: Sequence[Decision]
) -> Counter[Action]:
    """Apply a plan made from `rows`; return the number of decisions applied by action."""
    writer = _Writer(session, rows, decisions)
    done = Counter(writer.add(decision) for decision in decisions)
    writer.write()
    return done


def lock_tenant(session: Session, tenant_id: str) -> None:
    """Lock a tenant against other dispatchers until the transaction ends.

    An update that changes nothing locks the tenant's row on MySQL; on SQLite, which has no row
    locks, it begins the only writing transaction.
    """
    session.execute(
        update(Tenant).where(Tenant.id == tenant_id).values(slug=Tenant.slug),
        execution_options={"synchronize_session": False},
    )


class _Writer:
    """Collects the rows of one tenant's decisions, and writes them."""

    def __init__(self, session: Session, rows: TenantRows, decisions: Sequence[Decision]) -> None:
        self._session = session
        self._rows = rows
        self._now = rows.snapshot.now
        changing = [one.job_id for one in decisions if one.action is not Action.STAY]
        self._waiting = lock_jobs(session, changing, expected=WAITING)
        starting = [one.job_id for one in decisions if one.action is Action.ASSIGN]
        binding = [one.job_id for one in decisions if one.action is Action.BIND]
        self._numbers = self._last_numbers([*starting, *binding])
        self._stays = 0
        self._jobs: list[Row] = []
        self._new_attempts: list[Row] = []
        self._attempts: list[Row] = []
        self._unbound: list[str] = []
        self._events: list[Row] = []
        self._changed_appliances: set[str] = set()

    def add(self, decision: Decision) -> Action:
        """Add one decision; return the resulting action."""
        job = self._rows.jobs[decision.job_id]
        self._preempt(decision, job)
        if decision.action is Action.STAY:
            self._stay(job, decision)
        elif job.id not in self._waiting:
            return Action.STAY
        elif decision.action is Action.ASSIGN:
            self._move(job, JobState.STARTING, Reason.NONE, decision.reason)
            self._place(job, decision, AttemptState.STARTING, assigned_at=self._now)
            self._changed_appliances.add(decision.appliance_id or "")
        elif decision.action is Action.BIND:
            message = _waiting_message(decision)
            self._move(job, JobState.QUEUED, Reason.WAITING_FOR_RESOURCES, message)
            self._place(job, decision, AttemptState.BOUND, bound_at=self._now)
        elif decision.action is Action.HELD:
            self._unplace(job, Reason.WAITING_FOR_CAP, decision.reason)
        else:
            self._unplace(job, Reason.WAITING_FOR_APPLIANCE, _waiting_message(decision))
        return decision.action

    def write(self) -> None:
        """Write the rows, and let the agents fetch what they have to run."""
        session = self._session
        move_locked(session, Job, self._jobs)
        move_locked(session, Attempt, self._attempts)
        # No agent has seen a bound attempt, so it can be deleted.
        if self._unbound:
            bound = delete(Attempt).where(Attempt.id.in_(self._unbound))
            session.execute(bound, execution_options={"synchronize_session": False})
        if self._new_attempts:
            session.execute(insert(Attempt), self._new_attempts)
        if self._events:
            session.execute(insert(JobEvent), self._events)
        bump_generations(session, self._changed_appliances)
        session.expire_all()

    def _move(
        self,
        job: WaitingJob,
        state: JobState,
        reason: Reason,
        message: str,
        *,
        has_event: bool = True,
    ) -> None:
        values = {"state": state, "reason": reason, "message": message}
        self._jobs.append({"id": job.id, **values})
        if has_event:
            tenant_id = self._rows.tenant_id
            self._events.append(
                {"job_id": job.id, "tenant_id": tenant_id, "at": self._now, **values}
            )

    def _place(
        self, job: WaitingJob, decision: Decision, state: AttemptState, **instants: datetime
    ) -> None:
        values: Row = {
            "appliance_id": decision.appliance_id,
            "state": state,
            "gpu_uuids": list(decision.gpu_uuids),
            "placement": {
                "policy": str(decision.policy),
                "reason": decision.reason,
                "rejections": _rejections(decision),
            },
            **instants,
        }
        if job.attempt_id:
            self._attempts.append({"id": job.attempt_id, **values})
            return
        self._new_attempts.append(
            {
                "job_id": job.id,
                "tenant_id": self._rows.tenant_id,
                "number": self._numbers.get(job.id, 0) + 1,
                "bound_at": self._now,
                **values,
            }
        )

    def _stay(self, job: WaitingJob, decision: Decision) -> None:
        self._stays += 1
        message = _waiting_message(decision)
        if self._stays > MAX_FOLLOWED or message == job.message or not job.attempt_id:
            return
        if not lock_jobs(self._session, [job.id], expected=WAITING):
            return
        reason = Reason.WAITING_FOR_RESOURCES
        self._move(job, JobState.QUEUED, reason, message, has_event=False)

    def _unplace(self, job: WaitingJob, reason: Reason, message: str) -> None:
        is_new = job.reason is not reason or job.state is JobState.SUBMITTED
        if not is_new and message == job.message:
            return
        self._move(job, JobState.QUEUED, reason, message, has_event=is_new)
        if job.attempt_id:
            self._unbound.append(job.attempt_id)

    def _preempt(self, decision: Decision, job: WaitingJob) -> None:
        """Stop the attempts of the jobs that must make room."""
        if not decision.victims:
            return
        stopping = select(Attempt).where(
            Attempt.job_id.in_(decision.victims), Attempt.state.in_(ALLOCATED_STATES)
        )
        for attempt in self._session.scalars(stopping).unique().all():
            if move_attempt(
                self._session,
                attempt.id,
                attempt.state,
                expected={attempt.state},
                stop_reason=Reason.PREEMPTED,
            ):
                self._changed_appliances.add(attempt.appliance_id)
                message = f"Stopping for another job, {job.name!r}."
                record_event(self._session, attempt.job, message=message, now=self._now)

    def _last_numbers(self, job_ids: Iterable[str]) -> dict[str, int]:
        """Return the number of the last attempt of jobs that have any, bound ones left out."""
        ids = [ident for ident in job_ids if self._rows.jobs[ident].attempt_id is None]
        statement = (
            select(Attempt.job_id, func.max(Attempt.number))
            .where(Attempt.job_id.in_(ids))
            .group_by(Attempt.job_id)
        )
        return {row[0]: row[1] for row in self._session.execute(statement)} if ids else {}


def _rejections(decision: Decision) -> list[Row]:
    """Return the rejections of a decision as JSON: counts by reason, with a few examples."""
    return [
        {
            "code": one.code,
            "count": one.count,
            "examples": [example._asdict() for example in one.examples],
        }
        for one in decision.rejections
    ]


def _waiting_message(decision: Decision) -> str:
    if not decision.rejections:
        return f"{decision.reason} The tenant has no appliances. Enroll one."
    listed = [str(rejection) for rejection in decision.rejections[:_MAX_LISTED]]
    return shorten(f"{decision.reason} {'; '.join(listed)}.")
