"""The tasks of the marketplace, in short transactions of the scheduler's."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import select, true, update

from alerting.notification.models import Notification
from core.db import SessionFactory
from core.periodic_tasks import SchedulerContext
from core.settings import ServerSettings
from marketplace.contracts.service import give_notice
from marketplace.models import Contract
from marketplace.periodic_tasks import MarketTasks
from marketplace.states import ContractState
from marketplace.terms import HourlyPrice
from tenants.models.rentals import Grant, OfferedAppliance
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.marketplace.builders import admit_sides, publish, take, terms

AFTERNOON = HourlyPrice(days=tuple(range(7)), from_hour=13, until_hour=18, price=Decimal(4))


@pytest.fixture
def context(sessions: SessionFactory, clock: FrozenClock) -> SchedulerContext:
    return SchedulerContext(
        sessions=sessions,
        clock=clock,
        listening_since=NOON,
        is_active=lambda: True,
        has_lease=true(),
        is_stopping=lambda: False,
        run_soon=lambda _task: None,
    )


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    return ServerSettings(
        data_dir=tmp_path,
        marketplace=True,
        marketplace_requires_verification=False,
        smtp_url="smtp://mail.example",
        mail_from="a@b.example",
    )


@pytest.fixture
def contract_id(sessions: SessionFactory, cast: Cast) -> str:
    """A contract about dgx-01, whose price is higher in the afternoon."""
    with sessions.begin() as session:
        admit_sides(session, cast)
        add_appliance(session, cast.acme, "dgx-01")
        offer = publish(session, cast, "dgx-01", terms=terms(hourly_prices=(AFTERNOON,)))
        return take(session, cast, offer).id


def run(settings: ServerSettings, context: SchedulerContext) -> list[str]:
    """Run each task once; return their names."""
    table = MarketTasks(settings, context).table()
    for task in table:
        task.run()
    return [task.name for task in table]


def test_prices_follow_the_hour(
    sessions: SessionFactory,
    settings: ServerSettings,
    context: SchedulerContext,
    clock: FrozenClock,
    contract_id: str,
) -> None:
    clock.advance(3600)
    assert run(settings, context) == ["refresh_offers", "refresh_grants"]
    with sessions() as session:
        assert session.get_one(Grant, contract_id).price == Decimal(4)
        assert session.scalars(select(OfferedAppliance)).one().price == Decimal(4)


def test_a_contract_ends_once_and_both_sides_get_an_email(
    *,
    sessions: SessionFactory,
    settings: ServerSettings,
    context: SchedulerContext,
    clock: FrozenClock,
    cast: Cast,
    contract_id: str,
) -> None:
    with sessions.begin() as session:
        give_notice(session, scope_of(cast.alice), contract_id, now=NOON)
    clock.advance(1)
    for _ in range(2):
        run(settings, context)
    with sessions() as session:
        assert session.get_one(Contract, contract_id).state is ContractState.ENDED
        assert session.get(Grant, contract_id) is None
        addresses = [row.address for row in session.scalars(select(Notification))]
        assert sorted(addresses) == [cast.alice.email, cast.charlie.email]


def test_a_grant_that_was_lost_is_written_again(
    sessions: SessionFactory, settings: ServerSettings, context: SchedulerContext, contract_id: str
) -> None:
    with sessions.begin() as session:
        session.delete(session.get_one(Grant, contract_id))
    run(settings, context)
    with sessions() as session:
        assert session.get_one(Grant, contract_id).is_open


def test_what_is_left_of_a_contract_that_is_over_goes(
    sessions: SessionFactory, settings: ServerSettings, context: SchedulerContext, contract_id: str
) -> None:
    with sessions.begin() as session:
        session.execute(update(Contract).values(state=ContractState.ENDED))
    run(settings, context)
    with sessions() as session:
        assert session.get(Grant, contract_id) is None


def test_a_stop_ends_the_tasks_early(
    sessions: SessionFactory,
    settings: ServerSettings,
    context: SchedulerContext,
    clock: FrozenClock,
    contract_id: str,
) -> None:
    clock.advance(3600)
    run(settings, replace(context, is_stopping=lambda: True))
    with sessions() as session:
        assert session.get_one(Grant, contract_id).price == Decimal(2)


def test_no_jobs_start_once_the_marketplace_is_off(
    *,
    sessions: SessionFactory,
    tmp_path: Path,
    context: SchedulerContext,
    settings: ServerSettings,
    clock: FrozenClock,
    contract_id: str,
) -> None:
    off = ServerSettings(data_dir=tmp_path)
    assert run(off, context) == ["close_grants"]
    with sessions() as session:
        assert not session.get_one(Grant, contract_id).is_open
    clock.now += timedelta(days=1)
    run(settings, context)
    with sessions() as session:
        assert session.get_one(Grant, contract_id).is_open
