"""What several people do at the same moment, on both databases.

Every racer is a thread with a connection of its own; a barrier lets them go together.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.db import (
    SessionFactory,
    create_database_engine,
    create_session_factory,
    transaction,
)
from core.errors import VedetteError
from core.migrations import upgrade_database
from tenants.audit import Actor, acting
from tenants.models import LoginSession, Membership, Role, Tenant, TenantState, Throttle, User
from tenants.people.invitations import accept_as, accept_as_new, invite
from tenants.people.members import remove_user, set_role, set_user_active
from tenants.people.passwords import verify_password
from tenants.people.resets import create_reset, use_reset
from tenants.people.signin import session_visitor, start_session
from tenants.people.throttling import count_try
from tenants.scope import Scope
from tests.cast import NOON, Cast, make_cast, scope_of
from tests.integration.mariadb import mariadb_server
from tests.unit.tenants.helpers import DAY

pytestmark = pytest.mark.timeout(300)

T = TypeVar("T")
ROUNDS = 10
OLIVIA = Scope("olivia", Role.OPERATOR, None)
GUESSERS = 16
WAIT_SECONDS = 120


@pytest.fixture(
    params=["sqlite", pytest.param("mariadb", marks=[pytest.mark.needs_mariadb])], scope="module"
)
def factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SessionFactory]:
    folder = tmp_path_factory.mktemp("database")
    if request.param == "sqlite":
        yield from _factory(f"sqlite:///{folder / 'vedette.db'}")
        return
    with mariadb_server(folder) as url:
        yield from _factory(url)


def _factory(url: str) -> Iterator[SessionFactory]:
    engine = create_database_engine(url)
    upgrade_database(engine)
    actor = Actor(name="racer", via="test")
    yield acting(create_session_factory(engine), actor, clock=lambda: NOON)
    engine.dispose()


@pytest.fixture(scope="module")
def people(factory: SessionFactory) -> Cast:
    with transaction(factory) as session:
        return make_cast(session)


def race(factory: SessionFactory, racers: Sequence[Callable[[Session], T]]) -> list[T | str]:
    """Let each do its part in a transaction of its own; return answers, or codes of refusals."""
    start = threading.Barrier(len(racers), timeout=WAIT_SECONDS)

    def run(racer: Callable[[Session], T]) -> T | str:
        start.wait()
        try:
            with transaction(factory) as session:
                return racer(session)
        except VedetteError as error:
            return error.code

    with ThreadPoolExecutor(len(racers)) as pool:
        return [future.result(WAIT_SECONDS) for future in [pool.submit(run, one) for one in racers]]


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
def test_of_two_admins_who_unseat_each_other_one_stays(
    factory: SessionFactory, act: Callable[[Session, Scope, str], str]
) -> None:
    for number in range(ROUNDS):
        tenant_id, (ann, ben) = two_admins(factory, hash((act.__name__, number)) % 10**9)

        def unseat(by: str, whom: str, tenant: str = tenant_id) -> Callable[[Session], str]:
            return lambda session: act(session, Scope(by, Role.ADMIN, tenant), whom)

        answers = race(factory, [unseat(ann, ben), unseat(ben, ann)])

        assert sorted(answers) == ["done", "last_admin"]
        with factory() as session:
            admins = select(func.count()).where(
                Membership.tenant_id == tenant_id,
                Membership.role == Role.ADMIN,
                Membership.is_active,
            )
            assert session.scalar(admins) == 1


def test_an_admin_is_demoted_and_another_removed_at_once(factory: SessionFactory) -> None:
    for number in range(ROUNDS):
        tenant_id, (ann, ben) = two_admins(factory, 10**9 + number)

        def demote_ann(session: Session, tenant: str = tenant_id, user: str = ann) -> str:
            set_role(session, OLIVIA, user, Role.VIEWER, tenant_id=tenant)
            return "done"

        def remove_ben(session: Session, tenant: str = tenant_id, user: str = ben) -> str:
            remove_user(session, OLIVIA, user, tenant_id=tenant, now=NOON)
            return "done"

        assert sorted(race(factory, [demote_ann, remove_ben])) == ["done", "last_admin"]


def test_guesses_at_the_same_moment_are_all_counted(factory: SessionFactory) -> None:
    def guess(session: Session) -> str:
        count_try(session, account="bob@acme.example", address="192.0.2.7", now=NOON)
        return "tried"

    answers = race(factory, [guess] * GUESSERS)

    assert sorted(set(answers)) == ["too_many_tries", "tried"]
    assert answers.count("tried") == 5
    with factory() as session:
        assert session.scalars(select(Throttle.failures)).all() == [5, 5]


def test_many_accounts_tried_at_once_from_one_address_count_together(
    factory: SessionFactory,
) -> None:
    def guess(number: int) -> Callable[[Session], str]:
        def one(session: Session) -> str:
            count_try(session, account=f"{number}@x.example", address="198.51.100.1", now=NOON)
            return "tried"

        return one

    assert race(factory, [guess(number) for number in range(GUESSERS)]) == ["tried"] * GUESSERS
    with factory() as session:
        kept = select(Throttle.failures).where(Throttle.subject == "198.51.100.1")
        assert session.scalars(kept).one() == GUESSERS


def test_an_invitation_is_accepted_by_one_of_many(factory: SessionFactory, people: Cast) -> None:
    with transaction(factory) as session:
        _, secret = invite(
            session, scope_of(people.alice), tenant_id=people.acme.id, email="dora@example.com",
            role=Role.MEMBER, now=NOON,
        )  # fmt: skip

    def accept(session: Session) -> str:
        accept_as_new(session, secret, name="Dora", password="staple battery", now=NOON)
        return "joined"

    answers = race(factory, [accept] * 6)

    assert answers.count("joined") == 1
    assert set(answers) == {"joined", "invitation_gone"}
    with factory() as session:
        count = select(func.count()).where(User.email == "dora@example.com")
        assert session.scalar(count) == 1


def test_a_member_joins_once_by_many_clicks(factory: SessionFactory, people: Cast) -> None:
    with transaction(factory) as session:
        _, secret = invite(
            session, scope_of(people.charlie), tenant_id=people.globex.id,
            email=people.bob.email, role=Role.VIEWER, now=NOON,
        )  # fmt: skip

    def click(session: Session) -> str:
        accept_as(session, secret, people.bob.id, now=NOON)
        return "joined"

    answers = race(factory, [click] * 6)

    assert answers.count("joined") == 1
    assert set(answers) == {"joined", "invitation_gone"}


def test_a_link_sets_one_of_two_passwords(factory: SessionFactory, people: Cast) -> None:
    with transaction(factory) as session:
        made = create_reset(session, people.alice.email, now=NOON)
    assert made is not None
    passwords = [f"staple battery {number}" for number in range(4)]

    def use(password: str) -> Callable[[Session], str]:
        def one(session: Session) -> str:
            use_reset(session, made[1], password=password, now=NOON)
            return password

        return one

    answers = race(factory, [use(password) for password in passwords])

    (winner,) = set(answers) - {"password_link_gone"}
    with factory() as session:
        assert verify_password(session.get_one(User, people.alice.id).password_hash, str(winner))


def test_requests_of_one_browser_at_once_note_it_once_without_waiting_in_a_circle(
    factory: SessionFactory, people: Cast
) -> None:
    with transaction(factory) as session:
        secret = start_session(session, people.charlie, now=NOON, lifetime=DAY)

    def ask(session: Session) -> str:
        found = session_visitor(session, secret, now=NOON + DAY / 2, address="192.0.2.7")
        assert found is not None
        return found.user.email

    assert race(factory, [ask] * 12) == [people.charlie.email] * 12
    with factory() as session:
        seen = select(LoginSession.last_seen_at).where(LoginSession.user_id == people.charlie.id)
        assert session.scalars(seen).one() == NOON + DAY / 2
