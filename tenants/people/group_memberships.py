"""What the groups of an identity provider give and take of somebody's memberships at a sign-in.

What was given by hand they leave alone, and they take no tenant's last admin nor the last operator:
those stay until there is another, which is told in the log and in the audit log.
"""

import logging
from datetime import datetime

from sqlalchemy.orm import Session

from core.errors import ConflictError
from tenants.audit import record
from tenants.models import Membership, OIDCIdentity, Role, User
from tenants.people.group_roles import OPERATOR, Grants
from tenants.people.last_admin import keep_an_admin, keep_an_operator

log = logging.getLogger(__name__)


def apply_grants(
    session: Session, user: User, known: OIDCIdentity, grants: Grants, *, now: datetime
) -> None:
    """Give what the groups give, and take what they gave and give no more.

    Args:
        session: the database session.
        user: who signs in.
        known: their identity; it remembers what groups gave.
        grants: what the groups give today, by tenant id.
        now: the present instant.
    """
    before, after = set(known.granted), set[str]()
    if _apply_operator(session, user, before, is_given=grants.is_operator, now=now):
        after.add(OPERATOR)
    held_in = {one.tenant_id: one for one in user.memberships}
    # In one order, for tenants are held where an admin is about to be taken.
    for tenant_id in sorted(held_in.keys() | grants.roles.keys()):
        held, role = held_in.get(tenant_id), grants.roles.get(tenant_id)
        if held is None and role is not None:
            after.add(_give(session, user, tenant_id, role, now=now))
        elif held is not None and held.id in before and _stays(session, user, held, role, now=now):
            after.add(held.id)
    known.granted = sorted(after)
    session.flush()
    session.refresh(user, ["memberships"])


def _give(session: Session, user: User, tenant_id: str, role: Role, *, now: datetime) -> str:
    given = Membership(user_id=user.id, tenant_id=tenant_id, role=role, created_at=now)
    session.add(given)
    session.flush()
    return given.id


def _stays(
    session: Session, user: User, held: Membership, role: Role | None, *, now: datetime
) -> bool:
    """Change what a group gave, or take it; return whether it is still there."""
    is_loss = held.role is Role.ADMIN and role is not Role.ADMIN
    if is_loss and _is_last_admin(session, user, held, now=now):
        return True
    if role is not None:
        held.role = role
    else:
        session.delete(held)
    session.flush()
    return role is not None


def _is_last_admin(session: Session, user: User, held: Membership, *, now: datetime) -> bool:
    try:
        keep_an_admin(session, user, [held.tenant_id], act="take away by groups")
    except ConflictError:
        reason = "No group gives it any more, and nobody else is an admin there: it was kept."
        log.warning("%s stays an admin of %s: %s", user.email, held.tenant.slug, reason)
        record(
            session, action="membership.kept", target_kind="membership", target_id=held.id,
            target_name=user.email, tenant_id=held.tenant_id, reason=reason, now=now,
        )  # fmt: skip
        return True
    return False


def _apply_operator(
    session: Session, user: User, before: set[str], *, is_given: bool, now: datetime
) -> bool:
    """Make somebody an operator, or no longer; return whether groups gave it."""
    if user.is_operator and OPERATOR not in before:
        return False  # by hand
    if user.is_operator and not is_given and _is_last_operator(session, user, now=now):
        return True
    user.is_operator = is_given
    session.flush()
    return is_given


def _is_last_operator(session: Session, user: User, *, now: datetime) -> bool:
    try:
        keep_an_operator(session, user, act="take away by groups")
    except ConflictError:
        reason = "No group gives it any more, and nobody else is an operator: it was kept."
        log.warning("%s stays an operator: %s", user.email, reason)
        record(
            session, action="user.kept_operator", target_kind="user", target_id=user.id,
            target_name=user.email, tenant_id=None, reason=reason, now=now,
        )  # fmt: skip
        return True
    return False
