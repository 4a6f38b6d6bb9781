"""People who come from an identity provider: recognised, linked, and made members by their groups.

Groups give and take memberships at every sign-in, see `tenants.people.group_memberships`.
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
    OIDCIdentity,
    PasswordReset,
    RecoveryCode,
    Tenant,
    TenantState,
    User,
)
from tenants.models.people import NAME_LENGTH
from tenants.people.group_memberships import apply_grants
from tenants.people.group_roles import Grants, GroupRoles

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
    apply_grants(session, user, known, grants, now=now)
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
