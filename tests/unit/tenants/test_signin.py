"""Signing in: passwords, browser sessions, API tokens."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import UnauthenticatedError
from tenants.models import LoginSession, Tenant, TenantState, User
from tenants.users.passwords import hash_password
from tenants.users.sessions import end_session, session_principal, start_session
from tenants.users.signin import find_user, refresh_signed_in_user, verify_credentials
from tenants.users.tokens import create_api_token, token_principal
from tests.cast import NOON, PASSWORD, Cast, scope_of
from tests.unit.tenants.helpers import DAY, authenticate


def test_the_right_password_signs_in_whatever_the_case_of_the_address(
    session: Session, cast: Cast
) -> None:
    assert authenticate(session, email=" Bob@ACME.example ", password=PASSWORD).id == cast.bob.id


def test_a_wrong_password_and_an_unknown_address_get_the_same_answer(
    session: Session, cast: Cast
) -> None:
    messages = set()
    for email in (cast.bob.email, "nobody@acme.example"):
        with pytest.raises(UnauthenticatedError) as caught:
            authenticate(session, email=email, password="a wrong password")
        messages.add(caught.value.message)
    assert len(messages) == 1


def test_a_locked_user_gets_the_reason_only_with_the_right_password(
    session: Session, cast: Cast
) -> None:
    session.get_one(User, cast.bob.id).is_active = False
    with pytest.raises(UnauthenticatedError, match="deactivated"):
        authenticate(session, email=cast.bob.email, password=PASSWORD)
    with pytest.raises(UnauthenticatedError, match="password is wrong"):
        authenticate(session, email=cast.bob.email, password="a wrong password")


def test_a_password_that_is_changed_while_it_is_checked_signs_nobody_in(
    session: Session, cast: Cast
) -> None:
    proved = verify_credentials(find_user(session, cast.bob.email), PASSWORD)
    session.expunge(proved)
    session.get_one(User, cast.bob.id).password_hash = hash_password("another good password")
    session.flush()
    with pytest.raises(UnauthenticatedError, match="just changed"):
        refresh_signed_in_user(session, proved)


def test_users_of_a_suspended_tenant_cannot_authenticate(session: Session, cast: Cast) -> None:
    cookie = start_session(session, cast.bob, now=NOON, lifetime=DAY)
    _, token = create_api_token(session, scope_of(cast.bob), name="ci", now=NOON)
    session.get_one(Tenant, cast.acme.id).state = TenantState.SUSPENDED
    with pytest.raises(UnauthenticatedError, match="suspended"):
        authenticate(session, email=cast.bob.email, password=PASSWORD)
    assert session_principal(session, cookie, now=NOON) is None
    assert token_principal(session, token, now=NOON) is None


def test_a_session_lasts_until_its_lifetime_is_over(session: Session, cast: Cast) -> None:
    secret = start_session(session, cast.bob, now=NOON, lifetime=DAY)
    last = session_principal(session, secret, now=NOON + DAY - timedelta(microseconds=1))
    assert last is not None
    assert last.user.id == cast.bob.id
    assert session_principal(session, secret, now=NOON + DAY) is None


def test_an_ended_session_is_over(session: Session, cast: Cast) -> None:
    secret = start_session(session, cast.bob, now=NOON, lifetime=DAY)
    end_session(session, secret)
    end_session(session, secret)
    assert session_principal(session, secret, now=NOON) is None


def test_signing_in_clears_the_users_expired_sessions(session: Session, cast: Cast) -> None:
    start_session(session, cast.bob, now=NOON, lifetime=DAY)
    start_session(session, cast.bob, now=NOON + 2 * DAY, lifetime=DAY)
    assert len(session.scalars(select(LoginSession)).all()) == 1


def test_secrets_are_stored_only_as_hashes(session: Session, cast: Cast) -> None:
    secret = start_session(session, cast.bob, now=NOON, lifetime=DAY)
    token, token_secret = create_api_token(session, scope_of(cast.bob), name="ci", now=NOON)
    stored = session.scalars(select(LoginSession)).one()
    assert secret.startswith("vds_")
    assert token_secret.startswith("vdt_")
    assert secret not in vars(stored).values()
    assert token_secret not in vars(token).values()
