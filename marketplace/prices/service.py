"""Create, list and find price lists.

A list begins at a full hour and replaces the one before from then on. Hours that have a price keep
it: a new list begins later than now, or in the past only where its owner had no list. Hours of the
past that get a price are charged by the next accrual.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from core.money import cents, parse_amount
from core.spec import About
from jobqueue.usage.ledger import floor_hour
from jobqueue.usage.measuring import Period
from marketplace.prices.models import DEFAULT_OWNER, MAX_NOTE_LENGTH, MAX_WORD_LENGTH, PriceList
from marketplace.terms import MAX_PRICE
from tenants.models import User
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_LISTS = 500
MAX_PRICES = 100
MAX_AHEAD = timedelta(days=10 * 366)
MAX_BACK = timedelta(days=5 * 366)
Errors = dict[str, list[str]]
# The lists of an owner, oldest first.
Timeline = Sequence[PriceList]


@dataclass(frozen=True, slots=True)
class PriceRow:
    """The price of a GPU for an hour, as users enter it."""

    price: Annotated[str, About("Of a GPU for an hour, such as `2.45`.")]
    gpu_model: Annotated[
        str, About("A word of the model's name, such as `H100`; empty for all other models.")
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceListRequest:
    """A new price list."""

    prices: Annotated[Sequence[PriceRow], About("Of each model; the longest word counts.")]
    valid_from: Annotated[
        datetime | None,
        About("The first hour; null is the next one. In the past only without list."),
    ] = None
    valid_until: Annotated[
        datetime | None, About("The hour after the last; null until the next list begins.")
    ] = None
    note: Annotated[str, About("Why, such as the new price of power.")] = ""


def list_price_lists(session: Session, scope: Scope) -> list[PriceList]:
    """Return the price lists of the tenant, and the operator's default ones, newest first."""
    scope.require(Permission.VIEW_BILLING)
    statement = select(PriceList).where(_visible(scope))
    return list(
        session.scalars(statement.order_by(PriceList.valid_from.desc(), PriceList.owner.desc()))
    )


def get_price_list(session: Session, scope: Scope, list_id: str) -> PriceList:
    """Return a price list of the tenant, or a default one.

    Raises:
        NotFoundError: there is none.
    """
    scope.require(Permission.VIEW_BILLING)
    row = session.scalar(select(PriceList).where(PriceList.id == list_id, _visible(scope)))
    if row is None:
        raise NotFoundError.of("price list", list_id)
    return row


def create_price_list(
    session: Session, scope: Scope, request: PriceListRequest, *, now: datetime
) -> PriceList:
    """Add a price list: a tenant's, or the default one of an operator.

    Raises:
        InvalidInputError: with the errors by field.
        ConflictError: another one was added at the same time.
    """
    scope.require(Permission.MANAGE_BILLING)
    owner = scope.tenant_id or DEFAULT_OWNER
    begins_at = request.valid_from or floor_hour(now) + timedelta(hours=1)
    lists = read_lists(session, {owner})
    own, default = lists.get(owner, []), lists.get(DEFAULT_OWNER, [])
    errors = _errors(request, begins_at, (own, default), now=now)
    if errors:
        message = " ".join(text for texts in errors.values() for text in texts)
        raise InvalidInputError(message, errors=errors)
    row = PriceList(
        tenant_id=scope.tenant_id,
        owner=owner,
        number=max((other.number for other in own), default=0) + 1,
        valid_from=begins_at,
        valid_until=request.valid_until,
        prices=[
            {"gpu_model": each.gpu_model.strip(), "price": _price_text(each.price)}
            for each in request.prices
        ],
        note=request.note.strip(),
        charged_at=None if begins_at < now else now,
        created_by=user_email(session, scope),
        created_at=now,
    )
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError as error:
        raise ConflictError("Another price list was added at the same time. Try again.") from error
    return row


def delete_price_list(session: Session, scope: Scope, list_id: str, *, now: datetime) -> None:
    """Delete a price list that has not begun.

    Raises:
        ForbiddenError: it is the operator's.
        ConflictError: it has begun.
    """
    scope.require(Permission.MANAGE_BILLING)
    row = get_price_list(session, scope, list_id)
    if row.tenant_id != scope.tenant_id:
        raise ForbiddenError("The default prices are the operator's. Add a price list of your own.")
    if row.valid_from <= now:
        raise ConflictError(
            f"{row.name} applies since {row.valid_from:%Y-%m-%d %H:%M} UTC and can't be deleted. "
            "Add one that begins later."
        )
    session.delete(row)
    session.flush()


def price_of(session: Session, tenant_id: str, gpu_model: str, at: datetime) -> Decimal | None:
    """Return what a tenant's own GPU costs for an hour at a time; None if it has no price."""
    lists = read_lists(session, {tenant_id})
    valid = valid_list(lists, tenant_id, floor_hour(at))
    return None if valid is None else valid.price_of(gpu_model)


def read_lists(session: Session, tenant_ids: set[str]) -> dict[str, list[PriceList]]:
    """Return the price lists of tenants, and the default ones, by owner, oldest first."""
    lists: dict[str, list[PriceList]] = {}
    statement = select(PriceList).where(PriceList.owner.in_({DEFAULT_OWNER, *tenant_ids}))
    for row in session.scalars(statement.order_by(PriceList.valid_from)):
        lists.setdefault(row.owner, []).append(row)
    return lists


def valid_list(
    lists: dict[str, list[PriceList]], tenant_id: str, hour_at: datetime
) -> PriceList | None:
    """Return the list that a tenant's hour is charged by: its own, else the default one."""
    for owner in (tenant_id, DEFAULT_OWNER):
        begun = [row for row in lists.get(owner, []) if row.valid_from <= hour_at]
        # The next list ends the one before, also where that had an end of its own.
        if begun and (begun[-1].valid_until is None or hour_at < begun[-1].valid_until):
            return begun[-1]
    return None


def user_email(session: Session, scope: Scope) -> str:
    """Return the email address of the current user, "" for the command line."""
    return session.scalar(select(User.email).where(User.id == scope.user_id)) or ""


def _visible(scope: Scope) -> ColumnElement[bool]:
    """All lists for operators; a tenant's own and the default ones for others."""
    if scope.tenant_id is None:
        return PriceList.tenant_id.is_(None)
    return or_(PriceList.tenant_id == scope.tenant_id, PriceList.tenant_id.is_(None))


def _errors(
    request: PriceListRequest, begins_at: datetime, timelines: Sequence[Timeline], *, now: datetime
) -> Errors:
    errors: Errors = {}
    if not request.prices:
        errors["prices"] = ["Enter at least one price."]
    if len(request.prices) > MAX_PRICES:
        errors["prices"] = [f"{len(request.prices)} prices are too many; enter {MAX_PRICES}."]
    words = [row.gpu_model.strip().casefold() for row in request.prices]
    for number, row in enumerate(request.prices):
        field = f"prices.{number}"
        word = row.gpu_model.strip()
        if len(word) > MAX_WORD_LENGTH:
            errors[f"{field}.gpu_model"] = [f"{word[:30]!r} has over {MAX_WORD_LENGTH} letters."]
        elif words.index(word.casefold()) != number:
            errors[f"{field}.gpu_model"] = [f"{word!r} has two prices. Remove one."]
        if problem := _price_error(row.price):
            errors[f"{field}.price"] = [problem]
    if len(request.note) > MAX_NOTE_LENGTH:
        errors["note"] = [f"Shorten the note to {MAX_NOTE_LENGTH} letters."]
    if len(timelines[0]) >= MAX_LISTS:
        errors["prices"] = [f"You have {MAX_LISTS} price lists, which is the most. Delete others."]
    return errors | _time_errors(request.valid_until, begins_at, timelines, now=now)


def _time_errors(
    valid_until: datetime | None,
    begins_at: datetime,
    timelines: Sequence[Timeline],
    *,
    now: datetime,
) -> Errors:
    errors: Errors = {}
    for name, at in (("valid_from", begins_at), ("valid_until", valid_until)):
        if at is not None and floor_hour(at) != at:
            errors[name] = [f"{at:%Y-%m-%d %H:%M:%S} is not a full hour."]
        if at is not None and not now - MAX_BACK <= at <= now + MAX_AHEAD:
            errors[name] = [f"{at:%Y-%m-%d} is too far away. Enter a time of these years."]
    if valid_until is not None and valid_until <= begins_at:
        errors["valid_until"] = ["The end is not after the beginning."]
    own = timelines[0]
    if any(row.valid_from == begins_at for row in own):
        text = f"Another price list begins at {begins_at:%Y-%m-%d %H:%M} UTC. Delete it first."
        errors["valid_from"] = [text]
    followers = [row.valid_from for row in own if row.valid_from > begins_at]
    past = Period(begins_at, min([valid_until or now, now, *followers]))
    if any(_is_priced(timeline, past) for timeline in timelines):
        text = "Hours of the past keep their prices. Begin at the next hour or later."
        errors["valid_from"] = [text]
    return errors


def _is_priced(timeline: Timeline, period: Period) -> bool:
    """Return whether a list of an owner is valid in a part of a period."""
    for number, row in enumerate(timeline):
        ends = [row.valid_until, *(later.valid_from for later in timeline[number + 1 :][:1])]
        end_at = min((at for at in ends if at is not None), default=period.until)
        if max(row.valid_from, period.since) < min(end_at, period.until):
            return True
    return False


def _price_error(text: str) -> str:
    """Return what is wrong with a price; sums of many hours must fit into 64 bits."""
    try:
        price = parse_amount(text)
    except ValueError as error:
        return str(error)
    if price > MAX_PRICE:
        return f"{text.strip()[:50]!r} is out of range; enter 0 to {MAX_PRICE:,}."
    return ""


def _price_text(text: str) -> str:
    """Return a price as it is stored: with two decimal places, or as many as it needs."""
    price = parse_amount(text)
    return f"{cents(price) if cents(price) == price else price.normalize():f}"
