"""Many threads append to the same chains of a real MariaDB: no gap, no fork, no deadlock."""

import pytest
from sqlalchemy import func, select

from core.clock import utc_now
from core.db import SessionFactory
from tenants.auditing.chain import verify_all
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import acting, record
from tenants.models import PLATFORM_CHAIN, AuditEntry, Tenant, User
from tests.cast import Cast
from tests.fixtures.racing import RACERS, race_numbered

pytestmark = pytest.mark.needs_mariadb

ROUNDS = 8


def test_threads_that_write_to_both_chains_in_either_order_leave_whole_chains(
    sessions: SessionFactory, cast: Cast
) -> None:
    def work(worker: int) -> None:
        actor = Actor(name=f"worker {worker}", via="test")
        factory = acting(sessions, actor, clock=utc_now)
        for turn in range(ROUNDS):
            chains = [cast.acme.id, None, cast.globex.id]
            with factory.begin() as session:
                # Rows that others write too, in two orders that fit, and then the chains in any.
                session.get_one(User, cast.bob.id).name = f"Bob {worker}.{turn}"
                session.flush()
                for chain in chains if (worker + turn) % 2 else reversed(chains):
                    record(
                        session,
                        action="thing.made",
                        target_kind="thing",
                        target_id=None,
                        target_name=f"{worker}.{turn}",
                        tenant_id=chain,
                        now=utc_now(),
                    )

    race_numbered(work)

    with sessions() as session:
        verdicts = {result.head.chain: result for result in verify_all(session)}
        made = select(AuditEntry.chain, func.count()).where(AuditEntry.action == "thing.made")
        counted = {row[0]: row[1] for row in session.execute(made.group_by(AuditEntry.chain))}
    assert {result.problem for result in verdicts.values()} == {""}
    assert counted == dict.fromkeys([cast.acme.id, cast.globex.id, PLATFORM_CHAIN], RACERS * ROUNDS)
    assert verdicts[PLATFORM_CHAIN].head.number == RACERS * ROUNDS


def test_threads_that_begin_a_chain_at_once_make_one(sessions: SessionFactory, cast: Cast) -> None:
    chains = [f"chain-{number}" for number in range(4)]

    def work(worker: int) -> None:
        for chain in chains:
            with acting(sessions, Actor(name="a", via="test"), clock=utc_now).begin() as session:
                record(
                    session,
                    action="thing.made",
                    target_kind="thing",
                    target_id=None,
                    target_name=str(worker),
                    tenant_id=chain,
                    now=utc_now(),
                )

    del cast
    race_numbered(work)
    with sessions() as session:
        verdicts = {result.head.chain: result for result in verify_all(session)}
    assert {verdicts[chain].head.number for chain in chains} == {RACERS}
    assert {verdicts[chain].problem for chain in chains} == {""}


def test_four_bytes_long_letters_and_fractions_keep_their_hash(
    sessions: SessionFactory, cast: Cast
) -> None:
    with acting(sessions, Actor(name="ä \N{ROCKET}", via="test"), clock=utc_now).begin() as session:
        session.get_one(Tenant, cast.globex.id).name = "Größe \N{ROCKET} \u2028 'x'"
        record(
            session,
            action="thing.made",
            target_kind="thing",
            target_id=None,
            target_name="x",
            tenant_id=cast.globex.id,
            now=utc_now(),
            after={"ratio": 0.1, "big": 10**18, "z": None, "a": {"b": [1, 2.0, True]}},
        )
    with sessions() as session:
        assert {result.problem for result in verify_all(session)} == {""}
