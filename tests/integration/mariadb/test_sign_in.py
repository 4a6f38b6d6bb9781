"""Signing in on MariaDB: many at once, and texts that MariaDB takes for equal.

Its usual collation takes `a` for `A` and for `\u00e1`; identities and addresses do not.
"""

import re
from dataclasses import replace
from pathlib import Path

import pyotp
import pytest
from sqlalchemy import func, select

from core.clock import utc_now
from core.db import SessionFactory, transaction
from core.errors import UnauthenticatedError
from core.secretbox import SecretBox, new_key
from core.settings import ServerSettings
from portal.app import create_portal
from tenants.models import LoginSession, Membership, OIDCIdentity, Throttle, User
from tenants.users.oidc import GroupRoles, Identity, user_for_identity
from tenants.users.second_factor import begin_setup, check_code, confirm_setup, recovery_codes_left
from tenants.users.throttling import count_attempt, forgive_attempt
from tests.cast import NOON, PASSWORD, Cast, FrozenClock
from tests.fixtures.oidc_provider import CLIENT_ID, CLIENT_SECRET, oidc_provider
from tests.fixtures.racing import RACERS, race, race_numbered
from timeseries.store import Store

pytestmark = pytest.mark.needs_mariadb

ROUNDS = 3
CSRF = re.compile(r'name="csrf-token" content="([^"]+)"')


@pytest.fixture
def box() -> SecretBox:
    return SecretBox([new_key()])


def test_a_code_that_many_use_at_once_signs_one_in(
    sessions: SessionFactory, cast: Cast, box: SecretBox, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        totp = pyotp.TOTP(begin_setup(session, cast.bob.id, box=box).secret)
        confirm_setup(session, cast.bob.id, totp.at(NOON), box=box, now=NOON)
    now = clock.advance(300)

    def enter() -> bool:
        return is_taken(sessions, cast.bob.id, totp.at(now), box=box, clock=clock)

    assert sum(race([enter] * RACERS)) == 1


def test_a_recovery_code_that_many_use_at_once_signs_one_in(
    sessions: SessionFactory, cast: Cast, box: SecretBox, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        totp = pyotp.TOTP(begin_setup(session, cast.bob.id, box=box).secret)
        codes = confirm_setup(session, cast.bob.id, totp.at(NOON), box=box, now=NOON)

    def enter() -> bool:
        return is_taken(sessions, cast.bob.id, codes[3], box=box, clock=clock)

    assert sum(race([enter] * RACERS)) == 1
    with sessions() as session:
        assert recovery_codes_left(session, cast.bob.id) == len(codes) - 1


def is_taken(
    sessions: SessionFactory, user_id: str, code: str, *, box: SecretBox, clock: FrozenClock
) -> bool:
    try:
        with sessions.begin() as session:
            check_code(session, session.get_one(User, user_id), code, box=box, now=clock.now)
    except UnauthenticatedError:
        return False
    return True


def test_a_user_who_signs_in_from_the_provider_in_many_tabs_is_created_once(
    sessions: SessionFactory, cast: Cast, store: Store, tmp_path: Path
) -> None:
    assert cast
    with oidc_provider(tmp_path) as provider:
        provider.put_user(
            "dana-1", email="dana@acme.example", email_verified=True, groups=["gpu-users"]
        )
        settings = ServerSettings(
            data_dir=tmp_path,
            public_url="http://portal.example",
            oidc_issuer=provider.issuer,
            oidc_client_id=CLIENT_ID,
            oidc_client_secret=CLIENT_SECRET,
            oidc_roles="gpu-users=acme:member",
        )
        app = create_portal(settings, sessions=sessions, store=store, clock=FrozenClock(utc_now()))
        tabs = []
        for _ in range(RACERS):
            tab = app.test_client()
            back = provider.sign_in(tab.get("/login/oidc").headers["Location"], "dana-1")
            tabs.append((tab, back.removeprefix("http://portal.example")))

        def come_back() -> int:
            tab, path = tabs.pop()
            return tab.get(path).status_code

        assert race([come_back] * RACERS) == [302] * RACERS
    with sessions() as session:
        dana = User.email == "dana@acme.example"
        assert session.scalar(select(func.count()).select_from(User).where(dana)) == 1
        assert session.scalar(select(func.count()).select_from(OIDCIdentity)) == 1
        memberships = select(func.count()).select_from(Membership).join(User).where(dana)
        assert session.scalar(memberships) == 1


DANA = Identity(
    issuer="https://id.example",
    subject="dana-1",
    email="dana@acme.example",
    is_email_verified=True,
    name="Dana",
    groups=frozenset({"gpu-users"}),
)
ROLES, _ = GroupRoles.parse("gpu-users=acme:member")


def test_subjects_that_differ_in_case_are_two_users(sessions: SessionFactory, cast: Cast) -> None:
    assert cast
    other = replace(DANA, subject="DANA-1", email="eve@acme.example")
    with sessions.begin() as session:
        first = user_for_identity(session, DANA, ROLES, now=NOON)
        second = user_for_identity(session, other, ROLES, now=NOON)
        assert first.id != second.id


def test_an_address_that_is_almost_bobs_does_not_open_bobs_account(
    sessions: SessionFactory, cast: Cast
) -> None:
    assert cast
    almost = replace(DANA, email="b\u00f6b@acme.example")
    with pytest.raises(UnauthenticatedError, match="too similar"), sessions.begin() as session:
        user_for_identity(session, almost, ROLES, now=NOON)


def test_a_tenant_is_named_by_its_exact_short_name(sessions: SessionFactory, cast: Cast) -> None:
    assert cast
    roles, _ = GroupRoles.parse("gpu-users=ACME:admin")
    with (
        pytest.raises(UnauthenticatedError, match="none of your groups"),
        sessions.begin() as session,
    ):
        user_for_identity(session, DANA, roles, now=NOON)


def test_many_sign_in_at_once_from_one_address_and_none_is_turned_away(
    sessions: SessionFactory, cast: Cast, store: Store, tmp_path: Path
) -> None:
    settings = ServerSettings(data_dir=tmp_path, requests_per_second_per_address=0.0)
    app = create_portal(settings, sessions=sessions, store=store)
    people = [cast.alice, cast.bob, cast.charlie, cast.olivia]

    def sign_in(number: int) -> set[int]:
        answers = set()
        for _ in range(ROUNDS):
            browser = app.test_client()
            token = CSRF.search(browser.get("/login").text)
            assert token is not None
            email = people[number % len(people)].email
            form = {"csrf_token": token[1], "email": email, "password": PASSWORD}
            answers.add(browser.post("/login", data=form).status_code)
        return answers

    assert race_numbered(sign_in) == [{302}] * RACERS
    with sessions() as session:
        assert set(session.scalars(select(Throttle.failures))) == {0}
        begun = select(func.count()).select_from(LoginSession)
        assert session.scalar(begun) == RACERS * ROUNDS


def test_right_and_wrong_tries_at_once_are_counted_without_waiting_in_a_circle(
    sessions: SessionFactory,
) -> None:
    addresses = ["192.0.2.7", "192.0.2.8"]

    def guess(number: int) -> int:
        wrong = 0
        for turn in range(ROUNDS):
            account = f"{number}-{turn}@acme.example"
            for address in addresses:
                with transaction(sessions) as session:
                    tried = count_attempt(session, account=account, address=address, now=NOON)
                if turn % 2:
                    with transaction(sessions) as session:
                        forgive_attempt(session, tried)
                else:
                    wrong += 1
        return wrong

    wrong = sum(race_numbered(guess, racers=4))
    with sessions() as session:
        counted = select(func.sum(Throttle.failures)).group_by(Throttle.kind)
        assert session.scalars(counted).all() == [wrong, wrong]
