"""What a policy would change for providers, before it is saved: nothing is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from marketplace.consequences.decisions import next_step
from marketplace.consequences.evidence import read_evidence
from marketplace.consequences.policy import Policy, policy_errors
from marketplace.consequences.standing import (
    JUDGED,
    factor_after,
    listing_after,
    points_after,
    position_of,
    standing_of,
)
from marketplace.consequences.states import StandingState
from marketplace.models import Account
from marketplace.states import Listing
from tenants.permissions import Permission
from tenants.scope import Scope

# Providers that a preview looks at: the evidence of each is read.
MAX_PREVIEWED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewedProvider:
    """What the next evaluation would make of a provider; each pair is of now and then.

    Attributes:
        score: from 0 to 1.
        breaches: that count then.
        state: of its standing.
        cause: of another state, as the provider would read it; "" without.
        listing: of its offers.
        placement_factor: what placement divides its prices by.
        fee_points: added to the percentage of the fee from the next month on.
    """

    tenant_id: str
    public_name: str
    score: float
    breaches: int
    state: tuple[StandingState, StandingState]
    cause: str
    listing: tuple[Listing, Listing]
    placement_factor: tuple[float, float]
    fee_points: tuple[Decimal, Decimal]

    @property
    def is_changed(self) -> bool:
        """Whether anything differs."""
        pairs: tuple[tuple[Any, Any], ...] = (
            *(self.state, self.listing),
            *(self.placement_factor, self.fee_points),
        )
        return any(before != after for before, after in pairs)


@dataclass(frozen=True, slots=True)
class Preview:
    """What a policy would change: providers for which anything differs, by name.

    Attributes:
        compared: how many were looked at, of `total`.
    """

    changed: Sequence[PreviewedProvider]
    compared: int
    total: int


def preview_policy(session: Session, scope: Scope, policy: Policy, *, now: datetime) -> Preview:
    """Return what a policy would change if it were saved now.

    Raises:
        InvalidInputError: names every invalid field.
    """
    scope.require(Permission.MANAGE_TENANTS)
    if errors := policy_errors(policy):
        raise InvalidInputError("The policy can't be previewed.", errors=errors)
    judged = select(Account).where(Account.provider_state.in_(JUDGED))
    total = session.scalar(select(func.count()).select_from(judged.subquery())) or 0
    ordered = judged.order_by(Account.public_name, Account.tenant_id).limit(MAX_PREVIEWED)
    with session.no_autoflush:
        providers = [
            _previewed(session, account, policy, now=now)
            for account in session.scalars(ordered).all()
        ]
    changed = [provider for provider in providers if provider.is_changed]
    return Preview(changed, compared=len(providers), total=total)


def _previewed(
    session: Session, account: Account, policy: Policy, *, now: datetime
) -> PreviewedProvider:
    standing = standing_of(session, account.tenant_id, now=now)
    position, counted_from = position_of(standing), standing.counted_from
    evidence = read_evidence(session, account, policy, counted_from=counted_from, now=now)
    step = next_step(position, evidence, policy, now=now)
    state = standing.state if step is None else step.state
    on_probation = state is StandingState.PROBATION or (
        step is None and position.is_on_probation(now)
    )
    score = evidence.score
    return PreviewedProvider(
        tenant_id=account.tenant_id,
        public_name=account.public_name,
        score=score,
        breaches=len(evidence.breaches),
        state=(standing.state, state),
        cause="" if step is None else step.cause,
        listing=(
            account.listing,
            listing_after(policy, score, account.listing, on_probation=on_probation),
        ),
        placement_factor=(
            account.placement_factor,
            factor_after(policy, score, account.placement_factor),
        ),
        fee_points=(
            standing.fee_points,
            points_after(
                policy,
                score,
                standing.fee_points,
                is_limited=on_probation or state is StandingState.SUSPENDED,
            ),
        ),
    )
