"""Compare what services that scale cost in a day or month with the highest cost that they may have.

The result is `ServiceScaler.cost_hold`, which the next decision about the service follows. A day
and a month are those of UTC; use without a price costs nothing.
"""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec
from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from core.money import ZERO, format_amount
from jobqueue.models import Job, ServiceScaler
from jobqueue.usage.measuring import Period
from marketplace.budgets.spending import month_of
from marketplace.charges.models import BillingLine
from marketplace.costs.unbilled import unbilled_costs
from protocol.autoscaling import Autoscaling, CostPeriod

Capped = dict[str, Autoscaling]


def capped_services(session: Session) -> dict[str, Capped]:
    """Return how services scale that have a highest cost, by service, by tenant."""
    statement = select(ServiceScaler, Job.autoscaling).join(Job, Job.id == ServiceScaler.service_id)
    capped: dict[str, Capped] = defaultdict(dict)
    for scaler, stored in session.execute(statement):
        policy = msgspec.convert(stored, Autoscaling | None)
        if (policy is not None and policy.max_cost) or scaler.cost_hold:
            capped[scaler.tenant_id][scaler.service_id] = policy or Autoscaling()
    return capped


def hold_services(
    session: Session,
    tenant_id: str,
    services: Mapping[str, Autoscaling],
    *,
    currency: str,
    now: datetime,
) -> None:
    """Hold the services of a tenant that reached their highest cost, and release the others."""
    first_ids = select(Job.id, func.coalesce(Job.array_id, Job.id)).where(
        Job.tenant_id == tenant_id, or_(Job.id.in_(services), Job.array_id.in_(services))
    )
    service_of = {row[0]: row[1] for row in session.execute(first_ids)}
    costs: dict[CostPeriod, dict[str, Decimal]] = {}
    for service_id, policy in services.items():
        period = CostPeriod(policy.cost_period)
        if policy.max_cost and period not in costs:
            costs[period] = _costs(session, tenant_id, service_of, period, now=now)
        spent = costs[period].get(service_id, ZERO) if policy.max_cost else ZERO
        reason = ""
        if policy.max_cost and spent >= Decimal(str(policy.max_cost)):
            cap = format_amount(Decimal(str(policy.max_cost)), currency)
            until = _period(period, now).until
            reason = (
                f"its highest cost, {cap} a {period.value}, is reached; the next {period.value} "
                f"begins at {until:%Y-%m-%d %H:%M} UTC"
            )
        changed = update(ServiceScaler).where(
            ServiceScaler.service_id == service_id, ServiceScaler.cost_hold != reason
        )
        session.execute(changed.values(cost_hold=reason, evaluate_at=now))


def _period(period: CostPeriod, now: datetime) -> Period:
    if period is CostPeriod.MONTH:
        return month_of(now)
    day_at = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return Period(day_at, day_at + timedelta(days=1))


def _costs(
    session: Session,
    tenant_id: str,
    service_of: Mapping[str, str],
    period: CostPeriod,
    *,
    now: datetime,
) -> dict[str, Decimal]:
    """Return what services cost in a period until now."""
    since = _period(period, now).since
    costs: dict[str, Decimal] = defaultdict(lambda: ZERO)
    lines = (
        select(BillingLine.job_id, func.sum(BillingLine.amount))
        .where(
            BillingLine.tenant_id == tenant_id,
            BillingLine.at >= since,
            BillingLine.job_id.is_not(None),
        )
        .group_by(BillingLine.job_id)
    )
    for job_id, amount in session.execute(lines):
        if service_id := service_of.get(job_id or ""):
            costs[service_id] += amount
    # After the lines: what is charged meanwhile must not count twice.
    for cost in unbilled_costs(session, tenant_id, Period(since, now), now=now):
        if cost.job_id in service_of:
            costs[service_of[cost.job_id]] += cost.amount
    return costs
