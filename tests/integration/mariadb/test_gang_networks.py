"""A gang that is assigned while its network is swept, as MariaDB allows."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from core.db import SessionFactory
from jobqueue.gangs.members import RESERVED_FOR, note_assigned, sweep_networks
from jobqueue.gangs.models import GangNetworkRecord
from jobqueue.models import Attempt
from jobqueue.states import AttemptState
from tests.cast import NOON, Cast
from tests.unit.jobqueue.builders import add_appliance, dispatch, submit

pytestmark = pytest.mark.needs_mariadb
LONG_AFTER = NOON + RESERVED_FOR + timedelta(minutes=1)


@pytest.fixture
def member_id(sessions: SessionFactory, cast: Cast) -> str:
    """The first member of a gang that has ended, whose network was released an hour ago."""
    with sessions.begin() as session:
        network = {"address": "192.0.2.1", "can_make_networks": True}
        add_appliance(session, cast.acme, "dgx-01", network=network)
        first = submit(session, cast.alice, nodes=2, network="gang", cpus=1)
        dispatch(session, now=NOON)
        session.execute(update(Attempt).values(state=AttemptState.SUCCEEDED))
        assert sweep_networks(session, now=NOON) == 0
        return first.id


def assign(sessions: SessionFactory, cast: Cast, member_id: str) -> None:
    with sessions.begin() as session:
        session.execute(update(Attempt).values(state=AttemptState.STARTING))
        note_assigned(session, cast.acme.id, [member_id], now=LONG_AFTER)


def released(sessions: SessionFactory) -> list[bool]:
    with sessions() as session:
        times = session.scalars(select(GangNetworkRecord.released_at))
        return [at is not None for at in times]


def test_a_sweep_leaves_a_gang_alone_that_is_being_assigned(
    sessions: SessionFactory, cast: Cast, member_id: str
) -> None:
    with sessions.begin() as session:
        note_assigned(session, cast.acme.id, [member_id], now=LONG_AFTER)
        with sessions.begin() as sweeping:
            assert sweep_networks(sweeping, now=LONG_AFTER) == 0
        session.execute(update(Attempt).values(state=AttemptState.STARTING))
    assert released(sessions) == [False]


def test_a_gang_that_is_assigned_after_the_sweep_gets_a_new_network(
    sessions: SessionFactory, cast: Cast, member_id: str
) -> None:
    with ThreadPoolExecutor(1) as threads:
        with sessions.begin() as sweeping:
            assert sweep_networks(sweeping, now=LONG_AFTER) == 1
            assigned = threads.submit(assign, sessions, cast, member_id)
            with pytest.raises(TimeoutError):
                assigned.result(1)
        assigned.result(60)
    assert released(sessions) == [False]
