"""A person's browsers: listed, signed out, and switched between tenants."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import ForbiddenError, NotFoundError
from tenants.models import LoginSession, Membership, Role, Tenant, TenantState, User
from tenants.users.sessions import (
    available_tenants,
    end_all_sessions,
    end_one_session,
    list_sessions,
    session_principal,
    start_session,
    switch_tenant,
)
from tests.cast import NOON, Cast, scope_of
from tests.unit.tenants.helpers import DAY

MINUTE = timedelta(minutes=1)


def sign_in(session: Session, user: User, **options: str) -> tuple[str, LoginSession]:
    secret = start_session(session, user, now=NOON, lifetime=DAY, **options)
    newest = select(LoginSession).order_by(LoginSession.id.desc()).limit(1)
    return secret, session.scalars(newest).one()


@pytest.fixture
def bob_of_both(session: Session, cast: Cast) -> User:
    bob = session.get_one(User, cast.bob.id)
    joined = Membership(
        user_id=bob.id, tenant_id=cast.globex.id, role=Role.VIEWER, created_at=NOON + MINUTE
    )
    session.add(joined)
    session.flush()
    session.refresh(bob, ["memberships"])
    return bob


def test_browsers_are_listed_with_where_and_what_they_are(session: Session, cast: Cast) -> None:
    sign_in(session, cast.bob, address="192.0.2.7", user_agent="Firefox")
    sign_in(session, cast.alice)
    (login,) = list_sessions(session, cast.bob.id, now=NOON).items
    assert (login.address, login.user_agent, login.last_seen_at) == ("192.0.2.7", "Firefox", NOON)


def test_what_expired_is_not_listed(session: Session, cast: Cast) -> None:
    sign_in(session, cast.bob)
    assert list_sessions(session, cast.bob.id, now=NOON + DAY).total == 0


def test_a_browsers_name_is_cut_to_its_column(session: Session, cast: Cast) -> None:
    _, made = sign_in(session, cast.bob, user_agent="x" * 1000)
    assert len(made.user_agent) == 300


def test_one_browser_is_signed_out(session: Session, cast: Cast) -> None:
    here, _ = sign_in(session, cast.bob)
    there, lost = sign_in(session, cast.bob)
    end_one_session(session, scope_of(cast.bob), lost.id)
    assert session_principal(session, here, now=NOON) is not None
    assert session_principal(session, there, now=NOON) is None


def test_nobody_signs_another_user_out(session: Session, cast: Cast) -> None:
    _, made = sign_in(session, cast.bob)
    for other in (cast.alice, cast.charlie, cast.olivia):
        with pytest.raises(NotFoundError):
            end_one_session(session, scope_of(other), made.id)


def test_a_token_of_few_scopes_signs_nobody_out(session: Session, cast: Cast) -> None:
    _, made = sign_in(session, cast.bob)
    with pytest.raises(ForbiddenError, match="limited to read"):
        end_one_session(session, scope_of(cast.bob).limited(["read"]), made.id)


def test_all_browsers_are_signed_out(session: Session, cast: Cast) -> None:
    secrets = [sign_in(session, user)[0] for user in (cast.bob, cast.bob, cast.alice)]
    end_all_sessions(session, cast.bob.id)
    visitors = [session_principal(session, secret, now=NOON) for secret in secrets]
    assert [principal is not None for principal in visitors] == [False, False, True]


def test_a_browser_switches_to_another_tenant(
    session: Session, cast: Cast, bob_of_both: User
) -> None:
    secret, made = sign_in(session, bob_of_both)
    switch_tenant(session, made.id, cast.globex.id, now=NOON)
    principal = session_principal(session, secret, now=NOON)
    assert principal is not None
    assert (principal.scope.tenant_id, principal.scope.role) == (cast.globex.id, Role.VIEWER)


def test_a_browser_cannot_switch_to_a_tenant_of_other_users(session: Session, cast: Cast) -> None:
    _, made = sign_in(session, cast.bob)
    for tenant_id in (cast.globex.id, "missing", None):
        with pytest.raises(NotFoundError):
            switch_tenant(session, made.id, tenant_id, now=NOON)


def test_a_browser_cannot_switch_to_a_suspended_tenant(
    session: Session, cast: Cast, bob_of_both: User
) -> None:
    _, made = sign_in(session, bob_of_both)
    session.get_one(Tenant, cast.globex.id).state = TenantState.SUSPENDED
    assert [tenant.id for tenant in available_tenants(bob_of_both)] == [cast.acme.id]
    with pytest.raises(NotFoundError):
        switch_tenant(session, made.id, cast.globex.id, now=NOON)


def test_an_operator_who_is_a_member_switches_between_both_views(
    session: Session, cast: Cast
) -> None:
    bob = session.get_one(User, cast.bob.id)
    bob.is_operator = True
    secret, made = sign_in(session, bob)
    roles = []
    for tenant_id in (None, cast.acme.id, None):
        switch_tenant(session, made.id, tenant_id, now=NOON)
        principal = session_principal(session, secret, now=NOON)
        assert principal is not None
        roles.append(principal.scope.role)
    assert roles == [Role.OPERATOR, Role.MEMBER, Role.OPERATOR]
