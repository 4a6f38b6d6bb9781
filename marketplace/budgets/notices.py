"""Messages about budgets that reached a warning level."""

import logging
from datetime import datetime

from sqlalchemy.orm import Session

from alerting.notification.notices import add_notice
from alerting.notification.quota_emails import admin_addresses
from core.money import cents, format_amount
from core.quantities import format_duration
from jobqueue.jobs.end_notices import EMAIL
from marketplace.budgets.evaluation import title_of
from marketplace.budgets.models import Budget, BudgetAction, BudgetTarget
from tenants.models import Role, Tenant, User

log = logging.getLogger(__name__)


def warn(
    session: Session,
    budget: Budget,
    *,
    currency: str,
    public_url: str,
    has_email: bool,
    now: datetime,
) -> int:
    """Add the messages about a budget's level to the outbox; return how many.

    Without `has_email`, only receivers get them.
    """
    tenant = session.get_one(Tenant, budget.tenant_id)
    title, shown = title_of(budget), int(budget.percent)
    spent, amount, forecast = (
        format_amount(cents(value), currency)
        for value in (budget.spent, budget.amount, budget.forecast)
    )
    facts = [
        f"{spent} of {amount} are spent in {budget.period_at:%B %Y}.",
        f"At the rate of the last seven days, the month comes to {forecast}.",
        _consequence(budget),
    ]
    payload = {
        "subject": f"{tenant.name}: {title} is {shown} % spent",
        "text": " ".join(facts),
        "link": f"{public_url}/billing/budgets",
        "link_name": "Budgets",
    }
    count = 0
    for name in budget.notify:
        if name != EMAIL:
            is_added = add_notice(session, tenant.id, payload, receiver=name, now=now)
            count += is_added
            if not is_added:
                log.warning("budget %s: receiver %r is gone", budget.id, name)
            continue
        for address in _addresses(session, budget) if has_email else ():
            count += add_notice(session, tenant.id, payload, address=address, now=now)
    return count


def _addresses(session: Session, budget: Budget) -> list[str]:
    addresses = admin_addresses(session, budget.tenant_id, roles=(Role.ADMIN, Role.BILLING))
    if budget.target is BudgetTarget.USER:
        user = session.get(User, budget.target_id)
        if user is not None and user.is_active and user.email not in addresses:
            addresses.append(user.email)
    return addresses


def _consequence(budget: Budget) -> str:
    is_spent = budget.reached_at is not None
    if budget.action is BudgetAction.NOTIFY:
        return "Jobs go on."
    held = (
        "No new job with GPUs starts until it is raised or the month ends."
        if is_spent
        else "At 100 % no new job with GPUs starts."
    )
    if budget.action is BudgetAction.STOP_NEW_JOBS:
        return held
    grace = format_duration(budget.grace_seconds)
    when = f"in {grace}" if is_spent else f"{grace} later"
    return f"{held} Running ones stop {when if budget.grace_seconds else 'at once'}."
