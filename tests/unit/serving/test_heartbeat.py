"""Processes report themselves, and operators alone see them."""

import pytest

from core.db import SessionFactory, transaction
from core.errors import ForbiddenError
from core.leases import SCHEDULER_LEASE, Lease, process_name
from serving.heartbeat import Heartbeat
from tenants.lifecycle.server_processes import (
    FORGOTTEN_AFTER,
    SILENT_AFTER,
    ListedProcess,
    list_processes,
    note_process,
)
from tenants.models import ServerProcess
from tests.cast import Cast, FrozenClock, scope_of

URL = "http://10.0.0.1:8000"


@pytest.fixture
def heartbeat(sessions: SessionFactory, clock: FrozenClock) -> Heartbeat:
    return Heartbeat(sessions, {"portal", "access"}, url=URL, clock=clock)


@pytest.fixture
def processes(sessions: SessionFactory, clock: FrozenClock, cast: Cast) -> "Processes":
    return Processes(sessions, clock, cast)


class Processes:
    """The list as an operator gets it."""

    def __init__(self, sessions: SessionFactory, clock: FrozenClock, cast: Cast) -> None:
        self.sessions, self.clock, self.cast = sessions, clock, cast

    def all(self) -> list[ListedProcess]:
        with self.sessions() as session:
            scope = scope_of(self.cast.olivia)
            return list(list_processes(session, scope, now=self.clock.now).items)


def test_a_process_is_listed_until_it_ends(heartbeat: Heartbeat, processes: Processes) -> None:
    with heartbeat.beating():
        (listed,) = processes.all()
        assert (listed.process.holder, listed.process.url) == (process_name(), URL)
        assert listed.process.parts == "access portal"
        assert listed.is_responding
        assert listed.process.memory_bytes > 2**20
    assert processes.all() == []


def test_a_process_that_was_killed_is_silent_and_forgotten_later(
    heartbeat: Heartbeat, processes: Processes, clock: FrozenClock
) -> None:
    killed = ServerProcess(
        holder="other:1", url=URL, version="1", started_at=clock.now, seen_at=clock.now
    )
    with transaction(processes.sessions) as session:
        note_process(session, killed)
    clock.advance(SILENT_AFTER.total_seconds())
    assert [listed.is_responding for listed in processes.all()] == [False]
    clock.advance(FORGOTTEN_AFTER.total_seconds())
    heartbeat.beat()
    assert [listed.process.holder for listed in processes.all()] == [process_name()]


def test_the_holder_of_the_lease_is_the_scheduler_until_it_expires(
    heartbeat: Heartbeat, processes: Processes, clock: FrozenClock
) -> None:
    heartbeat.beat()
    assert not processes.all()[0].is_scheduler
    with transaction(processes.sessions) as session:
        expires_at = clock.advance(15)
        session.add(Lease(name=SCHEDULER_LEASE, holder=process_name(), expires_at=expires_at))
    clock.advance(-1)
    assert processes.all()[0].is_scheduler
    clock.advance(1)
    assert not processes.all()[0].is_scheduler


def test_users_do_not_see_the_processes(processes: Processes, cast: Cast) -> None:
    with processes.sessions() as session, pytest.raises(ForbiddenError):
        list_processes(session, scope_of(cast.alice), now=processes.clock.now)
