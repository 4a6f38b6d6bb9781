"""Uses of credentials are noted without a write, and stored later."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine

from core.db import SessionFactory
from core.errors import DatabaseUnavailableError
from tenants.models import APIToken, LoginSession, User
from tenants.principals import Principal, Via, principal_of
from tenants.users.sessions import session_principal, start_session
from tenants.users.sightings import Sightings
from tenants.users.tokens import create_api_token
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.writers import written_by_another


@pytest.fixture
def token(sessions: SessionFactory, cast: Cast) -> APIToken:
    with sessions.begin() as session:
        return create_api_token(session, scope_of(cast.bob), name="ci", now=NOON)[0]


def user_of(token: APIToken, user: User) -> Principal:
    principal = principal_of(user, via=Via.TOKEN, credential_id=token.id)
    assert principal is not None
    return principal


def test_the_use_of_a_token_is_stored_once_a_minute(
    sessions: SessionFactory, cast: Cast, token: APIToken
) -> None:
    sightings, bob, stored = Sightings(sessions), user_of(token, cast.bob), []
    for seconds in (0, 59, 60):
        address = f"192.0.2.{seconds}"
        sightings.note(bob, at=NOON + timedelta(seconds=seconds), address=address)
        sightings.write()
        with sessions() as session:
            row = session.get_one(APIToken, token.id)
            stored.append((row.last_used_at, row.last_used_address))
    assert stored == [
        (NOON, "192.0.2.0"),
        (NOON, "192.0.2.0"),
        (NOON + timedelta(seconds=60), "192.0.2.60"),
    ]


def test_a_browser_is_stored_with_its_address_and_zone(
    sessions: SessionFactory, cast: Cast
) -> None:
    day = timedelta(days=1)
    with sessions.begin() as session:
        secret = start_session(session, cast.bob, now=NOON, lifetime=day, address="192.0.2.7")
        bob = session_principal(session, secret, now=NOON)
    assert bob is not None
    sightings, later_at = Sightings(sessions), NOON + timedelta(minutes=5)
    sightings.note(bob, at=later_at, address="198.51.100.9", browser_zone="Asia/Kolkata")
    sightings.write()
    with sessions() as session:
        row = session.get_one(LoginSession, bob.credential_id)
        assert (row.last_seen_at, row.address) == (later_at, "198.51.100.9")
        assert row.user.browser_time_zone == "Asia/Kolkata"


def test_what_a_busy_database_refuses_is_stored_later(
    engine: Engine, sessions: SessionFactory, cast: Cast, token: APIToken
) -> None:
    sightings = Sightings(sessions)
    sightings.note(user_of(token, cast.bob), at=NOON, address="192.0.2.1")
    with written_by_another(engine), pytest.raises(DatabaseUnavailableError):
        sightings.write()
    sightings.write()
    with sessions() as session:
        assert session.get_one(APIToken, token.id).last_used_at == NOON


def test_what_is_noted_is_written_when_the_server_ends(
    sessions: SessionFactory, cast: Cast, token: APIToken
) -> None:
    sightings = Sightings(sessions)
    with sightings.written_in_background():
        sightings.note(user_of(token, cast.bob), at=NOON, address="192.0.2.1")
    with sessions() as session:
        assert session.get_one(APIToken, token.id).last_used_at == NOON
