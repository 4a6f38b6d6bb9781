"""The marketplace of the demo: providers, customers, contracts, and jobs under them."""

from datetime import timedelta
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cli.bootstrap import CUSTOMER_TENANTS, DEMO_TENANTS, prepare_demo
from cli.demo_fleet import FLEET, RENTED_FLEET, fleet_of
from cli.demo_market import (
    CUSTOMERS,
    MAX_GPU_HOUR_PRICE,
    OFFERS,
    RENTED_LABELS,
    Customer,
    open_market,
)
from collector.inventory import simulated_inventory
from core.db import SessionFactory
from jobqueue.advice.child import fleet_figures, whole_hours
from jobqueue.models import Attempt, Job
from jobqueue.usage.measuring import Period
from marketplace.catalogue import CatalogueFilter, capacity, search
from marketplace.models import Account, Contract
from marketplace.states import AccountState, ContractState
from tenants.models import AuditEntry, Tenant
from tenants.models.rentals import Grant
from tests.cast import NOON, make_appliance
from vedette.client import Client


@pytest.fixture
def demo(sessions: SessionFactory) -> SessionFactory:
    """The demo's database before its appliances have enrolled."""
    logins = prepare_demo(sessions, now=NOON, has_marketplace=True)
    assert {login.email for login in logins} >= {email for _, email in CUSTOMERS}
    return sessions


def enroll(session: Session) -> None:
    for member in RENTED_FLEET:
        tenant = session.scalars(select(Tenant).where(Tenant.slug == member.tenant)).one()
        inventory = msgspec.to_builtins(
            simulated_inventory(member.simulation, executors=["simulated"])
        )
        make_appliance(session, tenant, member.name, now=NOON, inventory=inventory)


def test_two_tenants_offer_and_two_rent(demo: SessionFactory) -> None:
    with demo() as session:
        accounts = {
            tenant.slug: account
            for tenant, account in session.execute(
                select(Tenant, Account).join(Account, Account.tenant_id == Tenant.id)
            )
        }
    active = AccountState.ACTIVE
    assert {slug for slug, row in accounts.items() if row.provider_state is active} == set(
        DEMO_TENANTS
    )
    assert {slug for slug, row in accounts.items() if row.customer_state is active} == set(
        CUSTOMER_TENANTS
    )


def test_the_demo_without_the_setting_has_no_customers(sessions: SessionFactory) -> None:
    prepare_demo(sessions, now=NOON)
    with sessions() as session:
        assert set(session.scalars(select(Tenant.slug))) == set(DEMO_TENANTS)
    prepare_demo(sessions, now=NOON, has_marketplace=True)
    with sessions() as session:
        count = session.scalar(select(func.count()).select_from(Tenant))
    assert count == len(DEMO_TENANTS) + len(CUSTOMER_TENANTS)


def test_the_market_waits_for_the_appliances(demo: SessionFactory) -> None:
    assert not open_market(demo, "EUR", now=NOON)
    with demo() as session:
        assert session.scalars(select(Contract)).all() == []


def test_the_market_is_opened_once(demo: SessionFactory) -> None:
    with demo.begin() as session:
        enroll(session)
    for _ in range(2):
        assert open_market(demo, "EUR", now=NOON)
    with demo() as session:
        entries, total = search(session, CatalogueFilter())
        assert total == len(OFFERS)
        assert {entry.gpus for entry in entries} == {4}
        assert {row.region for row in capacity(session)} == {"eu-west", "us-south"}
        states = session.scalars(select(Contract.state).order_by(Contract.state)).all()
        assert states == [ContractState.ACTIVE, ContractState.ACTIVE, ContractState.PROPOSED]
        assert session.scalar(select(func.count()).select_from(Grant)) == len(OFFERS)


def test_fleet_advice_has_weeks_of_rented_appliances(demo: SessionFactory) -> None:
    with demo.begin() as session:
        enroll(session)
    assert open_market(demo, "EUR", now=NOON)
    with demo() as session:
        acme = session.scalars(select(Tenant.id).where(Tenant.slug == "acme")).one()
        period = whole_hours(session, acme, Period(NOON - timedelta(weeks=4), NOON))
        figures = fleet_figures(session, acme, period)
    [model] = figures.models
    assert sum(model.capacity) == model.gpus * 4 * 7 * 24 > 0


def test_past_jobs_ran_under_the_contracts_of_their_customers(demo: SessionFactory) -> None:
    with demo.begin() as session:
        enroll(session)
    open_market(demo, "EUR", now=NOON)
    with demo() as session:
        contracts = {row.id: row for row in session.scalars(select(Contract))}
        attempts = session.scalars(select(Attempt)).all()
        assert len(attempts) > 40
        for attempt in attempts:
            contract = contracts[attempt.contract_id or ""]
            assert attempt.tenant_id == contract.customer_id
            assert attempt.appliance.tenant_id == contract.provider_id
            assert contract.starts_at is not None
            assert attempt.started_at is not None
            assert attempt.finished_at is not None
            assert contract.starts_at < attempt.started_at < attempt.finished_at < NOON
        used = sorted(
            (uuid, attempt.started_at, attempt.finished_at)
            for attempt in attempts
            for uuid in attempt.gpu_uuids
        )
        for (uuid, _, end), (other, start, _) in pairwise(used):
            assert uuid != other or end <= start  # type: ignore[operator] # never None, see above
        assert session.scalar(select(func.count()).select_from(Job)) == len(attempts)
        names = session.scalars(
            select(AuditEntry.target_name).where(AuditEntry.action == "past_jobs.added")
        ).all()
        assert not {member.name for member in RENTED_FLEET} & set(names)


def test_rented_appliances_are_there_with_the_marketplace_alone() -> None:
    assert fleet_of(has_marketplace=False) == FLEET
    assert set(fleet_of(has_marketplace=True)) - set(FLEET) == set(RENTED_FLEET)
    assert all(member.labels == RENTED_LABELS for member in RENTED_FLEET)
    assert not any(member.has_past for member in RENTED_FLEET)
    assert {(row.tenant, row.appliance) for row in OFFERS} == {
        (member.tenant, member.name) for member in RENTED_FLEET
    }


class RecordedClient:
    """A portal that has some active jobs, and remembers what is submitted."""

    def __init__(self, active: int) -> None:
        self.active = active
        self.submitted: list[dict[str, Any]] = []

    def get(self, path: str, *, state: str, page_size: int) -> dict[str, Any]:
        assert (path, page_size) == ("/jobs", 100)
        return {"items": [{}] * self.active if state == "running" else []}

    def post(self, path: str, body: dict[str, Any]) -> None:
        assert path == "/jobs"
        self.submitted.append(body)


@pytest.mark.parametrize(("active", "count"), [(0, 1), (1, 1), (2, 0)])
def test_a_customer_keeps_two_jobs_active(active: int, count: int) -> None:
    portal = RecordedClient(active)
    customer = Customer("http://portal.example", email="x", password="x", seed=1)
    customer.submit(cast("Client", portal))
    assert len(portal.submitted) == count
    for job in portal.submitted:
        assert job["max_gpu_hour_price"] == MAX_GPU_HOUR_PRICE
        assert 1 <= job["gpus"] <= 2
