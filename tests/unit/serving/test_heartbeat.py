"""Processes report themselves, and operators alone see them."""

from collections.abc import Callable

import pytest
from sqlalchemy import select

from core.broker import Broker, BrokerState
from core.db import SessionFactory, changes_of, transaction
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
from tenants.models import ServerProcess, TunnelHolder
from tests.cast import NOON, Cast, FrozenClock, make_appliance, scope_of

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


def test_the_tunnels_of_a_silent_process_are_released(
    heartbeat: Heartbeat, processes: Processes, clock: FrozenClock, cast: Cast
) -> None:
    def held() -> list[str]:
        with processes.sessions() as session:
            return list(session.scalars(select(TunnelHolder.holder_url)))

    killed = ServerProcess(
        holder="other:1", url="http://other", version="1", started_at=clock.now, seen_at=clock.now
    )
    with transaction(processes.sessions) as session:
        note_process(session, killed)
        appliance = make_appliance(session, cast.acme, "gpu-01")
        session.add(TunnelHolder(appliance_id=appliance.id, holder_url="http://other"))
    heartbeat.beat()
    clock.advance(39)
    heartbeat.beat()
    assert held() == ["http://other"]
    # Nobody could write for a minute: who is silent shows at the next beat.
    clock.advance(60)
    heartbeat.beat()
    assert held() == ["http://other"]
    clock.advance(10)
    heartbeat.beat()
    assert held() == []


def test_the_tunnels_of_a_process_that_was_started_again_stay(
    heartbeat: Heartbeat, processes: Processes, clock: FrozenClock, cast: Cast
) -> None:
    heartbeat.beat()
    clock.advance(39)
    killed = ServerProcess(
        holder="before:1", url=URL, version="1", started_at=clock.now, seen_at=NOON
    )
    with transaction(processes.sessions) as session:
        note_process(session, killed)
        appliance = make_appliance(session, cast.acme, "gpu-01")
        session.add(TunnelHolder(appliance_id=appliance.id, holder_url=URL))
    for _ in range(2):
        clock.advance(10)
        heartbeat.beat()
    with processes.sessions() as session:
        assert session.scalars(select(TunnelHolder.holder_url)).all() == [URL]


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


class FakeBroker(Broker):
    """Is in the state that a test gives it."""

    def __init__(self) -> None:
        self.now = BrokerState.CONNECTED
        self.listener: Callable[[BrokerState], None] = lambda _state: None

    @property
    def state(self) -> BrokerState:
        return self.now

    def watch(self, listener: Callable[[BrokerState], None]) -> None:
        self.listener = listener
        listener(self.now)

    def become(self, state: BrokerState) -> None:
        self.now = state
        self.listener(state)


def test_a_process_writes_since_when_the_broker_is_away(
    processes: Processes, clock: FrozenClock
) -> None:
    broker = FakeBroker()
    heartbeat = Heartbeat(processes.sessions, {"portal"}, url=URL, broker=broker, clock=clock)
    clock.advance(5)
    broker.become(BrokerState.AWAY)
    lost_at = clock.now
    clock.advance(5)
    heartbeat.beat()
    [listed] = processes.all()
    assert (listed.process.broker, listed.process.broker_since) == ("away", lost_at)


@pytest.mark.parametrize(
    ("others", "is_complete"),
    [([], True), (["connected"], True), (["connected", "away"], False), (["none"], False)],
)
def test_changes_are_polled_while_another_process_can_t_send_its_own(
    processes: Processes, clock: FrozenClock, others: list[str], *, is_complete: bool
) -> None:
    for number, state in enumerate(others):
        note(processes.sessions, clock, f"other:{number}", state)
    heartbeat = Heartbeat(processes.sessions, {"portal"}, url=URL, broker=FakeBroker(), clock=clock)
    heartbeat.beat()
    assert changes_of(processes.sessions).is_complete is is_complete


def test_a_process_that_ended_without_its_broker_is_not_waited_for(
    processes: Processes, clock: FrozenClock
) -> None:
    note(processes.sessions, clock, "other:1", "away")
    heartbeat = Heartbeat(processes.sessions, {"portal"}, url=URL, broker=FakeBroker(), clock=clock)
    heartbeat.beat()
    assert not changes_of(processes.sessions).is_complete
    clock.advance(SILENT_AFTER.total_seconds())
    heartbeat.beat()
    assert changes_of(processes.sessions).is_complete


def test_changes_are_polled_while_the_own_broker_is_away(
    processes: Processes, clock: FrozenClock
) -> None:
    broker = FakeBroker()
    heartbeat = Heartbeat(processes.sessions, {"portal"}, url=URL, broker=broker, clock=clock)
    heartbeat.beat()
    broker.become(BrokerState.AWAY)
    heartbeat.beat()
    assert not changes_of(processes.sessions).is_complete


def note(sessions: SessionFactory, clock: FrozenClock, holder: str, broker: str) -> None:
    with transaction(sessions) as session:
        process = ServerProcess(holder=holder, url=URL, version="1", broker=broker)
        process.started_at = process.seen_at = clock.now
        note_process(session, process)
