"""Invitations: a link that makes a person a member of a tenant, or an operator of the platform.

Whether the invited address has an account already is told to nobody but who holds the link: the
one who invites sees the same either way. An invitation is *open* until it is accepted or revoked;
its link works until it expires, and sending it again makes a new link and voids the old one.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, select, update
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError
from core.ids import hash_secret, new_secret
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from core.sorting import Columns, sorted_by
from tenants.accounts import get_tenant
from tenants.checks import normalise_email, refuse, role_faults
from tenants.models import Invitation, Role
from tenants.people.signin import find_user
from tenants.permissions import Permission
from tenants.scope import Scope

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
    session: Session,
    scope: Scope,
    *,
    tenant_id: str | None,
    email: str,
    role: Role,
    now: datetime,
) -> tuple[Invitation, str]:
    """Invite a person; return the invitation with the secret of its link.

    Args:
        session: the database session.
        scope: who invites: an admin to the own tenant, the operator to any and to the operators.
        tenant_id: the tenant; None for an operator.
        email: the person's address.
        role: what they will be.
        now: the present instant.

    Raises:
        InvalidInputError: names every faulty field.
        ForbiddenError: an admin invites an operator.
        NotFoundError: there is no such tenant.
        ConflictError: the person is a member already, or invited already.
    """
    scope.require(Permission.MANAGE_USERS)
    if role is Role.OPERATOR and not scope.allows(Permission.OPERATE):
        raise ForbiddenError("Only an operator may invite an operator. Choose another role.")
    email, faults = normalise_email(email)
    refuse({"email": faults, "role": role_faults(role, tenant_id)}, "Nobody was invited")
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
    session: Session,
    scope: Scope,
    *,
    tenant_id: str | None = None,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[Invitation]:
    """Return the open invitations that the scope manages, the newest first, run out or not."""
    scope.require(Permission.MANAGE_USERS)
    if tenant_id is not None:
        get_tenant(session, scope, tenant_id)
    statement = scope.select(select(Invitation).where(is_open()), Invitation)
    if tenant_id is not None:
        statement = statement.where(Invitation.tenant_id == tenant_id)
    statement = statement.order_by(Invitation.id.desc())
    return paginate(
        session,
        sorted_by(statement, sort, INVITATION_SORTS, last=Invitation.id),
        number=page,
        size=page_size,
    )


def get_invitation(session: Session, scope: Scope, invitation_id: str) -> Invitation:
    """Return an invitation, open or not."""
    scope.require(Permission.MANAGE_USERS)
    return scope.get(session, Invitation, invitation_id, kind="invitation")


def renew_invitation(
    session: Session, scope: Scope, invitation_id: str, *, now: datetime
) -> tuple[Invitation, str]:
    """Make a new link for an open invitation; the old one works no more.

    Raises:
        ConflictError: it was accepted or revoked.
    """
    invitation = get_invitation(session, scope, invitation_id)
    secret = new_secret(INVITATION_PREFIX)
    renewed = {"secret_hash": hash_secret(secret), "expires_at": now + INVITATION_LIFETIME}
    change_open(session, invitation, **renewed)
    return invitation, secret


def revoke_invitation(
    session: Session, scope: Scope, invitation_id: str, *, now: datetime
) -> Invitation:
    """Take an open invitation back; doing it twice is fine.

    Raises:
        ConflictError: it was accepted: the person is a member now.
    """
    invitation = get_invitation(session, scope, invitation_id)
    if invitation.revoked_at is None:
        change_open(session, invitation, revoked_at=now)
    return invitation


def _refuse_twice(session: Session, email: str, tenant_id: str | None) -> None:
    """Refuse who is a member of this very tenant, or is invited to it: no more is told."""
    user = find_user(session, email)
    is_here = user is not None and (
        user.is_operator
        if tenant_id is None
        else any(one.tenant_id == tenant_id for one in user.memberships)
    )
    if is_here:
        fault = f"{email} is here already. Look for the address in the list."
        raise ConflictError(fault, code="already_member", errors={"email": [fault]})
    same_place = Invitation.tenant_id == tenant_id  # NULL becomes IS NULL
    statement = select(Invitation.id).where(is_open(), same_place, Invitation.email == email)
    if session.scalars(statement.limit(1)).first() is not None:
        fault = f"{email} is invited already. Send that invitation again instead."
        raise ConflictError(fault, code="already_invited", errors={"email": [fault]})


def change_open(session: Session, invitation: Invitation, **values: Any) -> None:  # noqa: ANN401 - columns
    """Change an invitation unless somebody else has just closed it.

    Raises:
        ConflictError: it is not open any more.
    """
    held: Any = session.execute(
        update(Invitation)
        .where(
            Invitation.id == invitation.id,
            Invitation.secret_hash == invitation.secret_hash,
            is_open(),
        )
        .values(email=Invitation.email)
        .execution_options(synchronize_session=False)
    )
    if not held.rowcount:
        raise ConflictError(
            "This invitation is not open any more: it was accepted, revoked or sent again.",
            code=GONE,
        )
    # The row is this transaction's now; the audit log sees what is changed on the object.
    for name, value in values.items():
        setattr(invitation, name, value)
    session.flush()


def is_open() -> ColumnElement[bool]:
    """Return the condition that an invitation was neither accepted nor revoked."""
    return and_(Invitation.accepted_at.is_(None), Invitation.revoked_at.is_(None))
