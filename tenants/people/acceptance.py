"""Accepting an invitation: whoever holds its link joins, with a new account or the own one."""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, NotFoundError
from core.ids import hash_secret
from tenants.accounts import create_user
from tenants.models import Invitation, Membership, TenantState, User
from tenants.people.invitations import GONE, change_open, is_open

ELSEWHERE = "invitation_of_somebody_else"


def find_invitation(session: Session, secret: str, *, now: datetime) -> Invitation:
    """Return the invitation of a link that still works.

    Raises:
        NotFoundError: it was never made, was accepted, revoked or renewed, or has run out.
    """
    found = session.scalar(
        select(Invitation).where(
            Invitation.secret_hash == hash_secret(secret), is_open(), Invitation.expires_at > now
        )
    )
    if found is None:
        raise _gone()
    if found.tenant is not None and found.tenant.state is not TenantState.ACTIVE:
        raise _gone()
    return found


def accept_as_new(
    session: Session, secret: str, *, name: str, password: str, now: datetime
) -> User:
    """Accept an invitation as somebody without an account: make it.

    Raises:
        InvalidInputError: the name or the password won't do; the link still works.
        NotFoundError: the link works no more.
        ConflictError: the address has an account.
    """
    invitation = find_invitation(session, secret, now=now)
    change_open(session, invitation, accepted_at=now)
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
    """Accept an invitation as a user, who has shown that they are who was invited.

    Raises:
        NotFoundError: the link works no more.
        ForbiddenError: it is for another address.
        ConflictError: they are a member already.
    """
    invitation = find_invitation(session, secret, now=now)
    user = session.get_one(User, user_id)
    if user.email != invitation.email:
        raise ForbiddenError(
            f"This invitation is for {invitation.email}, and you are signed in as {user.email}. "
            "Sign out, and sign in with that address.",
            code=ELSEWHERE,
        )
    change_open(session, invitation, accepted_at=now)
    if invitation.tenant_id is None:
        user.is_operator = True
    else:
        _join(session, user, invitation, now=now)
    session.flush()
    session.refresh(user, ["memberships"])
    return user


def _join(session: Session, user: User, invitation: Invitation, *, now: datetime) -> None:
    joined = Membership(
        user_id=user.id, tenant_id=invitation.tenant_id, role=invitation.role, created_at=now
    )
    try:
        with session.begin_nested():
            session.add(joined)
    except IntegrityError as error:
        raise ConflictError("You are a member of this tenant already.") from error


def _gone() -> NotFoundError:
    return NotFoundError(
        "This invitation works no more: it was accepted, revoked or sent again, or its time is "
        "over. Ask who invited you for a new one.",
        code=GONE,
    )
