"""How long challenges are stored."""

from datetime import datetime, timedelta

from sqlalchemy import delete
from sqlalchemy.orm import Session

from tenants.models import Challenge, ChallengeOutcome

RETENTION = timedelta(days=400)


def delete_old(session: Session, *, now: datetime) -> None:
    """Delete the challenges that ended long ago."""
    session.execute(
        delete(Challenge).where(
            Challenge.outcome != ChallengeOutcome.OPEN, Challenge.ordered_at < now - RETENTION
        ),
        execution_options={"synchronize_session": False},
    )
