"""No tenant loses its last admin, and the platform not its last operator.

Who is about to take one away holds a row first, and looks who else there is only then: of two who
demote each other at once, the second waits for the first, and is refused.
"""

from collections.abc import Iterable

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.errors import ConflictError
from tenants.models import Membership, Role, Tenant, User

LAST_ADMIN = "last_admin"
LAST_OPERATOR = "last_operator"


def keep_an_admin(session: Session, user: User, tenant_ids: Iterable[str], *, act: str) -> None:
    """Refuse an act that would leave a tenant without an admin who may sign in.

    Others who ask the same for these tenants wait until this transaction ends.

    Args:
        session: the database session.
        user: who is about to be an admin no longer.
        tenant_ids: the tenants that it concerns.
        act: what is about to be done to them, to follow "you can't".

    Raises:
        ConflictError: they are the last one.
    """
    # A write that changes nothing holds the row on every database; SQLite can't hold by reading.
    for tenant_id in sorted(set(tenant_ids)):
        held = update(Tenant).where(Tenant.id == tenant_id).values(slug=Tenant.slug)
        session.execute(held.execution_options(synchronize_session=False))
        if _is_last(_admins(session, tenant_id), user):
            name = session.scalar(select(Tenant.name).where(Tenant.id == tenant_id))
            raise ConflictError(
                f"{user.name} is the last admin of {name}, and you can't {act} them. "
                "Make somebody else an admin first.",
                code=LAST_ADMIN,
            )


def keep_an_operator(session: Session, user: User, *, act: str) -> None:
    """Refuse an act that would leave the platform without an operator who may sign in.

    Raises:
        ConflictError: they are the last one.
    """
    held = update(User).where(User.is_operator).values(is_operator=User.is_operator)
    session.execute(held.execution_options(synchronize_session=False))
    found = session.scalars(select(User.id).where(User.is_operator, User.is_active))
    if _is_last(list(found), user):
        raise ConflictError(
            f"{user.name} is the last operator, and you can't {act} them. Invite another first.",
            code=LAST_OPERATOR,
        )


def _admins(session: Session, tenant_id: str) -> list[str]:
    found = select(Membership.user_id).join(User, User.id == Membership.user_id).where(
        Membership.tenant_id == tenant_id,
        Membership.role == Role.ADMIN,
        Membership.is_active,
        User.is_active,
    )  # fmt: skip
    return list(session.scalars(found))


def _is_last(those: list[str], user: User) -> bool:
    return those == [user.id]
