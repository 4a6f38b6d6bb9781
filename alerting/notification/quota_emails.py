"""Emails to a tenant's admins about a quota that is nearly reached."""

from collections.abc import Collection, Iterable
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.notification.notices import add_notice
from core.quantities import format_size
from tenants.lifecycle.quota_warnings import Crossing
from tenants.models import FillingQuota, Membership, Role, Tenant, User

_STORAGE_FULL = (
    "At 100 % no more samples are accepted. Agents buffer theirs and send them later, as long "
    "as their buffers have space."
)


def email_admins(
    session: Session, crossings: Iterable[Crossing], *, public_url: str, now: datetime
) -> int:
    """Add an email to each admin of each tenant to the outbox; return the number of emails."""
    count = 0
    for crossing in crossings:
        tenant = session.get_one(Tenant, crossing.tenant_id)
        payload = _payload(crossing, tenant, public_url=public_url)
        for address in admin_addresses(session, tenant.id):
            count += 1
            add_notice(session, tenant.id, payload, address=address, now=now)
    session.flush()
    return count


def admin_addresses(
    session: Session, tenant_id: str, *, roles: Collection[Role] = (Role.ADMIN,)
) -> list[str]:
    """Return the addresses of a tenant's active admins, or of users with other roles."""
    statement = (
        select(User.email)
        .join(Membership, Membership.user_id == User.id)
        .where(
            Membership.tenant_id == tenant_id,
            Membership.role.in_(roles),
            Membership.is_active.is_(True),
            User.is_active.is_(True),
        )
        .order_by(User.email)
    )
    return list(session.scalars(statement))


def _payload(crossing: Crossing, tenant: Tenant, *, public_url: str) -> dict[str, str]:
    used, limit = _amount(crossing.quota, crossing.used), _amount(crossing.quota, crossing.limit)
    percent = int(100 * crossing.used / crossing.limit) if crossing.limit else 100
    return {
        "subject": f"{tenant.name} uses {percent} % of its {crossing.quota.value} quota",
        "text": (
            f"{tenant.name} uses {used} of {limit} {_noun(crossing.quota)}. "
            f"{_when_full(crossing.quota)} "
            "Ask the portal's operator for a larger quota, or send fewer samples."
        ),
        "link": f"{public_url}/usage",
        "link_name": "Usage and quotas",
    }


def _noun(quota: FillingQuota) -> str:
    return "of storage" if quota is FillingQuota.STORAGE else quota.value


def _when_full(quota: FillingQuota) -> str:
    if quota is FillingQuota.STORAGE:
        return _STORAGE_FULL
    return f"At 100 % samples of new {quota} are rejected. Existing {quota} are not affected."


def _amount(quota: FillingQuota, value: int) -> str:
    return format_size(value) if quota is FillingQuota.STORAGE else f"{value:,}"
