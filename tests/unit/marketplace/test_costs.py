"""Costs: what has lines and what doesn't yet, by group; of a job; and estimates of new ones."""

from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from core.db import SessionFactory
from core.errors import ForbiddenError
from core.ids import new_id
from jobqueue.models import Attempt, Job
from jobqueue.projects.service import ProjectRequest, create_project
from jobqueue.usage.ledger import SETTLE, record_usage
from jobqueue.usage.measuring import Period
from jobqueue.usage.models import UsageEntry
from marketplace.costs.estimates import Estimate, estimate, estimate_text
from marketplace.costs.groups import CostBy, cost_groups, cost_sums, job_cost
from marketplace.costs.unbilled import unbilled_costs
from marketplace.terms import HourlyPrice
from protocol.attempts import ObservedState
from tenants.models.rentals import OfferedAppliance
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, report, start
from tests.unit.marketplace.cost_builders import MARCH, MODEL, add_contract, add_line
from timeseries.store import Store

HOUR = timedelta(hours=1)
MONTH = Period(MARCH, MARCH + timedelta(days=31))


def sums(session: Session, cast: Cast, by: CostBy, *, now: object = NOON) -> dict[str, Decimal]:
    return cost_sums(session, scope_of(cast.alice), MONTH, by=by, now=now)  # type: ignore[arg-type]


@pytest.mark.usefixtures("own_price")
def test_a_job_counts_once_while_it_runs_when_it_is_recorded_and_when_it_is_charged(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with sessions.begin() as session:
        attempt_id = start(session, cast, gpus=2).id
    now = NOON + HOUR + SETTLE
    cost = Decimal("5.25")  # 5.00 an hour, for an hour and three minutes
    with sessions() as session:
        assert sum(sums(session, cast, CostBy.JOB, now=now).values()) == cost
    record_usage(sessions, store, now=now)
    with sessions() as session:
        assert sum(sums(session, cast, CostBy.JOB, now=now).values()) == cost
    with sessions.begin() as session:
        entry = session.scalars(select(UsageEntry)).one()
        add_line(session, cast.acme, "5", NOON, usage_entry_id=entry.id, job_id=entry.job_id)
    with sessions() as session:
        assert sums(session, cast, CostBy.JOB, now=now) == {entry.job_id: cost}
        job = session.get_one(Attempt, attempt_id).job
        assert job_cost(session, job, now=now) == (cost, Decimal(5))


@pytest.mark.usefixtures("own_price")
def test_an_ended_job_costs_no_more(sessions: SessionFactory, cast: Cast) -> None:
    with sessions.begin() as session:
        attempt = start(session, cast, gpus=1)
        report(session, attempt, ObservedState.RUNNING)
        report(session, attempt, ObservedState.SUCCEEDED)  # a minute after noon
        job_id = attempt.job_id
    with sessions() as session:
        job = session.get_one(Job, job_id)
        so_far, hourly = job_cost(session, job, now=NOON + 2 * HOUR)
    assert (so_far.quantize(Decimal("0.0001")), hourly) == (Decimal("0.0417"), None)


def test_a_rented_gpu_costs_what_the_contract_says_at_each_hour(
    session: Session, cast: Cast
) -> None:
    attempt = start(session, cast, gpus=1)
    contract = add_contract(
        session,
        cast.globex,
        cast.acme,
        "3",
        discount_percent=Decimal(10),
        hourly_prices=(HourlyPrice(days=(0,), from_hour=13, until_hour=14, price=Decimal(1)),),
    )
    attempt.contract_id = contract.id
    session.flush()
    now = NOON + HOUR * 2.5  # Monday: 12 at 2.70, 13 at 0.90, half of 14 at 2.70
    costs = unbilled_costs(session, cast.acme.id, MONTH, now=now)
    assert [(cost.hour_at.hour, cost.amount) for cost in costs] == [
        (12, Decimal("2.7")),
        (13, Decimal("0.9")),
        (14, Decimal("1.35")),
    ]
    assert sums(session, cast, CostBy.APPLIANCE, now=now) == {"": Decimal("4.95")}
    groups = cost_groups(session, scope_of(cast.alice), MONTH, by=CostBy.CONTRACT, now=now)
    assert [(group.key, group.name) for group in groups] == [(contract.id, "H100 in Oslo")]
    assert cost_groups(session, scope_of(cast.charlie), MONTH, by=CostBy.CONTRACT, now=now) == []


def test_costs_are_grouped_with_names_the_most_expensive_first(
    session: Session, cast: Cast
) -> None:
    alice = scope_of(cast.alice)
    vision = create_project(
        session, alice, ProjectRequest(name="vision", budget_label="CC-1"), now=NOON
    )
    appliance = add_appliance(session, cast.acme, "dgx-01")
    rented = add_appliance(session, cast.globex, "dgx-02")
    contract = add_contract(session, cast.globex, cast.acme, "3")
    add_line(
        session,
        cast.acme,
        "1",
        project_id=vision.id,
        user_id=cast.alice.id,
        appliance_id=appliance.id,
    )
    add_line(
        session,
        cast.acme,
        "3",
        at=NOON + timedelta(days=1),
        user_id=cast.bob.id,
        contract_id=contract.id,
        provider_id=cast.globex.id,
        appliance_id=rented.id,
    )
    add_line(session, cast.acme, "9", at=MARCH - HOUR)
    expected: dict[CostBy, list[tuple[str, int]]] = {
        CostBy.PROJECT: [("No project", 3), ("vision", 1)],
        CostBy.USER: [("bob@acme.example", 3), ("alice@acme.example", 1)],
        CostBy.BUDGET_LABEL: [("No budget label", 3), ("CC-1", 1)],
        CostBy.GPU_MODEL: [(MODEL, 4)],
        CostBy.CONTRACT: [("H100 in Oslo", 3), ("Own appliances", 1)],
        CostBy.APPLIANCE: [("Rented", 3), ("dgx-01", 1)],
        CostBy.DAY: [("2026-03-02", 1), ("2026-03-03", 3)],
        CostBy.MONTH: [("2026-03", 4)],
        CostBy.TENANT: [("Acme", 4)],
    }
    for by, rows in expected.items():
        groups = cost_groups(session, alice, MONTH, by=by, now=NOON)
        assert [(group.name, int(group.amount)) for group in groups] == rows, by
    by_appliance = cost_sums(
        session, alice, MONTH, by=CostBy.APPLIANCE, now=NOON, appliances=[appliance.id, rented.id]
    )
    assert by_appliance == {appliance.id: 1}
    assert cost_groups(session, scope_of(cast.charlie), MONTH, by=CostBy.USER, now=NOON) == []
    with pytest.raises(ForbiddenError):
        cost_groups(session, scope_of(cast.bob), MONTH, by=CostBy.USER, now=NOON)


@pytest.mark.usefixtures("own_price")
def test_an_estimate_has_own_prices_and_the_cheapest_contract(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    for price in ("3", "2"):
        contract = add_contract(session, cast.globex, cast.acme, price)
        offered = add_appliance(session, cast.globex, f"dgx-{price}")
        session.execute(
            insert(OfferedAppliance).values(
                appliance_id=offered.id,
                provider_id=cast.globex.id,
                offer_id=contract.offer_id,
                gpu_model=MODEL,
                price=Decimal(price),
                refreshed_at=NOON,
            )
        )

    def estimated(**options: object) -> Estimate:
        return estimate(session, cast.acme.id, gpus=Decimal(4), now=NOON, **options)  # type: ignore[arg-type]

    assert estimated() == Estimate(
        lowest=Decimal(10), highest=Decimal(10), rented=Decimal(8), offer_name="H100 in Oslo"
    )
    assert estimated(max_price=Decimal(0)).rented is None
    assert estimated(max_price=Decimal("1.99")).rented is None
    assert estimated(gpu_models=["A100"]) == Estimate()
    assert estimated(gpu_models=["h100"]).lowest == 10
    assert estimated(appliance="dgx-01") == Estimate(lowest=Decimal(10), highest=Decimal(10))
    text = "About EUR 10.00 an hour on own appliances, rented from EUR 8.00 an hour (H100 in Oslo)."
    assert estimate_text(estimated(), "EUR") == text
    assert estimate_text(Estimate(), "EUR") == ""
    between = Estimate(lowest=Decimal(1), highest=Decimal("1250.005"))
    assert estimate_text(between, "USD").startswith("About USD 1.00 to 1,250.01 an hour")


def test_unpriced_use_costs_nothing(session: Session, cast: Cast) -> None:
    start(session, cast, gpus=1)
    session.execute(
        insert(UsageEntry).values(
            id=new_id(),
            hour_at=NOON - HOUR,
            tenant_id=cast.acme.id,
            job_id="x",
            job_name="x",
            attempt_id="x",
            appliance_id="x",
            gpu_model="unknown",
            revision=0,
            allocated_milliseconds=1,
            used_milliseconds=0,
            idle_milliseconds=0,
            energy_joules=0,
            recorded_at=NOON,
        )
    )
    assert unbilled_costs(session, cast.acme.id, MONTH, now=NOON + HOUR) == []
