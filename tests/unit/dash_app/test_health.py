"""Health on the dashboards: states and findings of the agent, XIDs of the store."""

from collections.abc import Mapping
from datetime import UTC
from typing import Any

import pytest
from sqlalchemy.orm import Session

from core.clock import NS_PER_SECOND, to_ns
from core.db import SessionFactory
from dash_app.charts import Chart, Event, Line
from dash_app.components import findings_list, xid_table
from dash_app.figures import time_figure
from dash_app.queries.annotations import finding_names, own_findings, xid_events
from dash_app.queries.appliance import appliance_detail
from dash_app.queries.fleet import FleetTotals, fleet, fleet_totals
from dash_app.queries.gpu import gpu_detail
from dash_app.queries.telemetry import Telemetry
from dash_app.tiers.cards import filtered
from dash_app.timerange import Span
from protocol.health import HealthFinding, HealthReason, HealthState
from tenants.models import Appliance, User
from tests.cast import Cast, FrozenClock, scope_of
from tests.unit.dash_app.conftest import Fleet
from timeseries.points import Point
from timeseries.store import Store, write

LOST = {"reason": "lost", "state": "failed", "detail": "The driver does not reach it any more."}
SLOW = {"reason": "nvlink_down", "state": "degraded", "detail": "1 of 18 NVLinks is down."}
FULL = {"reason": "disk_full", "state": "degraded", "detail": "/data is 96 % full."}
COUNTED = {"reason": "gpu_failed", "state": "degraded", "detail": "1 of 3 GPUs failed."}


def gpu(index: int, uuid: str, state: str = "healthy", *findings: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON
    return {
        "index": index,
        "uuid": uuid,
        "state": state,
        "findings": list(findings),
        "tier": "flagship",
    }


@pytest.fixture
def unhealthy(sessions: SessionFactory, fleet_of_three: Fleet) -> Appliance:
    """acme's first appliance: GPU 0 lost, GPU 1 with an NVLink down, GPU 2 missing."""
    with sessions.begin() as session:
        row = session.get_one(Appliance, fleet_of_three.first.id)
        row.health = {
            "state": "degraded",
            "appliance_class": "2 x flagship",
            "findings": [FULL, COUNTED],
            "gpus": [
                gpu(0, "GPU-a0", "failed", LOST),
                gpu(1, "GPU-a1", "degraded", SLOW),
                gpu(2, "GPU-a2", "failed", LOST | {"reason": "missing"}),
            ],
        }
        return row


def report_xids(store: Store, appliance: Appliance, clock: FrozenClock) -> None:
    """An XID 79 of GPU 0 and two XIDs 31 of GPU 1, a minute ago."""
    at_ns = to_ns(clock.now) - 60 * NS_PER_SECOND
    points = [
        Point("gpu_xid", {"gpu": index, "uuid": f"GPU-a{index}", "xid": code}, {"events": 1}, at)
        for index, code, at in (
            ("0", "79", at_ns),
            ("1", "31", at_ns),
            ("1", "31", at_ns + NS_PER_SECOND),
        )
    ]
    identity = {"tenant": appliance.tenant_id, "appliance": appliance.id}
    assert write(store, points, identity=identity) == []


def test_a_card_shows_health_and_class_and_its_tiles_findings(
    *, session: Session, store: Store, cast: Cast, unhealthy: Appliance, span: Span
) -> None:
    assert unhealthy
    cards = fleet(session, store, scope_of(cast.alice), span=span).cards
    assert [(card.health, card.appliance_class) for card in cards] == [
        (HealthState.DEGRADED, "2 x flagship"),
        (None, ""),
    ]
    assert [
        (gpu.index, gpu.state, finding_names(gpu.health.findings) if gpu.health else "")
        for gpu in cards[0].gpus
    ] == [
        ("0", HealthState.FAILED, "lost"),
        ("1", HealthState.DEGRADED, "NVLink down"),
        ("2", HealthState.FAILED, "missing"),
    ]


def test_the_totals_count_appliances_and_gpus_that_are_unhealthy(
    *, session: Session, store: Store, cast: Cast, unhealthy: Appliance, span: Span
) -> None:
    assert unhealthy

    def totals_of(user: User) -> FleetTotals:
        cards = fleet(session, store, scope_of(user), span=span).cards
        return fleet_totals(session, scope_of(user), cards, is_filtered=False)

    totals = totals_of(cast.alice)
    assert (totals.degraded, totals.failed, totals.failed_gpus) == (1, 0, 2)
    others = totals_of(cast.charlie)
    assert (others.degraded, others.failed_gpus) == (0, 0)


def test_cards_are_filtered_and_sorted_by_health(
    *, session: Session, store: Store, cast: Cast, unhealthy: Appliance, span: Span
) -> None:
    assert unhealthy
    cards = fleet(session, store, scope_of(cast.olivia), span=span).cards
    assert [card.name for card in filtered(cards, state="unhealthy")] == ["dgx-01"]
    by_health = [card.name for card in filtered(cards, sort="health") if card.health]
    assert by_health == ["dgx-01"]


def test_an_appliance_shows_its_own_findings_and_those_of_each_gpu(
    *, session: Session, store: Store, cast: Cast, unhealthy: Appliance, span: Span
) -> None:
    seen = appliance_detail(session, store, scope_of(cast.alice), unhealthy.id, span=span)
    assert [finding.reason for finding in own_findings(seen.health)] == [HealthReason.DISK_FULL]
    states = [(row.index, row.health.state if row.health else None) for row in seen.gpus]
    assert states == [
        ("0", HealthState.FAILED),
        ("1", HealthState.DEGRADED),
        ("2", HealthState.FAILED),
    ]


def test_xids_are_marked_on_every_gpu_chart_with_their_meaning(
    *,
    session: Session,
    store: Store,
    cast: Cast,
    unhealthy: Appliance,
    span: Span,
    clock: FrozenClock,
) -> None:
    report_xids(store, unhealthy, clock)
    seen = appliance_detail(session, store, scope_of(cast.alice), unhealthy.id, span=span)
    for key in ("gpu-utilization_percent", "gpu-power_watts"):
        events = seen.charts[key].events
        assert [(event.label, event.is_critical) for event in events] == [
            ("XID 79", True),
            ("XID 31", False),
        ]
        assert events[0].text == "GPU 0: XID 79, the GPU has fallen off the bus"


def test_a_gpu_shows_its_own_xids_only_and_counts_those_of_a_window(
    *,
    session: Session,
    store: Store,
    cast: Cast,
    unhealthy: Appliance,
    span: Span,
    clock: FrozenClock,
) -> None:
    report_xids(store, unhealthy, clock)
    seen = gpu_detail(session, store, scope_of(cast.alice), unhealthy.id, index="1", span=span)
    assert [(event.xid.code, event.count) for event in seen.xids] == [(31, 2)]
    assert seen.charts["temperature"].events[0].label == "XID 31"


def test_a_missing_gpu_has_a_page(
    *, session: Session, store: Store, cast: Cast, unhealthy: Appliance, span: Span
) -> None:
    seen = gpu_detail(session, store, scope_of(cast.alice), unhealthy.id, index="2", span=span)
    assert seen.gpu.health is not None
    assert [finding.reason for finding in seen.gpu.health.findings] == [HealthReason.MISSING]


def test_another_tenants_xids_are_not_seen(
    *, store: Store, cast: Cast, unhealthy: Appliance, span: Span, clock: FrozenClock
) -> None:
    report_xids(store, unhealthy, clock)
    telemetry = Telemetry(store, scope_of(cast.charlie), span)
    assert xid_events(telemetry) == ()


def test_events_are_drawn_above_the_lines_and_named_where_there_is_room() -> None:
    span = Span(0, 1000 * NS_PER_SECOND, 10 * NS_PER_SECOND)
    events = tuple(
        Event(at * NS_PER_SECOND, f"XID {at}", f"GPU 0: XID {at}", is_critical=at == 900)
        for at in (20, 500, 510, 900)
    )
    line = Line(name="GPU 0", times_ns=[0, 10 * NS_PER_SECOND], values=[1.0, 2.0], color=0)
    chart = Chart(field="power_watts", lines=(line,), events=events)
    figure = time_figure(chart, span, revision="r")
    marks = figure["data"][-1]
    assert marks["text"] == ["", "XID 500", "", "XID 900"]
    assert marks["hovertext"][0] == "GPU 0: XID 20"
    assert len(set(marks["marker"]["color"])) == 2
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [
        20_000,
        500_000,
        510_000,
        900_000,
    ]


def test_a_finding_is_shown_with_advice() -> None:
    finding = HealthFinding(reason=HealthReason.LOST, state=HealthState.FAILED, detail="Gone.")
    text = str(findings_list([("GPU 5", finding)]))
    assert "GPU 5" in text
    assert "Power the host off and on" in text


def test_a_table_without_xids_shows_the_empty_text() -> None:
    assert "none at all" in str(xid_table((), zone=UTC, empty="none at all"))
