from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from core.clock import NS_PER_SECOND, to_ns
from core.db import SessionFactory
from dash_app.charts import Chart, Line
from dash_app.context import MINUTE, SharedCache
from dash_app.queries.fleet import Fleet as FleetView
from dash_app.queries.fleet import fleet, fleet_totals
from dash_app.queries.fleet_charts import (
    MAX_GPU_ROWS,
    METRICS,
    gpu_heat,
    host_charts,
)
from dash_app.queries.power import power_over_time, total_power
from dash_app.queries.rankings import rankings
from dash_app.queries.telemetry import Result, Telemetry
from dash_app.routes import gpu_path
from dash_app.tiers.cards import filtered, group_of, groupings
from dash_app.timerange import Controls, Span
from tests.cast import Cast, FrozenClock, make_appliance, scope_of
from tests.unit.dash_app.conftest import Fleet
from tests.unit.dash_app.lost_store import MESSAGE, LostStore
from timeseries.points import Point
from timeseries.store import Series, Store, write


@pytest.fixture
def seen_by_alice(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, span: Span
) -> FleetView:
    assert fleet_of_three
    return fleet(session, store, scope_of(cast.alice), span=span)


def test_a_card_shows_the_latest_values_and_the_fullest_disk(seen_by_alice: FleetView) -> None:
    card = seen_by_alice.cards[0]
    assert (card.name, card.cpu_percent, card.memory_percent) == ("dgx-01", 80.0, 12.5)
    assert (card.disk_percent, card.disk_mount) == (70.0, "/data")


def test_a_tile_names_the_job_of_its_gpu(seen_by_alice: FleetView) -> None:
    assert [gpu.job and gpu.job.name for gpu in seen_by_alice.cards[0].gpus] == ["train", None]


def test_a_card_counts_its_running_jobs(seen_by_alice: FleetView) -> None:
    assert [card.running_jobs for card in seen_by_alice.cards] == [1, 0]


def test_totals_are_of_the_own_tenant_only(
    session: Session, cast: Cast, seen_by_alice: FleetView
) -> None:
    scope, cards = scope_of(cast.alice), seen_by_alice.cards
    totals = fleet_totals(session, scope, cards, is_filtered=False)
    assert (totals.appliances, totals.online, totals.gpus) == (2, 2, 4)
    assert (totals.allocated_gpus, totals.busy_gpus) == (1, 4)
    # Two GPUs at 80 % and 400 W, two at 20 % and 100 W.
    assert (totals.gpu_percent, totals.power_watts) == (50.0, 1000.0)
    assert (totals.running_jobs, totals.queued_jobs) == (1, 0)
    narrowed = fleet_totals(session, scope, cards[1:], is_filtered=True)
    assert (narrowed.appliances, narrowed.gpu_percent, narrowed.power_watts) == (1, 20.0, 200.0)
    assert (narrowed.running_jobs, narrowed.queued_jobs) == (0, None)


@pytest.mark.usefixtures("fleet_of_three")
def test_charlie_sees_nothing_of_acme(
    session: Session, store: Store, cast: Cast, span: Span
) -> None:
    seen = fleet(session, store, scope_of(cast.charlie), span=span)
    assert [card.name for card in seen.cards] == ["globex-01"]
    totals = fleet_totals(session, scope_of(cast.charlie), seen.cards, is_filtered=False)
    assert totals.power_watts == 500.0


@pytest.mark.usefixtures("fleet_of_three")
def test_olivia_sees_every_tenant(session: Session, store: Store, cast: Cast, span: Span) -> None:
    seen = fleet(session, store, scope_of(cast.olivia), span=span)
    assert {card.tenant_name for card in seen.cards} == {"Acme", "Globex"}


@pytest.mark.usefixtures("fleet_of_three")
def test_values_of_an_hour_ago_are_outdated(
    session: Session, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    clock.advance(seconds=3600)
    later = Span(0, int(clock.now.timestamp()) * 10**9, 10**10)
    card = fleet(session, store, scope_of(cast.alice), span=later).cards[0]
    assert (card.cpu_percent, card.gpu_percent) == (None, None)
    assert len(card.gpus) == 2


def test_an_empty_tenant_has_an_empty_fleet(
    session: Session, store: Store, cast: Cast, span: Span
) -> None:
    seen = fleet(session, store, scope_of(cast.alice), span=span)
    assert (seen.cards, seen.problem) == ((), "")


@pytest.mark.usefixtures("fleet_of_three")
def test_a_revoked_appliance_is_not_shown(
    sessions: SessionFactory, store: Store, cast: Cast, span: Span, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        gone = make_appliance(session, cast.acme, "gone", now=clock.now)
        gone.revoked_at = clock.now
    with sessions() as session:
        seen = fleet(session, store, scope_of(cast.alice), span=span)
    assert [card.name for card in seen.cards] == ["dgx-01", "dgx-02"]


def test_an_unavailable_store_is_queried_once_and_the_cards_stay(
    sessions: SessionFactory, cast: Cast, span: Span, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        make_appliance(session, cast.acme, "dgx-01", now=clock.now - timedelta(days=1))
    lost = LostStore()
    with sessions() as session:
        seen = fleet(session, lost, scope_of(cast.alice), span=span)  # type: ignore[arg-type]
    assert (lost.asked, seen.problem, len(seen.cards)) == (1, MESSAGE, 1)


def power_of(*series: Series, counts: dict[str, int]) -> Line:
    return total_power(Result(series), counts, span=Span(0, 1000, 10)).lines[0]


def test_total_power_is_the_mean_per_gpu_times_the_gpus() -> None:
    first = Series("power_watts", {"appliance": "a"}, [0, 10], [100.0, 200.0])
    second = Series("power_watts", {"appliance": "b"}, [0, 10], [50.0, 50.0])
    assert power_of(first, second, counts={"a": 8, "b": 2}).values == [900.0, 1700.0]


def test_a_late_step_counts_with_the_last_value() -> None:
    complete = Series("power_watts", {"appliance": "a"}, [0, 10, 20], [100.0, 100.0, 100.0])
    late = Series("power_watts", {"appliance": "b"}, [0, 10], [50.0, 50.0])
    assert power_of(complete, late, counts={"a": 1, "b": 1}).values == [150.0, 150.0, 150.0]


@pytest.mark.usefixtures("fleet_of_three")
def test_power_of_a_live_range_is_extended_by_its_newest_steps(
    store: Store, cast: Cast, fleet_of_three: Fleet, clock: FrozenClock
) -> None:
    cache = SharedCache(clock, ttl=MINUTE)
    counts = {appliance.id: 2 for appliance in (fleet_of_three.first, fleet_of_three.second)}

    def now(cache: SharedCache) -> Chart:
        span = Controls.parse("?range=15m").span(clock.now)
        return power_over_time(Telemetry(store, scope_of(cast.alice), span), cache, counts)

    # Two GPUs at 400 W, two at 100 W; charlie's are another tenant's.
    assert set(now(cache).lines[0].values) == {1000.0}
    clock.advance(seconds=20)
    identity = {"tenant": cast.acme.id, "appliance": fleet_of_three.first.id}
    later = Point("gpu", {"gpu": "0"}, {"power_watts": 700.0}, to_ns(clock.now) - NS_PER_SECOND)
    assert write(store, [later], identity=identity) == []
    extended = now(cache)
    assert extended.lines[0].values[-1] == 700 * 2 + 100 * 2
    assert extended == now(SharedCache(clock, ttl=MINUTE))
    lost = Telemetry(LostStore(), scope_of(cast.alice), Span(0, 10, 1))  # type: ignore[arg-type]
    assert power_over_time(lost, SharedCache(clock, ttl=MINUTE), counts).problem == MESSAGE


@pytest.fixture
def telemetry(store: Store, cast: Cast, span: Span) -> Telemetry:
    return Telemetry(store, scope_of(cast.alice), span)


def test_heat_rows_keep_the_order_of_the_cards_and_lead_to_their_gpus(
    seen_by_alice: FleetView, telemetry: Telemetry
) -> None:
    cards = list(reversed(seen_by_alice.cards))
    names = {card.appliance_id: card.name for card in cards}
    heat = gpu_heat(telemetry, cards, METRICS["temperature"], names=names)
    rows = [row.name for row in heat.chart.lines]
    assert rows == [f"{name} · GPU {gpu}" for name in ("dgx-02", "dgx-01") for gpu in (0, 1)]
    assert heat.links[rows[1]] == gpu_path(cards[0].appliance_id, "1")


def test_a_large_fleet_has_a_heat_row_for_each_appliance(
    seen_by_alice: FleetView, telemetry: Telemetry
) -> None:
    cards = [replace(card, gpus=card.gpus * MAX_GPU_ROWS) for card in seen_by_alice.cards]
    names = {card.appliance_id: card.name for card in cards}
    heat = gpu_heat(telemetry, cards, METRICS["utilization"], names=names)
    assert [row.name for row in heat.chart.lines] == ["dgx-01", "dgx-02"]


@pytest.mark.usefixtures("fleet_of_three")
def test_rates_of_the_fleet_are_those_of_all_devices_together(
    telemetry: Telemetry, clock: FrozenClock
) -> None:
    received = host_charts(telemetry, SharedCache(clock, ttl=MINUTE))["network"].lines[0]
    # `eth0` of two appliances, without their loopbacks.
    assert received.values[-1] == 2e6


def test_the_fleets_extremes_are_ranked(
    session: Session,
    seen_by_alice: FleetView,
    telemetry: Telemetry,
    fleet_of_three: Fleet,
    clock: FrozenClock,
) -> None:
    cache = SharedCache(clock, ttl=MINUTE)
    ranked = rankings(
        session, telemetry, cache, seen_by_alice.cards, appliances=None, now=clock.now
    )
    assert [gpu_at[0].name for gpu_at, _ in ranked.hottest] == [
        "dgx-01",
        "dgx-01",
        "dgx-02",
        "dgx-02",
    ]
    assert ranked.idle == []
    assert [card.name for card in ranked.fullest] == ["dgx-01", "dgx-02"]
    (model,) = ranked.capacity
    assert (model.model, model.total, model.allocated, model.busy, model.free) == (
        "H100",
        4,
        1,
        1,
        3,
    )
    # One GPU for eight minutes.
    assert [(job.key, job.name) for job in ranked.jobs] == [(fleet_of_three.job.id, "train")]
    assert ranked.jobs[0].allocated_gpu_seconds == 8 * 60
    assert [(user.name, user.allocated_gpu_seconds) for user in ranked.users] == [
        ("alice@acme.example", 8 * 60)
    ]


def test_cards_are_grouped_by_site_model_and_any_label(seen_by_alice: FleetView) -> None:
    first, second = seen_by_alice.cards
    cards = [
        replace(first, site="Porto", labels={"rack": "b2"}),
        replace(second, site="Lyon", labels={"rack": "a1"}),
    ]
    assert list(groupings(cards, chosen="")) == ["none", "site", "model", "label:rack"]
    assert list(groupings(cards, chosen="label:pod"))[-1] == "label:pod"
    assert [card.site for card in filtered(cards, grouping="site")] == ["Lyon", "Porto"]
    assert [group_of(card, "label:rack") for card in filtered(cards, grouping="label:rack")] == [
        "a1",
        "b2",
    ]
    assert group_of(cards[0], "label:pod") == "no pod"
