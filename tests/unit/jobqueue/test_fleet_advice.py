"""Fleet advice: what follows from figures and prices, dismissals, and the nightly computation."""

from collections.abc import Callable, Iterator
from datetime import UTC, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec import json
from sqlalchemy.orm import Session, undefer

from core.db import SessionFactory
from core.errors import ForbiddenError, NotFoundError
from jobqueue.advice.figures import ApplianceFigures, FleetFigures
from jobqueue.advice.models import FleetAdvice
from jobqueue.advice.rules import (
    Advice,
    AdviceAction,
    AmountKind,
    ModelPrices,
    Prices,
    advise,
    short_slots,
    too_little,
)
from jobqueue.advice.runner import AdviceRunner, request_due
from jobqueue.advice.service import (
    DISMISSED_FOR,
    FleetReport,
    dismiss_advice,
    expire_dismissals,
    list_totals,
    read_report,
    request_advice,
    restore_advice,
)
from jobqueue.simulation.models import SimulationState
from tests.cast import Cast, scope_of
from tests.conftest import Fill
from tests.fixtures.polling import eventually
from tests.unit.jobqueue.advice_builders import (
    A100,
    ADDITION,
    DAY,
    H100,
    HOUR,
    HOURS,
    LATER,
    MONDAY,
    SHORT,
    busy_fleet,
    close_ledger,
    figures,
    hourly,
    model,
)

NIGHT = LATER + 2 * HOUR
NO_PRICES = Prices()


def priced(**prices: object) -> Prices:
    return Prices(currency="EUR", has_market=True, models={H100: ModelPrices(**prices)})  # type: ignore[arg-type]


def only(listed: list[Advice]) -> Advice:
    [advice] = listed
    return advice


def test_a_model_that_is_short_is_to_be_added() -> None:
    advice = only(advise(figures(SHORT, additions=[ADDITION]), NO_PRICES, zone=UTC))
    assert (advice.key, advice.action) == (f"short:{H100}", AdviceAction.ADD)
    # 14 days of 4 hours with 8 GPUs.
    assert (advice.gpu_hours, advice.amount) == (448, None)
    assert advice.evidence == [
        "Jobs asked for 448 GPU-hours more than there were, mostly Mon-Sun 09:00-13:00.",
        (
            "With one more appliance like dgx-01 (8 GPUs), all jobs would have waited 0.5 "
            "GPU-hours instead of 448 GPU-hours, and 95 % of them at most 1m instead of 4h, by a "
            "simulation."
        ),
    ]
    assert advice.action_text == "Add an appliance like dgx-01."


def test_short_hours_are_rented_where_that_costs_less() -> None:
    prices = priced(own=Decimal("1.50"), rent=Decimal("2.00"), offers=2)
    advice = only(advise(figures(SHORT, additions=[ADDITION]), prices, zone=UTC))
    # A month of 8 GPUs is 8 x 730 h x 1.50; 448 of 2688 GPU-hours are 973.33 of the month's 5840.
    assert advice.evidence[-1] == (
        "A month of 8 more own GPUs costs EUR 8,760.00 by your price list. Renting the 973 "
        "GPU-hours a month that they would run costs EUR 1,946.67. Renting is cheaper below 548 "
        "of 730 hours a month per GPU; these are 122."
    )
    assert (advice.action, advice.amount) == (AdviceAction.RENT, Decimal("6813.33"))
    assert advice.amount_kind is AmountKind.SAVED


def test_what_is_short_most_of_the_time_is_added() -> None:
    always = model(H100, capacity=hourly(8), allocated=hourly(8), waiting=hourly(8))
    prices = priced(own=Decimal("1.50"), rent=Decimal("2.00"), offers=2)
    advice = only(advise(figures(always, additions=[ADDITION]), prices, zone=UTC))
    # 5840 x 2.00 - 5840 x 1.50
    assert (advice.action, advice.amount) == (AdviceAction.ADD, Decimal("2920.00"))
    cheap = priced(own=Decimal("2.50"), rent=Decimal("2.00"), offers=2)
    advice = only(advise(figures(always, additions=[ADDITION]), cheap, zone=UTC))
    assert advice.action is AdviceAction.RENT
    assert "Renting is cheaper for any number of hours; these are 730." in advice.evidence[-1]


def test_without_a_price_renting_is_not_compared() -> None:
    for prices, text in (
        (priced(own=Decimal(1)), "No other tenant offers this model now."),
        (priced(rent=Decimal(1)), "Your price list has no price of this model"),
    ):
        advice = only(advise(figures(SHORT), prices, zone=UTC))
        assert advice.evidence[-1].startswith(text)
        assert (advice.action, advice.amount) == (AdviceAction.ADD, None)


def test_a_model_that_nobody_has_is_rented_where_it_is_offered() -> None:
    missing = model("B200", waiting=hourly(1))
    missing.gpus = missing.appliances = 0
    advice = only(advise(figures(missing), NO_PRICES, zone=UTC))
    assert (advice.title, advice.action) == ("No appliance has B200", AdviceAction.ADD)
    offered = Prices(has_market=True, models={"B200": ModelPrices(rent=Decimal(4))})
    assert only(advise(figures(missing), offered, zone=UTC)).action is AdviceAction.RENT


def test_jobs_that_wait_beside_free_gpus_are_no_shortage() -> None:
    blocked = model(H100, capacity=hourly(8), allocated=hourly(6), waiting=hourly(2))
    advice = only(advise(figures(blocked), NO_PRICES, zone=UTC))
    assert (advice.key, advice.action) == (f"blocked:{H100}", AdviceAction.REVIEW)
    assert advice.gpu_hours == 2 * HOURS


def test_hours_that_are_free_each_week_are_offered_or_scheduled() -> None:
    nights = model(H100, capacity=hourly(8), allocated=hourly(8, hours=range(8, 20), otherwise=3))
    advice = only(advise(figures(nights), NO_PRICES, zone=UTC))
    assert advice.action is AdviceAction.SCHEDULE
    # 5 GPUs in 12 hours of 14 days.
    assert advice.gpu_hours == 5 * 12 * 14
    assert advice.evidence[0].endswith("mostly Mon-Sun 00:00-08:00, 20:00-24:00.")
    advice = only(advise(figures(nights), priced(median=Decimal("1.00")), zone=UTC))
    # 840 GPU-hours of 336 hours are 1825 of a month.
    assert (advice.action, advice.amount) == (AdviceAction.OFFER, Decimal("1825.00"))
    assert advice.amount_kind is AmountKind.EARNED
    on_offer = priced(median=Decimal(1), own=Decimal("0.5"), offered_gpus=8)
    advice = only(advise(figures(nights), on_offer, zone=UTC))
    assert (advice.action, advice.amount) == (AdviceAction.SCHEDULE, Decimal("912.50"))


def test_hours_that_are_free_in_one_week_only_are_not() -> None:
    capacity = hourly(8)
    allocated = [8.0 if number < HOURS / 2 else 0.0 for number in range(HOURS)]
    assert (
        advise(figures(model(H100, capacity=capacity, allocated=allocated)), NO_PRICES, zone=UTC)
        == []
    )


def test_appliances_without_jobs_are_named_once() -> None:
    idle = [
        ApplianceFigures(
            id=name,
            name=name,
            gpu_model=H100,
            gpus=4,
            capacity_gpu_hours=4 * HOURS,
            allocated_gpu_hours=allocated,
            idle_gpu_hours=0,
        )
        for name, allocated in (("a", 0), ("b", 0), ("c", 4 * HOURS))
    ]
    row = model(H100, capacity=hourly(12), allocated=hourly(4))
    advice = only(advise(figures(row, appliances=idle), NO_PRICES, zone=UTC))
    assert (advice.title, advice.action) == (
        f"2 appliances with {H100} had no jobs",
        AdviceAction.DRAIN,
    )
    assert [appliance.name for appliance in advice.appliances] == ["a", "b"]
    assert advice.evidence == [
        "8 GPUs were ready for 2,688 GPU-hours, and no job was placed there in 14 days."
    ]


def test_idle_allocations_are_worth_their_price() -> None:
    row = model(H100, capacity=hourly(8), allocated=hourly(8), idle=hourly(4))
    prices = Prices(currency="EUR", models={H100: ModelPrices(own=Decimal(1))})
    advice = only(advise(figures(row), prices, zone=UTC))
    assert (advice.action, advice.gpu_hours) == (AdviceAction.LIMIT, 4 * HOURS)
    assert (advice.amount, advice.amount_kind) == (Decimal("2920.00"), AmountKind.WORTH)


def test_a_week_of_data_is_needed() -> None:
    young = figures(SHORT, until=MONDAY + 6 * DAY)
    assert advise(young, NO_PRICES, zone=UTC) == []
    assert too_little(young).startswith("There are 144 hours of data, and advice needs 168")
    assert "no appliances with GPUs" in too_little(figures())
    assert too_little(figures(SHORT)) == ""


def test_short_hours_of_the_week_are_in_utc() -> None:
    slots = short_slots(figures(SHORT))[H100]
    assert slots == [day * 24 + hour for day in range(7) for hour in range(9, 13)]


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'vedette.db'}"


@pytest.fixture
def runner(sessions: SessionFactory, database_url: str) -> Iterator[AdviceRunner]:
    runner = AdviceRunner(sessions, database_url, weeks=2)
    yield runner
    runner.close()


def fill_fleet(session: Session, cast: Cast) -> str:
    busy_fleet(session, cast.alice, cast.acme)
    return ""


@pytest.fixture
def fleet(prefill: Callable[[Fill], str]) -> None:
    prefill(fill_fleet)


def row_of(sessions: SessionFactory, cast: Cast) -> FleetAdvice:
    with sessions() as session:
        options = [undefer(FleetAdvice.figures)]
        return session.get_one(FleetAdvice, cast.acme.id, options=options)


def report_of(sessions: SessionFactory, cast: Cast, *, now: object = NIGHT) -> FleetReport:
    with sessions() as session:
        scope = scope_of(cast.alice)
        return read_report(session, scope, prices=lambda _: NO_PRICES, zone=UTC, now=now)  # type: ignore[arg-type]


def compute(sessions: SessionFactory, cast: Cast, runner: AdviceRunner) -> None:
    with sessions.begin() as session:
        request_advice(session, scope_of(cast.alice), now=LATER)

    def is_over() -> bool:
        runner.step(LATER)
        return row_of(sessions, cast).state.is_final

    eventually(is_over, within_seconds=60)


@pytest.mark.usefixtures("fleet")
def test_the_figures_of_a_fleet_lead_to_advice(
    sessions: SessionFactory, cast: Cast, runner: AdviceRunner
) -> None:
    assert report_of(sessions, cast).state is None
    compute(sessions, cast, runner)
    report = report_of(sessions, cast)
    assert (report.state, report.message, report.too_little) == (SimulationState.SUCCEEDED, "", "")
    assert (report.progress_percent, report.computed_at) == (100, LATER)
    keys = {advice.key: advice.gpu_hours for advice in report.advice}
    # 80 hours of the two weeks are busy.
    assert keys == {
        f"unused:{A100}": 4 * HOURS,
        f"free_hours:{H100}": 8 * (HOURS - 80),
        f"short:{H100}": 320,
        f"idle_allocation:{H100}": 160,
    }
    assert report.figures is not None
    assert report.figures.additions[0].changed.waiting_gpu_hours == 0
    row = row_of(sessions, cast)
    assert (row.gpus, row.allocated_gpu_hours, row.short_gpu_hours) == (12, 640, 320)


@pytest.mark.usefixtures("fleet")
def test_advice_is_dismissed_for_a_while(
    sessions: SessionFactory, cast: Cast, runner: AdviceRunner
) -> None:
    compute(sessions, cast, runner)
    key, alice = f"short:{H100}", scope_of(cast.alice)
    with sessions.begin() as session:
        with pytest.raises(NotFoundError):
            dismiss_advice(session, alice, "short:B200", now=NIGHT)
        first = dismiss_advice(session, alice, key, now=NIGHT)
        assert dismiss_advice(session, alice, key, now=NIGHT).id == first.id
    report = report_of(sessions, cast)
    assert key not in {advice.key for advice in report.advice}
    [dismissed] = report.dismissed
    assert (dismissed.advice.key, dismissed.until) == (key, NIGHT + DISMISSED_FOR)
    assert not report_of(sessions, cast, now=NIGHT + DISMISSED_FOR).dismissed
    with sessions.begin() as session:
        with pytest.raises(NotFoundError):
            restore_advice(session, scope_of(cast.charlie), dismissed.id)
        restore_advice(session, alice, dismissed.id)
        dismiss_advice(session, alice, key, now=NIGHT)
        expire_dismissals(session, now=NIGHT + DISMISSED_FOR)
    assert not report_of(sessions, cast).dismissed


def test_only_those_who_manage_appliances_get_advice(sessions: SessionFactory, cast: Cast) -> None:
    with sessions() as session:
        for who in (cast.bob, cast.olivia):
            with pytest.raises(ForbiddenError):
                request_advice(session, scope_of(who), now=NIGHT)
        with pytest.raises(ForbiddenError):
            list_totals(session, scope_of(cast.alice))


@pytest.mark.usefixtures("fleet")
def test_figures_are_computed_each_night(sessions: SessionFactory, cast: Cast) -> None:
    with sessions.begin() as session:
        assert request_due(session, now=NIGHT) == 1
        assert request_due(session, now=NIGHT) == 0
        row = session.get_one(FleetAdvice, cast.acme.id)
        row.state, row.finished_at = SimulationState.SUCCEEDED, NIGHT + HOUR
        assert request_due(session, now=NIGHT + 23 * HOUR) == 0
        assert request_due(session, now=NIGHT + DAY) == 0, "the ledger is a day behind"
        close_ledger(session, until=LATER + DAY)
        assert request_due(session, now=NIGHT + DAY) == 1
        row.state, row.finished_at = SimulationState.INTERRUPTED, NIGHT + DAY
        assert request_due(session, now=NIGHT + DAY + HOUR / 2) == 0
        assert request_due(session, now=NIGHT + DAY + HOUR) == 1
        [totals] = list_totals(session, scope_of(cast.olivia)).items
    assert (totals.tenant_name, totals.gpus) == ("Acme", 0)


@pytest.mark.usefixtures("fleet")
def test_figures_stay_while_new_ones_fail(
    sessions: SessionFactory, cast: Cast, runner: AdviceRunner, database_url: str
) -> None:
    compute(sessions, cast, runner)
    small = AdviceRunner(sessions, database_url, weeks=2, max_memory_bytes=1024**2)
    compute(sessions, cast, small)
    report = report_of(sessions, cast)
    assert (report.state, report.computed_at) == (SimulationState.FAILED, LATER)
    assert "memory" in report.message
    assert report.advice


@pytest.mark.usefixtures("fleet")
def test_what_a_restarted_scheduler_computed_is_interrupted(
    sessions: SessionFactory, cast: Cast, runner: AdviceRunner, database_url: str
) -> None:
    with sessions.begin() as session:
        request_advice(session, scope_of(cast.alice), now=NIGHT)
    runner.step(NIGHT)
    assert row_of(sessions, cast).state is SimulationState.RUNNING
    AdviceRunner(sessions, database_url, weeks=2).step(NIGHT)
    assert row_of(sessions, cast).state is SimulationState.INTERRUPTED
    runner.step(NIGHT)
    assert runner.run is None
    late = AdviceRunner(sessions, database_url, weeks=2, max_duration=timedelta(minutes=1))
    with sessions.begin() as session:
        request_advice(session, scope_of(cast.alice), now=NIGHT)
    late.step(NIGHT)
    late.step(NIGHT + timedelta(minutes=2))
    assert row_of(sessions, cast).message.startswith("It took more than 1 minutes")


def test_figures_survive_their_storage() -> None:
    stored = figures(SHORT, additions=[ADDITION])
    assert json.decode(json.encode(stored), type=FleetFigures) == stored
