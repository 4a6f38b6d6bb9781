"""One of two who remove each other at the same moment stays, on both databases."""

from collections.abc import Callable

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from tenants.models import Membership, OIDCIdentity, Role, Tenant, TenantState, User
from tenants.scope import Scope
from tenants.users.member_changes import remove_user, set_role, set_user_active
from tenants.users.oidc import GroupRoles, Identity, user_for_identity
from tests.cast import NOON
from tests.integration.races.contending import contend

pytestmark = pytest.mark.timeout(300)

ROUNDS = 3
ISSUER = "https://id.example"
OLIVIA = Scope("olivia", Role.OPERATOR, None)


def two_admins(factory: SessionFactory, number: int) -> tuple[str, list[str]]:
    """Make a tenant of two admins; return its id and theirs."""
    with transaction(factory) as session:
        tenant = Tenant(
            slug=f"t{number}", name=f"T{number}", state=TenantState.ACTIVE, created_at=NOON
        )
        admins = [
            User(email=f"{name}-{number}@t.example", name=name, created_at=NOON)
            for name in ("ann", "ben")
        ]
        for admin in admins:
            admin.memberships.append(Membership(tenant=tenant, role=Role.ADMIN, created_at=NOON))
        session.add_all([tenant, *admins])
        session.flush()
        return tenant.id, [admin.id for admin in admins]


def demote(session: Session, scope: Scope, user_id: str) -> str:
    set_role(session, scope, user_id, Role.MEMBER)
    return "done"


def lock_out(session: Session, scope: Scope, user_id: str) -> str:
    set_user_active(session, scope, user_id, is_active=False)
    return "done"


def remove(session: Session, scope: Scope, user_id: str) -> str:
    remove_user(session, scope, user_id, now=NOON)
    return "done"


@pytest.mark.parametrize("act", [demote, lock_out, remove])
def test_one_of_two_admins_who_remove_each_other_stays(
    factory: SessionFactory, act: Callable[[Session, Scope, str], str]
) -> None:
    for number in range(ROUNDS):
        tenant_id, (ann, ben) = two_admins(factory, hash((act.__name__, number)) % 10**9)

        def unseat(by: str, whom: str, tenant: str = tenant_id) -> Callable[[Session], str]:
            return lambda session: act(session, Scope(by, Role.ADMIN, tenant), whom)

        answers = contend(factory, [unseat(ann, ben), unseat(ben, ann)])

        assert sorted(answers) == ["done", "last_admin"]
        with factory() as session:
            admins = select(func.count()).where(
                Membership.tenant_id == tenant_id,
                Membership.role == Role.ADMIN,
                Membership.is_active,
            )
            assert session.scalar(admins) == 1


def two_operators(factory: SessionFactory, name: str) -> list[str]:
    """Make two operators, the only ones who may sign in; return their ids."""
    with transaction(factory) as session:
        session.execute(update(User).where(User.is_operator).values(is_active=False))
        operators = [
            User(
                email=f"{operator}-{name}@v.example",
                name=operator,
                is_operator=True,
                created_at=NOON,
            )
            for operator in ("olga", "otto")
        ]
        session.add_all(operators)
        session.flush()
        return [operator.id for operator in operators]


@pytest.mark.parametrize("act", [lock_out, remove])
def test_one_of_two_operators_who_remove_each_other_stays(
    factory: SessionFactory, act: Callable[[Session, Scope, str], str]
) -> None:
    for number in range(ROUNDS):
        olga, otto = two_operators(factory, f"{act.__name__}-{number}")

        def unseat(by: str, whom: str) -> Callable[[Session], str]:
            return lambda session: act(session, Scope(by, Role.OPERATOR, None), whom)

        assert sorted(contend(factory, [unseat(olga, otto), unseat(otto, olga)])) == [
            "done",
            "last_operator",
        ]
        with factory() as session:
            active_operators = select(func.count()).where(User.is_operator, User.is_active)
            assert session.scalar(active_operators) == 1


def test_an_admin_is_demoted_and_another_removed_at_once(factory: SessionFactory) -> None:
    for number in range(ROUNDS):
        tenant_id, (ann, ben) = two_admins(factory, 10**9 + number)

        def demote_ann(session: Session, tenant: str = tenant_id, user: str = ann) -> str:
            set_role(session, OLIVIA, user, Role.VIEWER, tenant_id=tenant)
            return "done"

        def remove_ben(session: Session, tenant: str = tenant_id, user: str = ben) -> str:
            remove_user(session, OLIVIA, user, tenant_id=tenant, now=NOON)
            return "done"

        assert sorted(contend(factory, [demote_ann, remove_ben])) == ["done", "last_admin"]


def test_groups_that_take_both_admins_at_once_leave_one(factory: SessionFactory) -> None:
    for number in range(ROUNDS):
        tenant_id, admins = two_admins(factory, 2 * 10**9 + number)
        with transaction(factory) as session:
            for ident in admins:
                [held] = session.get_one(User, ident).memberships
                identity_row = OIDCIdentity(
                    user_id=ident, issuer=ISSUER, subject=ident, granted=[held.id], created_at=NOON
                )
                session.add(identity_row)

        def sign_in(ident: str) -> Callable[[Session], str]:
            def attempt_sign_in(session: Session) -> str:
                identity = Identity(
                    issuer=ISSUER, subject=ident, email="", is_email_verified=False, name=""
                )
                user = user_for_identity(session, identity, GroupRoles(), now=NOON)
                return "kept" if user.memberships else "taken"

            return attempt_sign_in

        answers = contend(factory, [sign_in(ident) for ident in admins])

        assert sorted(answers) == ["kept", "taken"]
        with factory() as session:
            roles = select(Membership.role).where(Membership.tenant_id == tenant_id)
            assert session.scalars(roles).all() == [Role.ADMIN]
