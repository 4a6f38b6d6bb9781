"""Set and release holds, refuse what they cover, and stop what runs.

Placement reads holds with each snapshot (`hold_views`); a change voids plans that were made before,
so that a job that is held does not start from one of them.
"""

from datetime import datetime

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from core.db import begin_writing, changed_one
from core.errors import ConflictError
from jobqueue.holds.models import JobHold
from jobqueue.jobs.transitions import stop_attempts
from jobqueue.models import Attempt, Job
from jobqueue.placement.views import HoldView
from jobqueue.states import ALLOCATED_STATES, Reason
from jobqueue.usage.ledger import WANTS_GPUS
from tenants.models import Tenant

BUDGET_SPENT = "budget_spent"
# Attempts that one transaction stops.
STOP_BATCH = 200


def set_hold(session: Session, wanted: JobHold) -> bool:
    """Add a hold, or change that of the same source; return whether it is new.

    All columns of `wanted` are set.
    """
    present = session.get(JobHold, wanted.source_id, with_for_update=True)
    if present is None:
        session.add(wanted)
        session.flush()
    else:
        for name in ("project_ids", "user_id", "is_for_rentals", "reason"):
            if getattr(present, name) != getattr(wanted, name):
                setattr(present, name, getattr(wanted, name))
    if present is None or present in session.dirty:
        _void_plans(session, wanted.tenant_id)
    return present is None


def release_hold(session: Session, source_id: str) -> bool:
    """Delete the hold of a source; return whether there was one."""
    return changed_one(session, delete(JobHold).where(JobHold.source_id == source_id))


def hold_views(session: Session, tenant_id: str) -> list[HoldView]:
    """Return the holds of a tenant as placement sees them."""
    statement = select(JobHold).where(JobHold.tenant_id == tenant_id)
    return [
        HoldView(
            reason=hold.reason,
            project_ids=None if hold.project_ids is None else frozenset(hold.project_ids),
            user_id=hold.user_id,
            is_for_rentals=hold.is_for_rentals,
        )
        for hold in session.scalars(statement.order_by(JobHold.source_id))
    ]


def rental_hold(session: Session, tenant_id: str) -> str:
    """Return why no job of a tenant starts on rented appliances; "" if nothing says so."""
    holds = select(JobHold.reason).where(
        JobHold.tenant_id == tenant_id, JobHold.is_for_rentals.is_(True)
    )
    return session.scalars(holds.order_by(JobHold.source_id)).first() or ""


def require_no_hold(session: Session, job: Job) -> None:
    """Raise `ConflictError` if a new job wants GPUs and a hold covers it."""
    if not job.wants_gpus:
        return
    holds = select(JobHold).where(
        JobHold.tenant_id == job.tenant_id, JobHold.is_for_rentals.is_(False)
    )
    for hold in session.scalars(holds.order_by(JobHold.source_id)):
        if hold.covers(project_id=job.project_id, user_id=job.user_id):
            raise ConflictError(hold.reason, code=BUDGET_SPENT)


def stop_held(session: Session, source_id: str, *, now: datetime) -> int:
    """Stop up to `STOP_BATCH` running attempts that a hold covers; return how many.

    The caller repeats it in new transactions until it returns less.
    """
    begin_writing(session)
    hold = session.get(JobHold, source_id)
    if hold is None:
        return 0
    statement = select(Attempt).where(
        Attempt.tenant_id == hold.tenant_id,
        Attempt.state.in_(ALLOCATED_STATES),
        Attempt.stop_reason.is_(None),
        Attempt.job_id == Job.id,
        Job.stop_requested_at.is_(None),
        WANTS_GPUS,
    )
    if hold.project_ids is not None:
        statement = statement.where(Job.project_id.in_(hold.project_ids))
    if hold.user_id is not None:
        statement = statement.where(Job.user_id == hold.user_id)
    if hold.is_for_rentals:
        statement = statement.where(Attempt.contract_id.is_not(None))
    attempts = session.scalars(statement.order_by(Attempt.id).limit(STOP_BATCH)).unique().all()
    message = f"Stopping: {hold.reason}"
    return stop_attempts(session, attempts, Reason.BUDGET_SPENT, lambda _: message, now=now)


def _void_plans(session: Session, tenant_id: str) -> None:
    generation = Tenant.placement_generation + 1
    session.execute(
        update(Tenant).where(Tenant.id == tenant_id).values(placement_generation=generation),
        execution_options={"synchronize_session": False},
    )
