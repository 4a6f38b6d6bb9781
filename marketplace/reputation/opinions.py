"""Customers rate what they rented: a contract and month once, after a job of theirs ran there."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError
from jobqueue.models import Attempt
from marketplace.contracts.scope import locked_contract, side_of
from marketplace.contracts.service import get_contract
from marketplace.models import Contract
from marketplace.months import month_of, next_month, parse_month, previous_month
from marketplace.reputation.models import MAX_COMMENT_LENGTH, Rating
from marketplace.reputation.ratings import MAX_STARS, MIN_STARS
from marketplace.states import Side
from tenants.models import User
from tenants.permissions import Permission
from tenants.scope import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingRequest:
    """What a customer says of a contract.

    Attributes:
        stars: 1 to 5.
        comment: for the provider, which sees no name beside it.
        month: such as `2026-11`; "" is the latest that can be rated.
    """

    stars: int
    comment: str = ""
    month: str = ""


def rate(
    session: Session, scope: Scope, contract_id: str, wanted: RatingRequest, *, now: datetime
) -> Rating:
    """Rate a contract in a month, or change the rating.

    Raises:
        NotFoundError: the contract is not the tenant's.
        ForbiddenError: the tenant is not its customer.
        ConflictError: no job of the customer ended there this month or the last.
        InvalidInputError: with the errors by field.
    """
    scope.require(Permission.SUBMIT_JOBS)
    contract = locked_contract(session, scope, contract_id)
    if side_of(contract, scope) is not Side.CUSTOMER:
        raise ForbiddenError("Only the customer of a contract rates it.")
    months = months_to_rate(session, contract, now=now)
    if not months:
        raise ConflictError(
            "No job of yours ran under this contract and ended this month or the last. "
            "Rate it once a job has.",
            code="nothing_to_rate",
        )
    month = wanted.month or months[0]
    comment = wanted.comment.strip()
    if errors := _errors(wanted.stars, comment, month, months):
        raise InvalidInputError("The rating was not saved.", errors=errors)
    rating = session.scalar(
        select(Rating).where(Rating.contract_id == contract.id, Rating.month == month)
    )
    if rating is None:
        user = session.get(User, scope.user_id)
        rating = Rating(
            contract_id=contract.id,
            provider_id=contract.provider_id,
            tenant_id=contract.customer_id,
            month=month,
            created_by=user.email if user else "",
            created_at=now,
            gpu_milliseconds=0,
        )
    rating.stars, rating.comment, rating.updated_at = wanted.stars, comment, now
    session.add(rating)
    session.flush()
    return rating


def ratings_of(session: Session, scope: Scope, contract_id: str) -> Sequence[Rating]:
    """Return what the customer said of its contract, the latest first; nobody else sees it.

    Raises:
        NotFoundError: the contract is not the tenant's.
        ForbiddenError: the tenant is not its customer.
    """
    contract = get_contract(session, scope, contract_id)
    if side_of(contract, scope) is not Side.CUSTOMER:
        raise ForbiddenError("Only the customer of a contract sees its ratings.")
    statement = select(Rating).where(Rating.contract_id == contract.id)
    return session.scalars(statement.order_by(Rating.month.desc())).all()


def months_to_rate(session: Session, contract: Contract, *, now: datetime) -> list[str]:
    """Return the months that its customer may rate now: this and the last, if a job ran there."""
    this_month = month_of(now)
    months = []
    for month_at in (this_month, previous_month(this_month)):
        ended = select(Attempt.id).where(
            Attempt.contract_id == contract.id,
            Attempt.started_at.is_not(None),
            Attempt.finished_at >= month_at,
            Attempt.finished_at < next_month(month_at),
        )
        if session.scalar(ended.limit(1)) is not None:
            months.append(f"{month_at:%Y-%m}")
    return months


def _errors(stars: int, comment: str, month: str, months: Sequence[str]) -> dict[str, list[str]]:
    errors = {}
    if not MIN_STARS <= stars <= MAX_STARS:
        errors["stars"] = [f"stars is {stars}; enter {MIN_STARS} to {MAX_STARS}."]
    if len(comment) > MAX_COMMENT_LENGTH:
        errors["comment"] = [
            f"comment has {len(comment)} characters; use at most {MAX_COMMENT_LENGTH}."
        ]
    elif not comment.replace("\r", "").replace("\n", "").isprintable():
        errors["comment"] = ["comment has characters that can't be shown."]
    if month not in months:
        parse_month(month)
        errors["month"] = [f"{month} can't be rated; use {' or '.join(months)}."]
    return errors
