"""Challenges between the portal and the agents: what is ordered, and what was answered.

`marketplace.verification` orders them and decides what an answer means.
"""

from datetime import datetime

import msgspec
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.guarded_update import changed_one
from protocol.challenges import ChallengeOrder, ChallengeResult
from tenants.fleet.appliances import bump_generation
from tenants.models import Challenge, ChallengeOutcome


def challenge_order(session: Session, appliance_id: str) -> ChallengeOrder | None:
    """Return the challenge that an appliance should answer, if any."""
    unanswered = select(Challenge.spec).where(
        Challenge.appliance_id == appliance_id,
        Challenge.outcome == ChallengeOutcome.OPEN,
        Challenge.answered_at.is_(None),
    )
    spec = session.scalars(unanswered.order_by(Challenge.number.desc()).limit(1)).one_or_none()
    return msgspec.convert(spec, ChallengeOrder) if spec is not None else None


def apply_challenge(
    session: Session, appliance_id: str, result: ChallengeResult, *, now: datetime
) -> None:
    """Store the result of the open challenge; the agent then gets no order any more.

    Results that come again, or of a challenge that was given up, change nothing.
    """
    statement = update(Challenge).where(
        Challenge.appliance_id == appliance_id,
        Challenge.number == result.number,
        Challenge.outcome == ChallengeOutcome.OPEN,
        Challenge.answered_at.is_(None),
    )
    if changed_one(session, statement.values(result=msgspec.to_builtins(result), answered_at=now)):
        bump_generation(session, appliance_id)
