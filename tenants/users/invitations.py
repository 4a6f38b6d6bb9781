"""Invitations: a link makes a user a member of a tenant, or an operator of the platform.

Only the holder of the link learns whether the invited address has an account. An invitation is
*open* until it is accepted or revoked. Its link expires; sending the invitation again creates a new
link and invalidates the old one.
"""

from datetime import datetime, timedelta
from typing import Any, Unpack

from sqlalchemy import ColumnElement, and_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db import changed_one
from core.errors import ConflictError, ForbiddenError, NotFoundError
from core.ids import hash_secret, new_secret
from core.paging import Columns, Page, Paging, list_page
from tenants.checks import normalize_email, raise_if_invalid, role_errors
from tenants.models import Invitation, Membership, Role, TenantState, User
from tenants.permissions import Permission
from tenants.scope import Scope
from tenants.tenants import get_tenant
from tenants.users.members import create_user
from tenants.users.signin import find_user

INVITATION_SORTS: Columns = {
    "email": Invitation.email,
    "role": Invitation.role,
    "created_at": Invitation.created_at,
    "expires_at": Invitation.expires_at,
}
INVITATION_PREFIX = "vdi"
INVITATION_LIFETIME = timedelta(days=7)
GONE = "invitation_gone"


def invite(
    session: Session, scope: Scope, *, tenant_id: str | None, email: str, role: Role, now: datetime
) -> tuple[Invitation, str]:
    """Invite a user; return the invitation with the secret of its link.

    Admins invite to their own tenant; operators to any, and, with `tenant_id` None, operators.

    Raises:
        InvalidInputError: names every invalid field.
        ForbiddenError: an admin invites an operator.
        NotFoundError: there is no such tenant.
        ConflictError: the user is already a member or invited.
    """
    scope.require(Permission.MANAGE_USERS)
    if role is Role.OPERATOR and not scope.allows(Permission.OPERATE):
        raise ForbiddenError("Only an operator may invite an operator. Choose another role.")
    email, errors = normalize_email(email)
    raise_if_invalid({"email": errors, "role": role_errors(role, tenant_id)}, "Nobody was invited")
    if tenant_id is not None:
        get_tenant(session, scope, tenant_id)
    _refuse_twice(session, email, tenant_id)
    secret = new_secret(INVITATION_PREFIX)
    invitation = Invitation(
        tenant_id=tenant_id,
        email=email,
        role=role,
        secret_hash=hash_secret(secret),
        invited_by=scope.user_id,
        created_at=now,
        expires_at=now + INVITATION_LIFETIME,
    )
    session.add(invitation)
    session.flush()
    session.refresh(invitation, ["tenant"])
    return invitation, secret


def list_invitations(
    session: Session, scope: Scope, *, tenant_id: str | None = None, **paging: Unpack[Paging]
) -> Page[Invitation]:
    """Return the open invitations that the scope manages, newest first, also expired ones."""
    scope.require(Permission.MANAGE_USERS)
    if tenant_id is not None:
        get_tenant(session, scope, tenant_id)
    statement = scope.select(select(Invitation).where(is_open()), Invitation)
    if tenant_id is not None:
        statement = statement.where(Invitation.tenant_id == tenant_id)
    statement = statement.order_by(Invitation.id.desc())
    return list_page(session, statement, INVITATION_SORTS, last=Invitation.id, **paging)


def get_invitation(session: Session, scope: Scope, invitation_id: str) -> Invitation:
    """Return an invitation, open or not."""
    scope.require(Permission.MANAGE_USERS)
    return scope.get(session, Invitation, invitation_id, kind="invitation")


def renew_invitation(
    session: Session, scope: Scope, invitation_id: str, *, now: datetime
) -> tuple[Invitation, str]:
    """Create a new link for an open invitation; the old one becomes invalid.

    Raises:
        ConflictError: it was accepted or revoked.
    """
    invitation = get_invitation(session, scope, invitation_id)
    secret = new_secret(INVITATION_PREFIX)
    renewed = {"secret_hash": hash_secret(secret), "expires_at": now + INVITATION_LIFETIME}
    update_open_invitation(session, invitation, **renewed)
    return invitation, secret


def revoke_invitation(
    session: Session, scope: Scope, invitation_id: str, *, now: datetime
) -> Invitation:
    """Revoke an open invitation.

    Raises:
        ConflictError: it was accepted.
    """
    invitation = get_invitation(session, scope, invitation_id)
    if invitation.revoked_at is None:
        update_open_invitation(session, invitation, revoked_at=now)
    return invitation


def _refuse_twice(session: Session, email: str, tenant_id: str | None) -> None:
    """Raise `ConflictError` if the address is a member of this tenant or invited to it."""
    user = find_user(session, email)
    is_member = user is not None and (
        user.is_operator
        if tenant_id is None
        else any(membership.tenant_id == tenant_id for membership in user.memberships)
    )
    if is_member:
        error_text = f"{email} is already a member. Look for the address in the list."
        raise ConflictError(error_text, code="already_member", errors={"email": [error_text]})
    same_tenant = Invitation.tenant_id == tenant_id  # NULL becomes IS NULL
    statement = select(Invitation.id).where(is_open(), same_tenant, Invitation.email == email)
    if session.scalars(statement.limit(1)).first() is not None:
        error_text = f"{email} is already invited. Send that invitation again instead."
        raise ConflictError(error_text, code="already_invited", errors={"email": [error_text]})


def update_open_invitation(session: Session, invitation: Invitation, **values: Any) -> None:  # noqa: ANN401 - columns
    """Update an invitation unless it was closed concurrently.

    Raises:
        ConflictError: it is not open any more.
    """
    # This locks the row; setting the values on the object lets the audit log record them.
    lock = update(Invitation).where(
        Invitation.id == invitation.id, Invitation.secret_hash == invitation.secret_hash, is_open()
    )
    lock = lock.values(email=Invitation.email)
    if not changed_one(session, lock, synchronize_session=False):
        raise ConflictError(
            "This invitation is no longer open: it was accepted, revoked or sent again.",
            code=GONE,
        )
    for name, value in values.items():
        setattr(invitation, name, value)
    session.flush()


def is_open() -> ColumnElement[bool]:
    """Return the SQL condition that an invitation was neither accepted nor revoked."""
    return and_(Invitation.accepted_at.is_(None), Invitation.revoked_at.is_(None))


WRONG_USER = "invitation_of_somebody_else"


def find_invitation(session: Session, secret: str, *, now: datetime) -> Invitation:
    """Return the invitation of a valid link.

    Raises:
        NotFoundError: it is unknown, accepted, revoked, renewed or expired.
    """
    invitation = session.scalar(
        select(Invitation).where(
            Invitation.secret_hash == hash_secret(secret), is_open(), Invitation.expires_at > now
        )
    )
    tenant = None if invitation is None else invitation.tenant
    if invitation is None or (tenant is not None and tenant.state is not TenantState.ACTIVE):
        raise NotFoundError(
            "This invitation is no longer valid: it was accepted, revoked or sent again, or it has "
            "expired. Ask the sender for a new one.",
            code=GONE,
        )
    return invitation


def accept_as_new(
    session: Session, secret: str, *, name: str, password: str, now: datetime
) -> User:
    """Accept an invitation by creating an account.

    Raises:
        InvalidInputError: the name or the password is invalid; the link stays valid.
        NotFoundError: the link is invalid.
        ConflictError: the address has an account.
    """
    invitation = find_invitation(session, secret, now=now)
    update_open_invitation(session, invitation, accepted_at=now)
    return create_user(
        session,
        tenant_id=invitation.tenant_id,
        email=invitation.email,
        name=name,
        role=invitation.role,
        password=password,
        now=now,
    )


def accept_as(session: Session, secret: str, user_id: str, *, now: datetime) -> User:
    """Accept an invitation as a signed-in user.

    Raises:
        NotFoundError: the link is invalid.
        ForbiddenError: it is for another address.
        ConflictError: the user is already a member.
    """
    invitation = find_invitation(session, secret, now=now)
    user = session.get_one(User, user_id)
    if user.email != invitation.email:
        raise ForbiddenError(
            f"This invitation is for {invitation.email}, and you are signed in as {user.email}. "
            "Sign out, and sign in with that address.",
            code=WRONG_USER,
        )
    update_open_invitation(session, invitation, accepted_at=now)
    if invitation.tenant_id is None:
        user.is_operator = True
    else:
        joined = Membership(
            user_id=user.id, tenant_id=invitation.tenant_id, role=invitation.role, created_at=now
        )
        try:
            with session.begin_nested():
                session.add(joined)
        except IntegrityError as error:
            raise ConflictError("You are already a member of this tenant.") from error
    session.flush()
    session.refresh(user, ["memberships"])
    return user
