"""Changes of contracts in the audit logs of both sides, and emails about them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from marketplace.emails import email_admins
from marketplace.models import Contract
from marketplace.states import Side
from tenants.auditing.recording import record
from tenants.models import Tenant


def record_change(
    session: Session,
    contract: Contract,
    verb: str,
    side: Side | None,
    *,
    after: Mapping[str, Any] | None = None,
    reason: str = "",
    now: datetime,
) -> None:
    """Record a change in the audit logs of both sides; the platform's has it by itself.

    Args:
        session: the session, whose actor made it.
        contract: the contract.
        verb: what happened, such as `noticed` or `version_accepted`.
        side: whose user made it; None for the operator or the portal.
        after: values by name.
        reason: why the operator did it.
        now: the time.
    """
    for tenant_side in Side:
        # The log of a tenant that was removed is closed.
        if session.get(Tenant, tenant_of(contract, tenant_side)) is None:
            continue
        record(
            session,
            action=f"contract.{verb}",
            target_id=contract.id,
            target_name=contract.offer_name,
            tenant_id=tenant_of(contract, tenant_side),
            after=after,
            reason=reason,
            is_foreign=side is tenant_side.other,
            now=now,
        )


def email_sides(
    session: Session,
    contract: Contract,
    what: str,
    side: Side | None,
    *,
    mail_url: str,
    now: datetime,
) -> None:
    """Email what happened to the side that did not do it, or to both.

    Args:
        session: the session.
        contract: the contract.
        what: the rest of the sentence after the contract, such as `has ended`.
        side: whose user did it; None for the operator or the portal.
        mail_url: the address of the portal; "" if no mail server is configured.
        now: the time.
    """
    for tenant_side in Side if side is None else (side.other,):
        other = name_of(contract, tenant_side.other)
        email_admins(
            session,
            tenant_of(contract, tenant_side),
            subject=f"Contract {contract.offer_name} with {other}",
            text=f"The contract about {contract.offer_name} with {other} {what}.",
            link=f"{mail_url}/contracts/{contract.id}" if mail_url else "",
            now=now,
        )


def tenant_of(contract: Contract, side: Side) -> str:
    """Return the tenant of a side."""
    return contract.provider_id if side is Side.PROVIDER else contract.customer_id


def name_of(contract: Contract, side: Side) -> str:
    """Return the public name of a side."""
    return contract.provider_name if side is Side.PROVIDER else contract.customer_name
