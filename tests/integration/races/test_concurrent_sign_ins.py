"""Guesses at the same moment are all counted, and a link is good once: on both databases."""

from collections.abc import Callable

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from tenants.models import Role, Throttle, User
from tenants.users.invitations import accept_as, accept_as_new, invite
from tenants.users.passwords import verify_password
from tenants.users.resets import create_reset, use_reset
from tenants.users.throttling import count_attempt
from tests.cast import NOON, Cast, scope_of
from tests.integration.races.contending import contend

pytestmark = pytest.mark.timeout(300)

GUESSERS = 16


def test_guesses_at_the_same_moment_are_all_counted(factory: SessionFactory) -> None:
    def guess(session: Session) -> str:
        count_attempt(session, account="bob@acme.example", address="192.0.2.7", now=NOON)
        return "tried"

    answers = contend(factory, [guess] * GUESSERS)

    assert sorted(set(answers)) == ["too_many_attempts", "tried"]
    assert answers.count("tried") == 5
    with factory() as session:
        assert session.scalars(select(Throttle.failures)).all() == [5, 5]


def test_many_accounts_tried_at_once_from_one_address_count_together(
    factory: SessionFactory,
) -> None:
    def guess(number: int) -> Callable[[Session], str]:
        def attempt(session: Session) -> str:
            count_attempt(session, account=f"{number}@x.example", address="198.51.100.1", now=NOON)
            return "tried"

        return attempt

    assert contend(factory, [guess(number) for number in range(GUESSERS)]) == ["tried"] * GUESSERS
    with factory() as session:
        failures = select(Throttle.failures).where(Throttle.subject == "198.51.100.1")
        assert session.scalars(failures).one() == GUESSERS


def test_an_invitation_is_accepted_by_one_of_many(factory: SessionFactory, people: Cast) -> None:
    with transaction(factory) as session:
        _, secret = invite(
            session,
            scope_of(people.alice),
            tenant_id=people.acme.id,
            email="dora@example.com",
            role=Role.MEMBER,
            now=NOON,
        )

    def accept(session: Session) -> str:
        accept_as_new(session, secret, name="Dora", password="staple battery", now=NOON)
        return "joined"

    answers = contend(factory, [accept] * 6)

    assert answers.count("joined") == 1
    assert set(answers) == {"joined", "invitation_gone"}
    with factory() as session:
        count = select(func.count()).where(User.email == "dora@example.com")
        assert session.scalar(count) == 1


def test_a_member_joins_once_by_many_clicks(factory: SessionFactory, people: Cast) -> None:
    with transaction(factory) as session:
        _, secret = invite(
            session,
            scope_of(people.charlie),
            tenant_id=people.globex.id,
            email=people.bob.email,
            role=Role.VIEWER,
            now=NOON,
        )

    def click(session: Session) -> str:
        accept_as(session, secret, people.bob.id, now=NOON)
        return "joined"

    answers = contend(factory, [click] * 6)

    assert answers.count("joined") == 1
    assert set(answers) == {"joined", "invitation_gone"}


def test_a_link_sets_one_of_two_passwords(factory: SessionFactory, people: Cast) -> None:
    with transaction(factory) as session:
        made = create_reset(session, people.alice.email, now=NOON)
    assert made is not None
    passwords = [f"staple battery {number}" for number in range(4)]

    def use(password: str) -> Callable[[Session], str]:
        def attempt(session: Session) -> str:
            use_reset(session, made[1], password=password, now=NOON)
            return password

        return attempt

    answers = contend(factory, [use(password) for password in passwords])

    (winner,) = set(answers) - {"password_link_gone"}
    with factory() as session:
        assert verify_password(session.get_one(User, people.alice.id).password_hash, str(winner))
