"""OpenID Connect: users of an identity provider are matched, linked, and get memberships by group.

`gpu-admins=acme:admin` maps a group to a role in a tenant, `platform-ops=operator` to the platform.
Groups add and remove only what groups granted. They never remove a tenant's last admin or the last
operator: those stay until there is another, which the log and the audit log record.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, exists, or_, select, update
from sqlalchemy.orm import Session

from core.errors import ConflictError, UnauthenticatedError
from tenants.auditing.recording import record
from tenants.checks import normalize_email
from tenants.models import (
    APIToken,
    Invitation,
    LoginSession,
    Membership,
    OIDCIdentity,
    PasswordReset,
    RecoveryCode,
    Role,
    Tenant,
    TenantState,
    User,
)
from tenants.models.users import NAME_LENGTH
from tenants.users.members import require_another_admin, require_another_operator

OPERATOR = Role.OPERATOR.value
TENANT_ROLES = (Role.VIEWER, Role.BILLING, Role.MEMBER, Role.ADMIN)  # in ascending order


@dataclass(frozen=True, slots=True)
class Grants:
    """The roles that groups grant: by tenant (its slug, later its id), and the operator role."""

    roles: dict[str, Role]
    is_operator: bool

    def __bool__(self) -> bool:
        """Return whether anything is granted."""
        return self.is_operator or bool(self.roles)


class GroupRoles:
    """Maps groups to `slug:role` or `operator`."""

    def __init__(self, entries: Iterable[tuple[str, str]] = ()) -> None:
        self._entries = tuple(entries)

    @classmethod
    def parse(cls, text: str) -> tuple["GroupRoles", list[str]]:
        """Parse `group=slug:role,group=operator`; return it with the errors.

        With a semicolon in the text, semicolons separate: names in directories contain commas.
        """
        entries, errors = [], []
        for entry in filter(None, map(str.strip, text.split(";" if ";" in text else ","))):
            group, _, grant = (part.strip() for part in entry.rpartition("="))
            slug, _, role = grant.partition(":")
            is_known = grant == OPERATOR or (slug and role in set(TENANT_ROLES))
            if group and is_known:
                entries.append((group, grant))
            else:
                errors.append(
                    f"oidc_roles: {entry!r} is invalid. Write group=tenant:role with the "
                    "role viewer, billing, member or admin, or group=operator."
                )
        return cls(entries), errors

    def grants(self, groups: frozenset[str]) -> Grants:
        """Return the combined grants of groups; the highest role in a tenant wins."""
        granted = [grant for group, grant in self._entries if group in groups]
        roles: dict[str, Role] = {}
        for grant in granted:
            slug, _, role = grant.partition(":")
            if role:
                roles[slug] = max(roles.get(slug, Role.VIEWER), Role(role), key=TENANT_ROLES.index)
        return Grants(roles=roles, is_operator=OPERATOR in granted)


log = logging.getLogger(__name__)
NO_MEMBERSHIP = "oidc_no_membership"
EMAIL_UNVERIFIED = "oidc_email_unverified"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A user's identity, as the identity provider states it."""

    issuer: str
    subject: str
    email: str
    is_email_verified: bool
    name: str
    groups: frozenset[str] = frozenset()


def user_for_identity(
    session: Session, identity: Identity, group_roles: GroupRoles, *, now: datetime
) -> User:
    """Return the user of an identity, with the memberships that their groups grant.

    A new identity is matched by its verified email address, or created if the groups grant
    something. The user may have lost all memberships: the caller commits that, and checks with
    `tenants.principals.principal_of` whether they may sign in.

    Raises:
        UnauthenticatedError: the address is not verified, the user is deactivated, or the groups of
            a new user grant nothing.
    """
    grants = _known_grants(session, group_roles.grants(identity.groups))
    oidc_identity = session.scalar(
        select(OIDCIdentity)
        .where(OIDCIdentity.issuer == identity.issuer, OIDCIdentity.subject == identity.subject)
        .with_for_update()
    )
    if oidc_identity is None:
        user = _first_sign_in(session, identity, may_add=bool(grants), now=now)
        oidc_identity = OIDCIdentity(
            user_id=user.id,
            issuer=identity.issuer,
            subject=identity.subject,
            granted=[],
            created_at=now,
        )
        session.add(oidc_identity)
    user = session.get_one(User, oidc_identity.user_id, populate_existing=True)
    oidc_identity.last_used_at = now
    apply_grants(session, user, oidc_identity, grants, now=now)
    return user


def _known_grants(session: Session, grants: Grants) -> Grants:
    """Return the grants by tenant id, without those for unknown and closed tenants."""
    matches = session.scalars(select(Tenant).where(Tenant.slug.in_(list(grants.roles))))
    # MySQL ignores case and accents when it compares.
    tenants = [tenant for tenant in matches if tenant.slug in grants.roles]
    for slug in sorted(grants.roles.keys() - {tenant.slug for tenant in tenants}):
        log.warning("oidc_roles: unknown tenant %r", slug)
    roles = {
        tenant.id: grants.roles[tenant.slug]
        for tenant in tenants
        if tenant.state is not TenantState.CLOSED
    }
    return Grants(roles=roles, is_operator=grants.is_operator)


def _first_sign_in(session: Session, identity: Identity, *, may_add: bool, now: datetime) -> User:
    email, errors = normalize_email(identity.email)
    if errors or not identity.is_email_verified:
        raise UnauthenticatedError(
            "Your identity provider has not verified your email address. Verify the address "
            "there, then sign in again.",
            code=EMAIL_UNVERIFIED,
        )
    user = session.scalar(select(User).where(User.email == email).with_for_update())
    if user is not None and user.email != email:
        raise UnauthenticatedError(
            f"{email} is too similar to another account's address. Contact the portal's operator."
        )
    if user is not None:
        if not user.is_active:
            raise UnauthenticatedError("This account is deactivated. Ask an admin of your tenant.")
        _hand_over(session, user, now=now)
        return user
    if not may_add:
        raise UnauthenticatedError(
            f"{email} has no account, and none of your groups grants one. Contact the portal's "
            "operator, or ask for an invitation.",
            code=NO_MEMBERSHIP,
        )
    name = (identity.name.strip() or email.partition("@")[0])[:NAME_LENGTH]
    user = User(email=email, name=name, password_hash=None, is_active=True, created_at=now)
    session.add(user)
    session.flush()
    return user


def _hand_over(session: Session, user: User, *, now: datetime) -> None:
    """Give an account to the verified owner of its address.

    Whoever created the account chose its password, and may not be the owner. Unless the owner has
    proved to read the address, all credentials are removed.
    """
    # A reader of the address set the password or accepted an invitation.
    reset = exists().where(PasswordReset.user_id == user.id, PasswordReset.used_at.is_not(None))
    joined = exists().where(Invitation.email == user.email, Invitation.accepted_at.is_not(None))
    if user.is_operator or session.scalar(select(or_(reset, joined))):
        return
    user.password_hash = None
    user.totp_secret = user.totp_confirmed_at = user.totp_last_step = None
    for owned in (RecoveryCode, LoginSession):
        session.execute(delete(owned).where(owned.user_id == user.id))
    unrevoked = (APIToken.user_id == user.id, APIToken.revoked_at.is_(None))
    session.execute(update(APIToken).where(*unrevoked).values(revoked_at=now))
    session.flush()


def apply_grants(
    session: Session, user: User, oidc_identity: OIDCIdentity, grants: Grants, *, now: datetime
) -> None:
    """Add what the groups grant; remove what they granted before and do not grant any more.

    `oidc_identity.granted` stores what the groups granted; `grants` is by tenant id.
    """
    before, after = set(oidc_identity.granted), set[str]()
    if _apply_operator(session, user, before, is_given=grants.is_operator, now=now):
        after.add(OPERATOR)
    current = {row.tenant_id: row for row in user.memberships}
    # Sorted, because tenants are locked where an admin is removed.
    for tenant_id in sorted(current.keys() | grants.roles.keys()):
        membership, role = current.get(tenant_id), grants.roles.get(tenant_id)
        if membership is None and role is not None:
            membership = Membership(user_id=user.id, tenant_id=tenant_id, role=role, created_at=now)
            session.add(membership)
            session.flush()
            after.add(membership.id)
        elif (
            membership is not None
            and membership.id in before
            and _stays(session, user, membership, role, now=now)
        ):
            after.add(membership.id)
    oidc_identity.granted = sorted(after)
    session.flush()
    session.refresh(user, ["memberships"])


def _stays(
    session: Session, user: User, membership: Membership, role: Role | None, *, now: datetime
) -> bool:
    """Change or remove what a group granted; return whether the membership remains."""
    is_loss = membership.role is Role.ADMIN and role is not Role.ADMIN
    if is_loss and _is_last_admin(session, user, membership, now=now):
        return True
    if role is not None:
        membership.role = role
    else:
        session.delete(membership)
    session.flush()
    return role is not None


def _is_last_admin(session: Session, user: User, membership: Membership, *, now: datetime) -> bool:
    try:
        require_another_admin(session, user, [membership.tenant_id], act="remove by groups")
    except ConflictError:
        role_text = f"admin of {membership.tenant.slug}"
        _record_kept(session, user, "membership.kept", membership, role_text, now=now)
        return True
    return False


def _apply_operator(
    session: Session, user: User, before: set[str], *, is_given: bool, now: datetime
) -> bool:
    """Grant or remove the operator role; return whether groups granted it."""
    if user.is_operator and OPERATOR not in before:
        return False  # granted manually
    if user.is_operator and not is_given and _is_last_operator(session, user, now=now):
        return True
    user.is_operator = is_given
    session.flush()
    return is_given


def _is_last_operator(session: Session, user: User, *, now: datetime) -> bool:
    try:
        require_another_operator(session, user, act="remove by groups")
    except ConflictError:
        _record_kept(session, user, "user.kept_operator", user, "operator", now=now)
        return True
    return False


def _record_kept(
    session: Session,
    user: User,
    action: str,
    row: Membership | User,
    role_text: str,
    *,
    now: datetime,
) -> None:
    reason = f"No group grants it, but this is the last {role_text}: it was not removed."
    log.warning("%s stays an %s: %s", user.email, role_text, reason)
    record(
        session,
        action=action,
        target_id=row.id,
        target_name=user.email,
        tenant_id=row.tenant_id if isinstance(row, Membership) else None,
        reason=reason,
        now=now,
    )
