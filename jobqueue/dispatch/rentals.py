"""The end of rentals: attempts stop with their contract, and are lost with their provider.

While a contract only lets no new jobs start, those that run go on.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from jobqueue.dispatch.desired_state import allocated_attempts, stoppable_attempts
from jobqueue.jobs.retries import end_job
from jobqueue.jobs.transitions import move_attempt, stop_attempts
from jobqueue.models import Attempt
from jobqueue.states import ALLOCATED_STATES, AttemptState, JobState, Reason
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
    attempts = stoppable_attempts(session, Attempt.id.in_(idents)) if idents else []
    return stop_attempts(session, attempts, Reason.CONTRACT_ENDED, _contract_ended, now=now)


def _contract_ended(attempt: Attempt) -> str:
    offer = attempt.placement.get("offer", "")
    return f"Stopping to move: the contract about {offer or 'its appliance'} has ended."


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
