"""Roles changed, people locked out and removed, and the last admin who stays."""

import pytest
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from tenants.models import Membership, Role, Tenant, User
from tenants.scope import Scope
from tenants.users.member_changes import remove_operator, remove_user, set_role, set_user_active
from tenants.users.members import get_user, list_users
from tenants.users.sessions import session_principal, start_session
from tenants.users.tokens import create_api_token, token_principal
from tests.cast import NOON, Cast, scope_of
from tests.unit.tenants.helpers import DAY


def join(session: Session, user: User, tenant: Tenant, role: Role = Role.MEMBER) -> Membership:
    made = Membership(user_id=user.id, tenant_id=tenant.id, role=role, created_at=NOON)
    session.add(made)
    session.flush()
    session.expire(session.get_one(User, user.id), ["memberships"])
    return made


def test_an_admin_changes_the_role_of_a_member(session: Session, cast: Cast) -> None:
    set_role(session, scope_of(cast.alice), cast.bob.id, Role.ADMIN)
    assert get_user(session, scope_of(cast.alice), cast.bob.id).role is Role.ADMIN


def test_nobody_changes_their_own_role(session: Session, cast: Cast) -> None:
    with pytest.raises(ConflictError, match="your own role"):
        set_role(session, scope_of(cast.alice), cast.alice.id, Role.ADMIN)


def test_nobody_is_made_an_operator_by_a_role(session: Session, cast: Cast) -> None:
    with pytest.raises(InvalidInputError) as caught:
        set_role(session, scope_of(cast.alice), cast.bob.id, Role.OPERATOR)
    assert list(caught.value.errors) == ["role"]


@pytest.mark.parametrize("act", ["role", "lock", "remove"])
def test_charlie_touches_nobody_of_acme(session: Session, cast: Cast, act: str) -> None:
    scope = scope_of(cast.charlie)
    with pytest.raises(NotFoundError):
        _do(session, scope, cast.bob.id, act)


@pytest.mark.parametrize("act", ["role", "lock", "remove"])
def test_a_member_touches_nobody(session: Session, cast: Cast, act: str) -> None:
    with pytest.raises(ForbiddenError):
        _do(session, scope_of(cast.bob), cast.alice.id, act)


@pytest.mark.parametrize("act", ["role", "lock", "remove"])
def test_the_last_admin_stays_even_to_the_operator(session: Session, cast: Cast, act: str) -> None:
    with pytest.raises(ConflictError, match="last admin of Acme"):
        _do(session, scope_of(cast.olivia), cast.alice.id, act, tenant_id=cast.acme.id)


@pytest.mark.parametrize("act", ["role", "lock", "remove"])
def test_one_of_two_admins_may_go(session: Session, cast: Cast, act: str) -> None:
    set_role(session, scope_of(cast.alice), cast.bob.id, Role.ADMIN)
    _do(session, Scope(cast.bob.id, Role.ADMIN, cast.acme.id), cast.alice.id, act)


@pytest.mark.parametrize("act", ["role", "lock", "remove"])
def test_a_deactivated_admin_does_not_count_as_another_admin(
    session: Session, cast: Cast, act: str
) -> None:
    set_role(session, scope_of(cast.alice), cast.bob.id, Role.ADMIN)
    set_user_active(session, scope_of(cast.alice), cast.bob.id, is_active=False)
    with pytest.raises(ConflictError, match="last admin"):
        _do(session, scope_of(cast.olivia), cast.alice.id, act, tenant_id=cast.acme.id)


def test_the_operator_does_not_deactivate_the_last_admin_of_another_tenant(
    session: Session, cast: Cast
) -> None:
    join(session, cast.charlie, cast.acme)
    with pytest.raises(ConflictError, match="last admin of Globex"):
        set_user_active(session, scope_of(cast.olivia), cast.charlie.id, is_active=False)


def test_a_removed_user_is_signed_out_and_their_tokens_are_revoked(
    session: Session, cast: Cast
) -> None:
    cookie = start_session(session, cast.bob, now=NOON, lifetime=DAY)
    token, secret = create_api_token(session, scope_of(cast.bob), name="ci", now=NOON)
    remove_user(session, scope_of(cast.alice), cast.bob.id, now=NOON)
    assert session_principal(session, cookie, now=NOON) is None
    assert token_principal(session, secret, now=NOON) is None
    assert token.revoked_at == NOON
    assert [member.id for member in list_users(session, scope_of(cast.alice)).items] == [
        cast.alice.id
    ]


def test_a_removed_user_keeps_their_other_tenants(session: Session, cast: Cast) -> None:
    join(session, cast.bob, cast.globex)
    there = Scope(cast.bob.id, Role.MEMBER, cast.globex.id)
    _, secret = create_api_token(session, there, name="ci", now=NOON)
    remove_user(session, scope_of(cast.alice), cast.bob.id, now=NOON)
    principal = token_principal(session, secret, now=NOON)
    assert principal is not None
    assert principal.scope.tenant_id == cast.globex.id


def test_the_last_operator_stays(session: Session, cast: Cast) -> None:
    second = session.get_one(User, cast.bob.id)
    second.is_operator = True
    session.flush()
    remove_operator(session, scope_of(cast.olivia), cast.bob.id, now=NOON)
    scope = Scope(cast.bob.id, Role.OPERATOR, None)
    with pytest.raises(ConflictError, match="last operator"):
        remove_operator(session, scope, cast.olivia.id, now=NOON)
    with pytest.raises(ConflictError, match="last operator"):
        set_user_active(session, scope, cast.olivia.id, is_active=False)


def test_a_former_operator_stays_what_they_are_in_tenants(session: Session, cast: Cast) -> None:
    session.get_one(User, cast.bob.id).is_operator = True
    session.flush()
    remove_operator(session, scope_of(cast.olivia), cast.bob.id, now=NOON)
    member = get_user(session, scope_of(cast.alice), cast.bob.id)
    assert (member.role, member.user.is_operator) == (Role.MEMBER, False)


def test_a_user_who_is_no_operator_is_not_removed_as_one(session: Session, cast: Cast) -> None:
    with pytest.raises(NotFoundError):
        remove_operator(session, scope_of(cast.olivia), cast.bob.id, now=NOON)


def test_an_admin_removes_no_operator(session: Session, cast: Cast) -> None:
    with pytest.raises(ForbiddenError):
        remove_operator(session, scope_of(cast.alice), cast.olivia.id, now=NOON)


def test_the_operator_reactivates_a_user_whom_the_admin_deactivated(
    session: Session, cast: Cast
) -> None:
    set_user_active(session, scope_of(cast.alice), cast.bob.id, is_active=False)
    set_user_active(
        session, scope_of(cast.olivia), cast.bob.id, is_active=True, tenant_id=cast.acme.id
    )
    assert get_user(session, scope_of(cast.alice), cast.bob.id).is_active


def _do(
    session: Session, scope: Scope, user_id: str, act: str, *, tenant_id: str | None = None
) -> None:
    if act == "role":
        set_role(session, scope, user_id, Role.VIEWER, tenant_id=tenant_id)
    elif act == "lock":
        set_user_active(session, scope, user_id, is_active=False, tenant_id=tenant_id)
    else:
        remove_user(session, scope, user_id, tenant_id=tenant_id, now=NOON)
