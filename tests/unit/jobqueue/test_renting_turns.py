"""Providers and customers whose decisions about the same appliance meet."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import SessionFactory
from jobqueue.dispatch import dispatcher as dispatching
from jobqueue.dispatch.dispatcher import Dispatcher
from jobqueue.models import Attempt
from jobqueue.placement.decisions import Action
from jobqueue.states import AttemptState
from protocol.attempts import ObservedState
from tenants.models import Tenant
from tenants.models.rentals import Grant, OfferedAppliance
from tests.cast import NOON, Cast
from tests.unit.jobqueue.builders import add_appliance, report, submit
from tests.unit.jobqueue.rental_builders import grant, offer
from tests.unit.jobqueue.rented_jobs import placed, rent

# A turn begins a pass in two, reads and decides, and writes.
WRITE_OF_A_TURN = 4


class Meanwhile:
    """Transactions of which the last of a turn waits until something else has happened."""

    def __init__(self, sessions: SessionFactory, change: Callable[[], object]) -> None:
        self._sessions, self._change = sessions, change
        self._count = 0

    @contextmanager
    def __call__(self) -> Iterator[Session]:
        self._count += 1
        if self._count == WRITE_OF_A_TURN:
            self._change()
        with self._sessions.begin() as session:
            yield session


def turn(
    sessions: SessionFactory, tenant: Tenant, change: Callable[[], object] = bool
) -> Counter[Action]:
    """Give one tenant a turn; before it writes, let something else happen."""
    return Dispatcher(Meanwhile(sessions, change))._turn(tenant.id, now=NOON)  # noqa: SLF001 - of one


@pytest.fixture
def shared(sessions: SessionFactory, cast: Cast) -> str:
    """The id of an appliance with one free GPU, for which both tenants have a job."""
    with sessions.begin() as session:
        row = add_appliance(session, cast.globex, "globex-dgx", gpus=1)
        offer(session, [row])
        grant(session, cast.acme, cast.globex)
        rent(session, cast)
        submit(session, cast.charlie, "own", gpus=1)
        return row.id


def holders(sessions: SessionFactory) -> list[str]:
    """The tenants that have GPUs."""
    with sessions() as session:
        rows = session.scalars(select(Attempt).where(Attempt.state == AttemptState.STARTING))
        return [attempt.tenant_id for attempt in rows.unique()]


@pytest.mark.usefixtures("shared")
def test_a_customers_decision_is_dropped_where_the_provider_came_first(
    sessions: SessionFactory, cast: Cast
) -> None:
    late = turn(sessions, cast.acme, lambda: turn(sessions, cast.globex))
    assert late == {Action.STAY: 1}
    assert holders(sessions) == [cast.globex.id]
    assert turn(sessions, cast.acme) == {Action.WAIT: 1}


@pytest.mark.usefixtures("shared")
def test_a_providers_decision_is_dropped_where_a_customer_came_first(
    sessions: SessionFactory, cast: Cast
) -> None:
    late = turn(sessions, cast.globex, lambda: turn(sessions, cast.acme))
    assert late == {Action.STAY: 1}
    assert holders(sessions) == [cast.acme.id]
    assert turn(sessions, cast.globex) == {Action.BIND: 1}


def test_an_end_on_the_appliance_meanwhile_voids_nothing(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        row = add_appliance(session, cast.globex, "globex-dgx", gpus=2)
        offer(session, [row])
        grant(session, cast.acme, cast.globex)
        own = placed(session, submit(session, cast.charlie, "own", gpus=1))
        rent(session, cast)

    def end() -> None:
        with sessions.begin() as session:
            ended = session.get_one(Attempt, own.id)
            report(session, ended, ObservedState.SUCCEEDED, exit_code=0)

    assert turn(sessions, cast.acme, end) == {Action.ASSIGN: 1}


@pytest.mark.parametrize("change", ["price", "closed", "gone", "taken out"])
def test_a_decision_is_dropped_where_the_grant_has_changed(
    sessions: SessionFactory, cast: Cast, shared: str, change: str
) -> None:
    def change_it() -> None:
        with sessions.begin() as session:
            row = session.execute(select(Grant)).scalar_one()
            if change == "price":
                row.price = Decimal("2.51")
            elif change == "closed":
                row.is_open = False
            elif change == "gone":
                session.delete(row)
            else:
                session.delete(session.get_one(OfferedAppliance, shared))

    assert turn(sessions, cast.acme, change_it) == {Action.STAY: 1}
    assert holders(sessions) == []


def test_a_long_queue_of_the_provider_voids_no_turn_of_a_customer(
    sessions: SessionFactory, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider writes while the customer decides, on another appliance."""
    monkeypatch.setattr(dispatching, "MAX_WRITTEN", 2)
    with sessions.begin() as session:
        offered = add_appliance(session, cast.globex, "z-offered")
        add_appliance(session, cast.globex, "a-own")
        offer(session, [offered])
        grant(session, cast.acme, cast.globex)
        rent(session, cast)
        for number in range(8):
            submit(session, cast.charlie, f"own-{number}", gpus=1)
    provider = Dispatcher(sessions.begin)

    def write() -> None:
        assert provider._turn(cast.globex.id, now=NOON) == {Action.ASSIGN: 2}  # noqa: SLF001 - of one

    assert turn(sessions, cast.acme, write) == {Action.ASSIGN: 1}
    write()
