"""Cases of checks: what challenges say about a provider."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from marketplace.cases import Case, Dimension
from marketplace.verification.findings import failures, loaded
from tenants.models import Challenge, ChallengeOutcome

PASSED = "challenge_passed"
_COUNTED = (ChallengeOutcome.PASSED, ChallengeOutcome.FAILED)


def check_cases(session: Session, provider_id: str, *, since: datetime) -> Sequence[Case]:
    """Return a case for each challenge of a provider that ended since a time, the oldest first.

    One that failed is of the kind of its first failure, such as `memory_missing`. Challenges
    without an answer, or that a job interrupted, say nothing.
    """
    ended = (
        select(Challenge)
        .where(
            Challenge.tenant_id == provider_id,
            Challenge.outcome.in_(_COUNTED),
            Challenge.ended_at >= since,
        )
        .order_by(Challenge.ended_at, Challenge.id)
    )
    return [_case(challenge) for challenge in session.scalars(ended)]


def _case(challenge: Challenge) -> Case:
    failed = failures(loaded(challenge.findings))
    has_passed = challenge.outcome is ChallengeOutcome.PASSED
    return Case(
        dimension=Dimension.CHECKS,
        good=float(has_passed),
        at=challenge.ended_at or challenge.ordered_at,
        kind=PASSED if has_passed or not failed else failed[0].code,
        subject=challenge.appliance_id,
        text="An appliance passed its challenge."
        if has_passed
        else f"An appliance failed its challenge: {', '.join(finding.code for finding in failed)}.",
    )
