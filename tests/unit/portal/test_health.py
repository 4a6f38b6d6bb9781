"""Health in the portal: on the appliances' pages, on a job's page and in the API."""

from typing import Any

import pytest
from markupsafe import escape
from sqlalchemy.orm import Session

from core.db import SessionFactory
from protocol.health import ADVICE, HealthReason, HealthState
from tenants.models import Appliance
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world import World
from tests.unit.portal.world_parts import add_appliance

LOST = {"reason": "lost", "state": "failed", "detail": "The driver does not reach it any more."}
SLOW = {"reason": "nvlink_down", "state": "degraded", "detail": "1 of 18 NVLinks is down."}
FULL = {"reason": "disk_full", "state": "degraded", "detail": "/data is 96 % full."}
COUNTED = {"reason": "gpu_failed", "state": "degraded", "detail": "1 of 2 GPUs failed."}
HEALTH: dict[str, Any] = {
    "state": "degraded",
    "findings": [FULL, COUNTED],
    "gpus": [
        {
            "index": 0,
            "uuid": "GPU-dgx-01-0",
            "state": "failed",
            "findings": [LOST],
            "tier": "flagship",
        },
        {
            "index": 1,
            "uuid": "GPU-dgx-01-1",
            "state": "degraded",
            "findings": [SLOW],
            "tier": "performance",
        },
    ],
    "appliance_class": "1 x flagship, 1 x performance",
}


@pytest.fixture
def ill(sessions: SessionFactory, world: World) -> str:
    """The appliance on which the job runs, with a lost GPU and a degraded one."""
    with sessions.begin() as session:
        _tell(session.get_one(Appliance, world.ids["appliance_id"]), HEALTH)
    return world.ids["appliance_id"]


def _tell(row: Appliance, health: dict[str, Any]) -> None:
    row.health, row.health_state = health, HealthState(health["state"])


def test_the_list_shows_state_and_class(bob: Browser, ill: str) -> None:
    text = bob.get("/appliances").text
    assert ill in text
    assert "degraded" in text
    assert "1 \N{MULTIPLICATION SIGN} flagship, 1 \N{MULTIPLICATION SIGN} performance" in text


def test_the_list_is_narrowed_by_health(
    bob: Browser, ill: str, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        add_appliance(session, cast, "dgx-02", now=clock.now)
    assert ill
    for health, shown in (("degraded", "dgx-01"), ("unknown", "dgx-02"), ("failed", "")):
        text = bob.get(f"/appliances?health={health}").text
        assert [name for name in ("dgx-01", "dgx-02") if f">{name}<" in text] == (
            [shown] if shown else []
        )
    assert 'class="vd-empty"' in bob.get("/appliances?health=failed").text


def test_the_page_names_every_finding_with_what_to_do_the_worst_first(
    bob: Browser, ill: str
) -> None:
    text = bob.get(f"/appliances/{ill}").text
    places = [text.index(finding["detail"]) for finding in (LOST, FULL, SLOW)]
    assert places == sorted(places)
    assert str(escape(ADVICE[HealthReason.LOST].action)) in text
    # It only counts what the findings of the GPUs say.
    assert COUNTED["detail"] not in text
    assert "flagship" in text


@pytest.mark.parametrize(
    ("health", "text"),
    [
        (None, "report health"),
        ({"state": "healthy"}, "GPUs, driver and disks are healthy"),
    ],
)
def test_a_page_without_findings_explains_why(
    *,
    bob: Browser,
    world: World,
    sessions: SessionFactory,
    health: dict[str, Any] | None,
    text: str,
) -> None:
    with sessions.begin() as session:
        row = session.get_one(Appliance, world.ids["appliance_id"])
        if health is not None:
            _tell(row, health)
    assert text in bob.get(f"/appliances/{world.ids['appliance_id']}").text


def test_a_job_is_shown_what_is_wrong_with_its_gpus_and_not_with_others(
    bob: Browser, ill: str, world: World
) -> None:
    assert ill
    text = bob.get(f"/jobs/{world.ids['job_id']}").text
    assert "<strong>GPU 0</strong> of dgx-01: lost." in text
    assert SLOW["detail"] not in text
    assert FULL["detail"] not in text


def test_the_api_returns_all_health_and_null_if_unknown(
    *, bob: Browser, ill: str, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        other = add_appliance(session, cast, "dgx-02", now=clock.now)
    told = bob.get(f"/api/v1/appliances/{ill}").json
    assert told is not None
    assert (told["health_state"], told["health"]) == ("degraded", HEALTH)
    unknown = bob.get(f"/api/v1/appliances/{other.id}").json
    assert unknown is not None
    assert (unknown["health_state"], unknown["health"]) == (None, None)


@pytest.mark.parametrize(
    ("health", "total"), [("degraded", 1), ("healthy", 0), ("unknown", 0), ("", None)]
)
def test_the_api_filters_by_health(bob: Browser, ill: str, health: str, total: int | None) -> None:
    assert ill
    answer = bob.get(f"/api/v1/appliances?health={health}")
    assert answer.status_code == (422 if total is None else 200)
    if total is not None:
        assert answer.json is not None
        assert answer.json["total"] == total


def test_the_schema_lists_every_state_and_reason(bob: Browser) -> None:
    document = bob.get("/api/v1/openapi.json").json
    assert document is not None
    schemas = document["components"]["schemas"]
    assert set(schemas["HealthFinding"]["properties"]["reason"]["enum"]) == {
        reason.value for reason in HealthReason
    }
    assert "GPUHealth" in schemas
    assert {state.value for state in HealthState} == set(
        schemas["ApplianceHealth"]["properties"]["state"]["enum"]
    )


def test_another_tenants_user_does_not_see_it(charlie: Browser, ill: str, session: Session) -> None:
    assert session.get_one(Appliance, ill).health == HEALTH
    assert charlie.get(f"/appliances/{ill}").status_code == 404
    assert charlie.get("/api/v1/appliances?health=degraded").json == {
        "items": [],
        "total": 0,
        "page": 1,
        "page_size": 50,
    }


def test_implausible_readings_are_listed_on_the_page_and_in_the_api(
    bob: Browser, sessions: SessionFactory, world: World
) -> None:
    reading = {
        "metric": "gpu.power_watts",
        "series": "gpu=3",
        "value": "4294967.295",
        "detail": "outside 0 to 50,000",
        "count": 7,
        "last_at": "2026-03-01T11:59:00Z",
    }
    appliance_id = world.ids["appliance_id"]
    path = f"/appliances/{appliance_id}"
    assert "Implausible readings" not in bob.get(path).text
    with sessions.begin() as session:
        row = session.get_one(Appliance, appliance_id)
        _tell(row, {"state": "healthy", "implausible_readings": [reading]})

    text = bob.get(path).text
    answer = bob.get(f"/api/v1{path}").json

    for shown in ("Implausible readings", "gpu.power_watts", "gpu=3", "4294967.295", ">7<"):
        assert shown in text
    assert '<time datetime="2026-03-01T11:59' in text
    assert answer is not None
    assert answer["health"]["implausible_readings"] == [reading]
