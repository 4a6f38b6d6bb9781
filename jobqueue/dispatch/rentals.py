"""The end of rentals: attempts stop with their contract, and are lost with their provider.

While a contract only lets no new jobs start, those that run go on.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from jobqueue.dispatch.desired_state import allocated_attempts
from jobqueue.jobs.retries import end_job
from jobqueue.jobs.transitions import move_attempt, record_event
from jobqueue.models import Attempt
from jobqueue.states import ALLOCATED_STATES, AttemptState, JobState, Reason
from tenants.fleet.appliances import bump_generations
from tenants.models.rentals import Grant


def stop_unrented(session: Session, *, now: datetime) -> int:
    """Stop the attempts on rented appliances whose contract has ended; return how many."""
    usable = select(Grant.contract_id).where(
        Grant.contract_id == Attempt.contract_id, or_(Grant.ends_at.is_(None), Grant.ends_at > now)
    )
    # An index has the rented ones; "is not null" would scan all attempts.
    ended = select(Attempt.id).where(
        Attempt.provider_id > "",
        Attempt.state.in_(ALLOCATED_STATES),
        Attempt.stop_reason.is_(None),
        ~usable.exists(),
    )
    idents = session.scalars(ended).all()
    stopping = [
        attempt
        for attempt in (allocated_attempts(session, Attempt.id.in_(idents)) if idents else ())
        if attempt.job.stop_requested_at is None
        and move_attempt(
            session,
            attempt.id,
            attempt.state,
            expected={attempt.state},
            stop_reason=Reason.CONTRACT_ENDED,
        )
    ]
    for attempt in stopping:
        offer = attempt.placement.get("offer", "")
        message = f"Stopping to move: the contract about {offer or 'its appliance'} has ended."
        record_event(session, attempt.job, message=message, now=now)
    bump_generations(session, {attempt.appliance_id for attempt in stopping})
    return len(stopping)


def lose_attempts_at(session: Session, provider_id: str, *, now: datetime) -> int:
    """End what others run on the appliances of a tenant, which is removed; return how many."""
    message = "The provider of the rented appliance is gone; the job's state is unknown."
    values: dict[str, Any] = {"reason": Reason.APPLIANCE_LOST, "message": message}
    values["finished_at"] = now
    lost = [
        attempt
        for attempt in allocated_attempts(session, Attempt.provider_id == provider_id)
        if move_attempt(session, attempt.id, AttemptState.LOST, expected={attempt.state}, **values)
    ]
    for attempt in lost:
        end_job(session, attempt, JobState.LOST, values, now=now)
    return len(lost)
