"""Detect promises that were not kept: each is one row, whoever looks and how often.

The availability of a month is certainly breached as soon as appliances were down for longer than
the whole month allows; what is not certain by then is decided when the month is over.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from jobqueue.models import Attempt
from marketplace.models import Contract
from marketplace.months import month_of, next_month, previous_month
from marketplace.service_levels.availability import (
    Availability,
    gone_since,
    measure,
    rented_since,
)
from marketplace.service_levels.models import BreachKind, ServiceBreach
from marketplace.states import ContractState
from marketplace.tenant_errors import TenantErrors
from marketplace.terms import Terms
from timeseries.store import Store

# After the end of a month, before its invoices: the ledger's second check has been made, and is
# charged.
SETTLE_AFTER = timedelta(hours=30)
# Attempts, and months that are over, are looked at for this long.
_RECENT = timedelta(days=7)
_HOUR = timedelta(hours=1)
_TRACKED = (ContractState.ACTIVE, ContractState.NOTICED, ContractState.ENDED)


def detect(sessions: SessionFactory, store: Store, *, now: datetime) -> int:
    """Record the promises that were not kept until now; return the number of new breaches.

    Raises:
        StoreUnavailableError: the store is unavailable.
        TenantsFailedError: those of some contracts can't be checked; the others are.
    """
    errors = TenantErrors("check the service levels")
    with transaction(sessions) as session:
        contracts = session.scalars(
            select(Contract).where(
                Contract.state.in_(_TRACKED),
                or_(Contract.ends_at.is_(None), Contract.ends_at > now - timedelta(days=40)),
            )
        ).all()
    recorded = 0
    for contract in contracts:
        with errors.of(contract.provider_id, contract.customer_id):
            recorded += _detect(sessions, store, contract, now=now)
    errors.raise_if_any()
    return recorded


def promise_in(
    contract: Contract, month_at: datetime
) -> tuple[Terms, int, datetime, datetime] | None:
    """Return the terms that apply in a month with their version, and the time in which they do.

    Those at its end count; None if the contract does not apply in it.
    """
    end_at = next_month(month_at)
    until = min(end_at, contract.ends_at or end_at)
    applying = [
        version
        for version in contract.versions
        if version.applies_from is not None and version.applies_from < until
    ]
    since = max(month_at, contract.starts_at or end_at)
    if not applying or since >= until:
        return None
    return applying[-1].decoded_terms, applying[-1].number, since, until


def month_availability(
    sessions: SessionFactory, store: Store, contract: Contract, month_at: datetime, *, now: datetime
) -> tuple[Availability, float]:
    """Return what was measured of a month until now, and the hours that it will have."""
    promise = promise_in(contract, month_at)
    if promise is None:
        return Availability(), 0.0
    _, _, since, until = promise
    with transaction(sessions) as session:
        used = rented_since(session, contract.id, since=month_at, until=until)
        gone = gone_since(session, used)
    starts = {ident: max(at, since) for ident, at in used.items()}
    hours = sum((until - at) / _HOUR for at in starts.values())
    measured = measure(store, contract.provider_id, starts, gone, until=min(until, now))
    return measured, hours


def _detect(sessions: SessionFactory, store: Store, contract: Contract, *, now: datetime) -> int:
    month_at = month_of(now)
    recorded = _detect_month(sessions, store, contract, month_at, now=now)
    # Longer than until it is settled: the portal, or its store, may have been down.
    if now < month_at + _RECENT:
        earlier_at = previous_month(month_at)
        recorded += _detect_month(sessions, store, contract, earlier_at, now=now)
    with transaction(sessions) as session:
        return recorded + _detect_late_starts(session, contract, now=now)


def _detect_month(
    sessions: SessionFactory, store: Store, contract: Contract, month_at: datetime, *, now: datetime
) -> int:
    promise = promise_in(contract, month_at)
    if promise is None or not promise[0].service_level.availability_percent:
        return 0
    terms, number, since, until = promise
    promised = terms.service_level.availability_percent
    measured, hours = month_availability(sessions, store, contract, month_at, now=now)
    percent = measured.percent
    is_over = now >= until
    is_certain = measured.down > (1 - promised / 100) * hours
    if percent is None or not (is_certain or is_over):
        return 0
    if percent >= promised:
        with transaction(sessions) as session:
            _withdraw(session, contract, BreachKind.AVAILABILITY, f"{month_at:%Y-%m}")
        return 0
    facts = {
        "version_number": number,
        "since": since,
        "until": min(until, now),
        "promised": promised,
        "measured": round(percent, 4),
        "evidence": {
            "measured_hours": round(measured.measured_hours, 2),
            "down_hours": {ident: round(down, 2) for ident, down in measured.down_hours.items()},
        },
    }
    with transaction(sessions) as session:
        return record_breach(
            session, contract, BreachKind.AVAILABILITY, f"{month_at:%Y-%m}", facts, now=now
        )


def _withdraw(session: Session, contract: Contract, kind: BreachKind, subject: str) -> None:
    """Delete a breach that is none after all, unless it is settled.

    Appliances rented later made up for the month, or the attempt ended before its start.
    """
    session.execute(
        delete(ServiceBreach).where(
            ServiceBreach.contract_id == contract.id,
            ServiceBreach.kind == kind,
            ServiceBreach.subject == subject,
            ServiceBreach.settled_at.is_(None),
        )
    )


def _detect_late_starts(session: Session, contract: Contract, *, now: datetime) -> int:
    statement = select(Attempt).where(
        Attempt.contract_id == contract.id, Attempt.assigned_at > now - _RECENT
    )
    recorded = 0
    for attempt in session.scalars(statement).unique():
        at = attempt.assigned_at
        version = at and next(
            (
                version
                for version in reversed(contract.versions)
                if version.applies_from is not None and version.applies_from <= at
            ),
            None,
        )
        if not version or at is None:
            continue
        promised = version.decoded_terms.service_level.start_within_seconds
        # What ended before its start has failed, and is no start.
        started_at = attempt.started_at or (None if attempt.state.is_final else now)
        if started_at is None:
            _withdraw(session, contract, BreachKind.LATE_START, attempt.id)
        pulled = timedelta() if started_at is None else _pull_time(attempt, at, started_at)
        took = timedelta() if started_at is None else started_at - at - pulled
        if not promised or started_at is None or took.total_seconds() <= promised:
            continue
        facts = {
            "version_number": version.number,
            "since": at,
            "until": started_at,
            "promised": float(promised),
            "measured": took.total_seconds(),
            "evidence": {
                "job_id": attempt.job_id,
                "has_started": attempt.started_at is not None,
                "pull_seconds": pulled.total_seconds(),
            },
        }
        recorded += record_breach(
            session, contract, BreachKind.LATE_START, attempt.id, facts, now=now
        )
    return recorded


def _pull_time(attempt: Attempt, assigned_at: datetime, started_at: datetime) -> timedelta:
    """Return how long the pull of the customer's image took before the start.

    Its size is the customer's choice. An agent that does not report it has none.
    """
    if attempt.pull_began_at is None:
        return timedelta()
    began_at = max(attempt.pull_began_at, assigned_at)
    ended_at = min(attempt.pull_ended_at or started_at, started_at)
    return max(ended_at - began_at, timedelta())


def record_breach(
    session: Session,
    contract: Contract,
    kind: BreachKind,
    subject: str,
    facts: dict[str, Any],
    *,
    now: datetime,
) -> int:
    """Add a breach, or bring it up to date until it is settled; return how many are new."""
    breach = session.scalar(
        select(ServiceBreach).where(
            ServiceBreach.contract_id == contract.id,
            ServiceBreach.kind == kind,
            ServiceBreach.subject == subject,
        )
    )
    if breach is None:
        identity = {"provider_id": contract.provider_id, "customer_id": contract.customer_id}
        session.add(
            ServiceBreach(
                contract_id=contract.id,
                kind=kind,
                subject=subject,
                detected_at=now,
                **identity,
                **facts,
            )
        )
        return 1
    if breach.settled_at is None:
        for name, value in facts.items():
            setattr(breach, name, value)
    return 0
