"""Mails to a tenant's admins about a quota that is nearly used up, by the outbox."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.models import Notification
from alerting.states import NotificationState
from core.units import format_value
from tenants.customers.warnings import Crossing
from tenants.models import FillingQuota, Membership, Role, Tenant, User

_NOUNS = {FillingQuota.STORAGE: "of storage", FillingQuota.SERIES: "series"}
_FULL = {
    FillingQuota.STORAGE: (
        "At 100 % no more samples are taken; agents keep theirs for as long as their buffers "
        "last, and send them later."
    ),
    FillingQuota.SERIES: (
        "At 100 % samples of further series are refused; those of the present ones are taken."
    ),
}


def tell_admins(
    session: Session, crossings: Iterable[Crossing], *, public_url: str, now: datetime
) -> int:
    """Put a mail to each admin of each tenant into the outbox; return how many mails."""
    count = 0
    for crossing in crossings:
        tenant = session.get_one(Tenant, crossing.tenant_id)
        payload = _letter(crossing, tenant, public_url=public_url)
        for address in _admins(session, tenant.id):
            count += 1
            session.add(
                Notification(
                    tenant_id=tenant.id, address=address, payload=payload,
                    state=NotificationState.WAITING, next_try_at=now, created_at=now,
                )
            )  # fmt: skip
    session.flush()
    return count


def _admins(session: Session, tenant_id: str) -> list[str]:
    statement = (
        select(User.email)
        .join(Membership, Membership.user_id == User.id)
        .where(
            Membership.tenant_id == tenant_id,
            Membership.role == Role.ADMIN,
            Membership.is_active.is_(True),
            User.is_active.is_(True),
        )
        .order_by(User.email)
    )
    return list(session.scalars(statement))


def _letter(crossing: Crossing, tenant: Tenant, *, public_url: str) -> dict[str, str]:
    used, most = _amount(crossing.quota, crossing.used), _amount(crossing.quota, crossing.most)
    percent = int(100 * crossing.used / crossing.most) if crossing.most else 100
    return {
        "kind": "letter",
        "subject": f"{tenant.name} uses {percent} % of its quota of {crossing.quota.value}",
        "text": (
            f"{tenant.name} uses {used} of at most {most} {_NOUNS[crossing.quota]}. "
            f"{_FULL[crossing.quota]} "
            "Ask the portal's operator for more, or send less."
        ),
        "link": f"{public_url}/usage",
        "link_name": "Usage and quotas",
    }


def _amount(quota: FillingQuota, value: int) -> str:
    return format_value("size_bytes", value) if quota is FillingQuota.STORAGE else f"{value:,}"
