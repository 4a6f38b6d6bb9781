"""People who come from an identity provider: recognised, linked, and made members by their groups.

Groups give and take memberships at every sign-in, as `tenants.people.group_roles` says; what was
given by hand they leave alone.
"""

import logging
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, exists, or_, select, update
from sqlalchemy.orm import Session

from core.errors import UnauthenticatedError
from tenants.checks import normalise_email
from tenants.models import (
    APIToken,
    Invitation,
    LoginSession,
    Membership,
    OIDCIdentity,
    PasswordReset,
    RecoveryCode,
    Tenant,
    TenantState,
    User,
)
from tenants.models.people import NAME_LENGTH
from tenants.people.group_roles import OPERATOR, Grants, GroupRoles

log = logging.getLogger(__name__)

NO_MEMBERSHIP = "oidc_no_membership"
EMAIL_UNVERIFIED = "oidc_email_unverified"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who somebody is, as their identity provider says."""

    issuer: str
    subject: str
    email: str
    is_email_verified: bool
    name: str
    groups: frozenset[str] = frozenset()


def user_of_identity(
    session: Session, identity: Identity, group_roles: GroupRoles, *, now: datetime
) -> User:
    """Return whose identity this is, with the memberships that their groups give today.

    Somebody who is here for the first time is found by their verified email address, or added when
    their groups give them something. The user may have lost all memberships: the caller commits
    that, and asks `tenants.visitors.visitor_of` whether they may come in.

    Raises:
        UnauthenticatedError: the address is not verified, the account is locked, or the groups of
            somebody unknown give nothing.
    """
    grants = _known_grants(session, group_roles.grants(identity.groups))
    known = session.scalar(
        select(OIDCIdentity)
        .where(OIDCIdentity.issuer == identity.issuer, OIDCIdentity.subject == identity.subject)
        .with_for_update()
    )
    if known is None:
        user = _first_visit(session, identity, may_add=bool(grants), now=now)
        known = OIDCIdentity(
            user_id=user.id, issuer=identity.issuer, subject=identity.subject, granted=[],
            created_at=now,
        )  # fmt: skip
        session.add(known)
    user = session.get_one(User, known.user_id, populate_existing=True)
    known.last_used_at = now
    _apply(session, user, known, grants, now=now)
    return user


def _known_grants(session: Session, grants: Grants) -> Grants:
    """Return the grants by tenant id; those for tenants that are not there give nothing."""
    found = session.scalars(select(Tenant).where(Tenant.slug.in_(list(grants.roles))))
    # MySQL takes `Acme` for `acme`, and `bob` for `böb`: here, they differ.
    tenants = [tenant for tenant in found if tenant.slug in grants.roles]
    for slug in sorted(grants.roles.keys() - {tenant.slug for tenant in tenants}):
        log.warning("oidc_roles names the tenant %r, which there is not", slug)
    roles = {
        tenant.id: grants.roles[tenant.slug]
        for tenant in tenants
        if tenant.state is not TenantState.CLOSED
    }
    return Grants(roles=roles, is_operator=grants.is_operator)


def _first_visit(session: Session, identity: Identity, *, may_add: bool, now: datetime) -> User:
    email, faults = normalise_email(identity.email)
    if faults or not identity.is_email_verified:
        raise UnauthenticatedError(
            "Your identity provider does not vouch for your email address. Have the address "
            "verified there, then sign in again.",
            code=EMAIL_UNVERIFIED,
        )
    user = session.scalar(select(User).where(User.email == email).with_for_update())
    if user is not None and user.email != email:
        raise UnauthenticatedError(
            f"{email} is too much like another account's address. Ask the operator of the portal."
        )
    if user is not None:
        if not user.is_active:
            raise UnauthenticatedError("This account is locked. Ask an admin of your tenant.")
        _hand_over(session, user, now=now)
        return user
    if not may_add:
        raise UnauthenticatedError(
            f"{email} has no account here, and none of your groups gives one. Ask the operator of "
            "the portal, or for an invitation.",
            code=NO_MEMBERSHIP,
        )
    name = (identity.name.strip() or email.partition("@")[0])[:NAME_LENGTH]
    user = User(email=email, name=name, password_hash=None, is_active=True, created_at=now)
    session.add(user)
    session.flush()
    return user


def _hand_over(session: Session, user: User, *, now: datetime) -> None:
    """Give an account to the owner of its address.

    Whoever added it chose its password, so that without proof that the owner chose one since, it
    would let somebody else in beside them: it goes, and with it all that it may have opened.
    """
    if user.is_operator or _owner_was_here(session, user):
        return
    user.password_hash = None
    user.totp_secret = user.totp_confirmed_at = user.totp_last_step = None
    for owned in (RecoveryCode, LoginSession):
        session.execute(delete(owned).where(owned.user_id == user.id))
    unrevoked = (APIToken.user_id == user.id, APIToken.revoked_at.is_(None))
    session.execute(update(APIToken).where(*unrevoked).values(revoked_at=now))
    session.flush()


def _owner_was_here(session: Session, user: User) -> bool:
    """Whether somebody who reads mail to the user's address has set the password, or joined."""
    reset = exists().where(PasswordReset.user_id == user.id, PasswordReset.used_at.is_not(None))
    joined = exists().where(Invitation.email == user.email, Invitation.accepted_at.is_not(None))
    return bool(session.scalar(select(or_(reset, joined))))


def _apply(
    session: Session, user: User, known: OIDCIdentity, grants: Grants, *, now: datetime
) -> None:
    """Give what the groups give, and take what they gave and give no more."""
    before = set(known.granted)
    after = _apply_operator(user, before, is_given=grants.is_operator)
    by_tenant = {one.tenant_id: one for one in user.memberships}
    for membership in user.memberships:
        if membership.id in before and membership.tenant_id not in grants.roles:
            session.delete(membership)
    for tenant_id, role in grants.roles.items():
        held = by_tenant.get(tenant_id)
        if held is None:
            held = Membership(user_id=user.id, tenant_id=tenant_id, role=role, created_at=now)
            session.add(held)
            session.flush()
        elif held.id not in before:
            continue
        held.role = role
        after.add(held.id)
    known.granted = sorted(after)
    session.flush()
    session.refresh(user, ["memberships"])


def _apply_operator(user: User, before: set[str], *, is_given: bool) -> set[str]:
    is_ours = OPERATOR in before or not user.is_operator
    if is_ours:
        user.is_operator = is_given
    return {OPERATOR} if is_ours and is_given else set()
