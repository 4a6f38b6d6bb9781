"""Bring evidence and reputations up to date, provider by provider, each in short transactions."""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from core.money import ZERO
from marketplace.cases import Case
from marketplace.charges.models import BillingLine, LineKind
from marketplace.models import Account
from marketplace.months import month_of, next_month, parse_month, previous_month
from marketplace.reputation.beta import Reputation, reputation
from marketplace.reputation.days import (
    DAY,
    FIRST_DAYS,
    count_attempts,
    day_of,
    delete_old_days,
    first_day,
    measure_availability,
    offered_to_customers,
    write_days,
)
from marketplace.reputation.models import Rating, ReputationDay
from marketplace.reputation.sources import Window, provider_cases
from marketplace.reputation.ties import Praises, read_praises
from marketplace.states import AccountState
from tenants.models import Grant
from timeseries.store import Store, StoreUnavailableError

log = logging.getLogger(__name__)

HISTORY_DAYS = 400
_JUDGED = (AccountState.ACTIVE, AccountState.SUSPENDED)
_PLACES = 4


def refresh_reputations(
    sessions: SessionFactory,
    store: Store,
    *,
    now: datetime,
    half_life: timedelta,
    is_stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Bring all providers up to date; return how many.

    Without the sample store, availability stays as it was measured last.
    """
    window = Window(now=now, half_life=half_life)
    with transaction(sessions) as session:
        judged = select(Account.tenant_id).where(Account.provider_state.in_(_JUDGED))
        provider_ids = session.scalars(judged.order_by(Account.tenant_id)).all()
        praises = read_praises(session, since=window.since)
    for number, provider_id in enumerate(provider_ids):
        if is_stopping():
            return number
        refresh_provider(sessions, store, provider_id, window, praises=praises)
    return len(provider_ids)


def refresh_provider(
    sessions: SessionFactory,
    store: Store,
    provider_id: str,
    window: Window,
    *,
    praises: Praises,
) -> None:
    """Bring a provider's evidence, reputation and history up to date; see the above."""
    with transaction(sessions) as session:
        since = first_day(session, provider_id, now=window.now)
        offered = offered_to_customers(session, provider_id)
    try:
        days = measure_availability(store, provider_id, offered, since=since, now=window.now)
    except StoreUnavailableError as error:
        log.warning("the availability of %s is not measured now: %s", provider_id, error)
        days = {}
    with transaction(sessions) as session:
        attempts = count_attempts(session, provider_id, since=since)
        write_days(session, provider_id, {**days, **attempts})
        delete_old_days(session, provider_id, before=window.since - DAY)
        _update_paid_hours(session, provider_id, now=window.now)
        cases = provider_cases(session, provider_id, window, praises=praises)
        _store(session, provider_id, cases, window)


def current(session: Session, provider_id: str, window: Window) -> tuple[Reputation, list[Case]]:
    """Return the reputation of a provider as its cases are now, with them."""
    praises = read_praises(session, since=window.since)
    cases = provider_cases(session, provider_id, window, praises=praises)
    return reputation(cases, now=window.now, half_life=window.half_life), cases


def _store(session: Session, provider_id: str, cases: Sequence[Case], window: Window) -> None:
    """Write the reputation of today, and of the days before if there is no history."""
    today = day_of(window.now)
    has_history = session.scalar(
        select(func.count()).where(ReputationDay.provider_id == provider_id)
    )
    for age in range(0 if has_history else FIRST_DAYS, 0, -1):
        past_at = today - (age - 1) * DAY
        past = [case for case in cases if case.at <= past_at]
        if past:
            measured = reputation(past, now=past_at, half_life=window.half_life)
            _write_day(session, provider_id, past_at - DAY, measured)
    measured = reputation(cases, now=window.now, half_life=window.half_life)
    row = _write_day(session, provider_id, today, measured)
    old = ReputationDay.day_at < today - HISTORY_DAYS * DAY
    session.execute(delete(ReputationDay).where(ReputationDay.provider_id == provider_id, old))
    for table, owner in ((Account, Account.tenant_id), (Grant, Grant.provider_id)):
        changed = update(table).where(owner == provider_id, table.reputation != row.score)
        session.execute(changed.values(reputation=row.score))
    session.execute(
        update(Account)
        .where(Account.tenant_id == provider_id)
        .values(reputation_mean=row.mean, reputation_low=row.low, reputation_high=row.high)
    )


def _write_day(
    session: Session, provider_id: str, day_at: datetime, measured: Reputation
) -> ReputationDay:
    """Write the reputation of a day."""
    row = session.get(ReputationDay, (provider_id, day_at))
    if row is None:
        row = ReputationDay(provider_id=provider_id, day_at=day_at)
        session.add(row)
    low, high = measured.overall.interval()
    row.score, row.mean = round(measured.score, _PLACES), round(measured.overall.mean, _PLACES)
    row.low, row.high = round(low, _PLACES), round(high, _PLACES)
    row.dimensions = {
        name.value: [round(part.alpha, _PLACES), round(part.beta, _PLACES)]
        for name, part in measured.dimensions.items()
    }
    session.flush()
    return row


def _update_paid_hours(session: Session, provider_id: str, *, now: datetime) -> None:
    """Write what customers paid for in the months that they rated, while it still grows."""
    recent = previous_month(month_of(now))
    statement = select(Rating).where(
        Rating.provider_id == provider_id, Rating.month >= f"{recent:%Y-%m}"
    )
    for rating in session.scalars(statement).all():
        month_at = parse_month(rating.month)
        paid = session.scalar(
            select(func.coalesce(func.sum(BillingLine.gpu_milliseconds), 0)).where(
                BillingLine.contract_id == rating.contract_id,
                BillingLine.at >= month_at,
                BillingLine.at < next_month(month_at),
                BillingLine.kind == LineKind.USAGE,
                BillingLine.unit_price > ZERO,
            )
        )
        rating.gpu_milliseconds = int(paid or 0)
    session.flush()
