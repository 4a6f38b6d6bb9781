"""Standings of providers as pages and the API show them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from marketplace.consequences.models import Appeal, Standing
from marketplace.consequences.service import appeal_of, missing_of
from marketplace.consequences.states import StandingState
from marketplace.models import Account


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingView:
    """A standing with what follows from it.

    Attributes:
        standing: the row, or one that is not stored.
        account: of the provider.
        missing: what a suspended provider waits for or must do before it returns.
        appeal: against the present suspension.
    """

    standing: Standing
    account: Account
    missing: Sequence[str] = ()
    appeal: Appeal | None = None

    @property
    def may_appeal(self) -> bool:
        """Whether the provider can appeal now."""
        return self.standing.state is StandingState.SUSPENDED and self.appeal is None


def standing_view(session: Session, standing: Standing, *, now: datetime) -> StandingView:
    """Return a standing with all that is shown of it."""
    is_suspended = standing.state is StandingState.SUSPENDED
    return StandingView(
        standing=standing,
        account=session.get_one(Account, standing.tenant_id),
        missing=missing_of(session, standing, now=now),
        appeal=appeal_of(session, standing) if is_suspended else None,
    )
