"""Prepaid credit: customers without any rent nothing until more is paid in.

What is left is the balance less what is not invoiced yet, with taxes, up to now. At 0 a hold keeps
new jobs off rented appliances; those that run there stop after a grace. Own appliances go on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.notification.notices import add_notice
from alerting.notification.quota_emails import admin_addresses
from core.money import ZERO, cents
from jobqueue.holds.models import JobHold
from jobqueue.holds.service import release_hold, set_hold
from jobqueue.usage.measuring import Period
from marketplace.budgets.spending import month_of
from marketplace.charges.prepaid import balance_of
from marketplace.costs.unbilled import unbilled_costs
from marketplace.invoices.closing import open_month
from marketplace.invoices.service import open_amount
from marketplace.models import Account
from marketplace.tenant_errors import TenantErrors
from tenants.models import Role, Tenant

STOP_AFTER = timedelta(hours=1)
REASON = (
    "The prepaid credit is used up, so no job starts on rented appliances. Ask the portal's "
    "operator to add the credit of a payment."
)


@dataclass(frozen=True, slots=True)
class CreditHolds:
    """The holds of tenants without credit: those that are new, and whose jobs stop now."""

    new: Sequence[JobHold] = ()
    stopping: Sequence[str] = ()


def credit_left(
    session: Session, tenant_id: str, *, tax_percent: Decimal, now: datetime
) -> Decimal:
    """Return what is left of a tenant's prepaid credit; negative if more was used.

    Args:
        session: the session.
        tenant_id: the customer.
        tax_percent: on what it rents.
        now: the time.
    """
    # In this order: what is charged, or invoiced and paid, meanwhile must not count twice.
    balance = balance_of(session, tenant_id)
    charged = open_amount(session, tenant_id, tax_percent=tax_percent)
    since = open_month(session) or month_of(now).since
    unbilled = unbilled_costs(session, tenant_id, Period(since, now), now=now)
    net = sum((cost.amount for cost in unbilled if cost.contract_id), ZERO)
    return balance - charged - cents(net * (100 + tax_percent) / 100)


def update_credit_holds(
    session: Session, *, tax_percent: Decimal, errors: TenantErrors, now: datetime
) -> CreditHolds:
    """Hold the rented jobs of prepaid customers without credit; release those with some.

    Args:
        session: the session.
        tax_percent: of accounts without one of their own.
        errors: gets the customers whose credit can't be computed; their holds stay as they are.
        now: the time.
    """
    accounts = session.scalars(select(Account).where(Account.is_prepaid.is_(True))).all()
    # Before anything is written: meanwhile, others write.
    left: dict[str, Decimal] = {}
    for account in accounts:
        own = account.tax_percent
        percent = tax_percent if own is None else own
        with errors.of(account.tenant_id):
            left[account.tenant_id] = credit_left(
                session, account.tenant_id, tax_percent=percent, now=now
            )
    prepaid = {account.tenant_id for account in accounts}
    holds = select(JobHold).where(JobHold.is_for_rentals.is_(True))
    for hold in session.scalars(holds).all():
        if hold.source_id == hold.tenant_id and hold.tenant_id not in prepaid:
            release_hold(session, hold.source_id)
    new, stopping = [], []
    # The id of a tenant is that of no budget.
    for source_id, amount in left.items():
        if amount > 0:
            release_hold(session, source_id)
            continue
        hold = JobHold(
            source_id=source_id,
            tenant_id=source_id,
            project_ids=None,
            user_id=None,
            is_for_rentals=True,
            reason=REASON,
            held_at=now,
        )
        if set_hold(session, hold):
            new.append(hold)
        elif session.get_one(JobHold, source_id).held_at + STOP_AFTER <= now:
            stopping.append(source_id)
    return CreditHolds(new, stopping)


def report_used_up(session: Session, tenant_id: str, *, public_url: str, now: datetime) -> int:
    """Add emails to a tenant's admins and billing users to the outbox; return how many."""
    tenant = session.get_one(Tenant, tenant_id)
    payload = {
        "subject": f"{tenant.name}: the prepaid credit is used up",
        "text": f"{REASON} Jobs that run on rented appliances stop in an hour.",
        "link": f"{public_url}/billing",
        "link_name": "Costs",
    }
    addresses = admin_addresses(session, tenant_id, roles=(Role.ADMIN, Role.BILLING))
    for address in addresses:
        add_notice(session, tenant_id, payload, address=address, now=now)
    return len(addresses)
