"""Credits for promises that were not kept: computed once, as billing lines.

An availability breach is settled when its month is, a late start a day after its attempt ended, and
not before the usage ledger has all of that time, charged: then the cost that a credit is a share of
is final but for rare corrections, which credits do not follow. All credits of a month together are
never more than its use cost. Terms have no credit for a late answer of support, which is settled
once it was given.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from core.money import ZERO, exact
from core.quantities import format_duration
from jobqueue.models import Attempt
from marketplace.charges.models import BillingLine, LineKind
from marketplace.charges.service import add_line, is_charged
from marketplace.models import ContractVersion
from marketplace.months import month_of, next_month
from marketplace.service_levels.detection import SETTLE_AFTER
from marketplace.service_levels.models import BreachKind, ServiceBreach
from marketplace.tenant_errors import TenantErrors
from marketplace.terms import Credit

AFTER_ATTEMPT = timedelta(days=1)
# For an answer of support that is never given.
AFTER_TICKET = timedelta(days=30)
_COSTS = (LineKind.USAGE, LineKind.MINIMUM, LineKind.RESERVATION, LineKind.DISCOUNT)
_HUNDRED = Decimal(100)


def settle(sessions: SessionFactory, *, now: datetime) -> int:
    """Settle the breaches that are due, each in a transaction of its own; return their number.

    Raises:
        TenantsFailedError: those of some contracts can't be settled; the others are.
    """
    errors = TenantErrors("credit breaches of service levels")
    columns = (ServiceBreach.id, ServiceBreach.provider_id, ServiceBreach.customer_id)
    unsettled = select(*columns).where(ServiceBreach.settled_at.is_(None))
    with transaction(sessions) as session:
        breaches = session.execute(unsettled.order_by(ServiceBreach.id)).all()
    settled = 0
    for breach_id, *sides in breaches:
        with errors.of(*sides), transaction(sessions) as session:
            breach = session.get(ServiceBreach, breach_id)
            if breach is not None and breach.settled_at is None and _is_due(session, breach, now):
                _settle(session, breach, now=now)
                settled += 1
    errors.raise_if_any()
    return settled


def credit_percent(levels: Iterable[Credit], measured_percent: float) -> Decimal:
    """Return the credit of a month by its availability: that of the lowest limit above it."""
    above = [level for level in levels if measured_percent < level.below_percent]
    return min(above, key=lambda level: level.below_percent).credit_percent if above else ZERO


def _is_due(session: Session, breach: ServiceBreach, now: datetime) -> bool:
    if breach.kind is BreachKind.AVAILABILITY:
        until = next_month(month_of(breach.since))
        return now >= until + SETTLE_AFTER and is_charged(session, until)
    if breach.kind is BreachKind.SUPPORT_RESPONSE:
        is_answered = bool(breach.evidence.get("is_answered"))
        return is_answered or now >= breach.detected_at + AFTER_TICKET
    attempt = session.get(Attempt, breach.subject)
    if attempt is None:
        return True  # old jobs are deleted; they ended long before
    ended_at = attempt.finished_at
    return (
        ended_at is not None and now >= ended_at + AFTER_ATTEMPT and is_charged(session, ended_at)
    )


def _settle(session: Session, breach: ServiceBreach, *, now: datetime) -> None:
    if breach.kind is BreachKind.SUPPORT_RESPONSE:
        breach.credit, breach.settled_at = ZERO, now
        return
    version = session.scalars(
        select(ContractVersion).where(
            ContractVersion.contract_id == breach.contract_id,
            ContractVersion.number == breach.version_number,
        )
    ).one()
    level = version.decoded_terms.service_level
    month_at = month_of(breach.since)
    until = next_month(month_at)
    in_month = and_(
        BillingLine.contract_id == breach.contract_id,
        BillingLine.at >= month_at,
        BillingLine.at < until,
    )
    used = in_month
    if breach.kind is BreachKind.AVAILABILITY:
        percent = credit_percent(level.credits, breach.measured)
        cost = _sum(session, used, *_COSTS)
    else:
        percent = level.late_start_credit_percent
        of_attempt = BillingLine.attempt_id == breach.subject
        cost = _sum(session, of_attempt, *_COSTS)
        # It may go on into the next month.
        used = or_(used, of_attempt)
    left = _sum(session, used, *_COSTS) + _sum(session, in_month, LineKind.SERVICE_CREDIT)
    share = exact(cost * percent / _HUNDRED)
    breach.credit = max(min(share, left), ZERO)
    breach.settled_at = now
    limit = ", up to the cost of the month" if share > left else ""
    if breach.credit:
        add_line(
            session,
            kind=LineKind.SERVICE_CREDIT,
            tenant_id=breach.customer_id,
            provider_id=breach.provider_id,
            contract_id=breach.contract_id,
            at=min(breach.until, until - timedelta(microseconds=1)),
            amount=-breach.credit,
            source_id=f"breach:{breach.id}",
            note=f"{percent.normalize():f} %{limit}, {describe(breach)}",
            now=now,
        )


def _sum(session: Session, lines: ColumnElement[bool], *kinds: LineKind) -> Decimal:
    total = select(func.sum(BillingLine.amount)).where(lines, BillingLine.kind.in_(kinds))
    return session.scalar(total) or ZERO


def describe(breach: ServiceBreach) -> str:
    """Return what was measured and promised: `available 98.2 % of 2026-11, promised 99.5 %`."""
    if breach.kind is BreachKind.AVAILABILITY:
        share = f"available {breach.measured:.7g} % of {breach.subject}"
        return f"{share}, promised {breach.promised:g} %"
    took, promised = format_duration(breach.measured), format_duration(breach.promised)
    what = "support answered" if breach.kind is BreachKind.SUPPORT_RESPONSE else "a job started"
    return f"{what} after {took}, promised within {promised}"
