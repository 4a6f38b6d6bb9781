"""The pages and operations of fleet advice: computed, read, dismissed, and by tenant."""

import msgspec
import pytest

from core.db import SessionFactory
from jobqueue.advice.models import FleetAdvice
from jobqueue.simulation.models import SimulationState
from tests.cast import NOON, Cast
from tests.unit.jobqueue.advice_builders import DAY, H100, MONDAY, SHORT, figures
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world_parts import add_advice

PAGE = "/advice"
API = "/api/v1/fleet-advice"
KEY = f"short:{H100}"


@pytest.fixture
def advised(sessions: SessionFactory, cast: Cast) -> str:
    """Figures by which H100 are short; return the id of a dismissal of that advice."""
    with sessions.begin() as session:
        return add_advice(session, cast, now=NOON).id


def test_advice_is_computed_on_request(
    alice: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    assert "No advice yet" in alice.get(PAGE).text
    shown = alice.get(API).get_json()
    assert (shown["state"], shown["advice"], shown["models"]) == (None, [], [])
    assert alice.get(f"{API}/appliances").status_code == 404
    assert alice.post(f"{PAGE}/compute").status_code == 302
    assert "The figures are computed in a moment" in alice.get(PAGE).text
    answer = alice.call("POST", f"{API}/compute")
    assert (answer.status_code, answer.get_json()["state"]) == (202, "waiting")
    with sessions.begin() as session:
        row = session.get_one(FleetAdvice, cast.acme.id)
        row.state, row.message = SimulationState.FAILED, "It took more than 30 minutes."
    assert "It took more than 30 minutes." in alice.get(PAGE).text


def test_advice_is_shown_with_its_evidence_and_dismissed(alice: Browser, advised: str) -> None:
    page = alice.get(PAGE).text
    assert "1 dismissed" in page
    assert "Nothing to advise" in page
    assert alice.post(f"{PAGE}/dismissals/{advised}/restore").status_code == 302
    page = alice.get(PAGE).text
    assert f"Too few {H100} GPUs" in page
    assert "Jobs asked for 448 GPU-hours more than there were, mostly Mon-Sun 09:00-13:00." in page
    assert "One more like dgx-01" in page
    assert 'href="/appliances/new"' in page
    assert alice.post(f"{PAGE}/dismiss", {"advice_key": KEY}).status_code == 302
    assert "1 dismissed" in alice.get(PAGE).text
    assert alice.post(f"{PAGE}/dismiss", {"advice_key": "short:B200"}).status_code == 404


def test_the_api_has_all_figures(alice: Browser, advised: str) -> None:
    shown = alice.get(API).get_json()
    assert [row["dismissal_id"] for row in shown["dismissed"]] == [advised]
    assert alice.call("DELETE", f"{API}/dismissals/{advised}").status_code == 204
    shown = alice.get(API).get_json()
    [advice] = shown["advice"]
    assert (advice["key"], advice["action"], advice["gpu_hours"]) == (KEY, "add", 448)
    [model] = shown["models"]
    assert (model["short_gpu_hours"], model["own_price"]) == (448, None)
    assert shown["additions"][0]["changed"]["waiting_gpu_hours"] == 0.5
    hours = alice.get(f"{API}/hours?gpu_model={H100}&page_size=5&page=2").get_json()
    assert (hours["total"], len(hours["items"])) == (14 * 24, 5)
    assert hours["items"][4] == {
        "at": "2026-02-16T09:00:00+00:00",
        "capacity_gpu_hours": 8,
        "allocated_gpu_hours": 8,
        "idle_gpu_hours": 0,
        "free_gpu_hours": 0,
        "rented_gpu_hours": 0,
        "waiting_gpu_hours": 8,
        "short_gpu_hours": 8,
    }
    assert alice.get(f"{API}/hours?gpu_model=B200").status_code == 404
    assert alice.get(f"{API}/hours").status_code == 422
    created = alice.call("POST", f"{API}/dismissals", {"key": KEY})
    assert created.status_code == 201
    assert created.get_json()["dismissed_until"] == "2026-04-01T12:00:00+00:00"
    assert alice.call("POST", f"{API}/dismissals", {"key": "x"}).status_code == 404


def test_the_week_is_that_of_the_reader(alice: Browser, advised: str) -> None:
    assert advised
    address = f"{PAGE}?gpu_model={H100}&measure=short"
    assert 'title="Mon 09:00: 8.0 GPUs"' in alice.get(address).text
    alice.client.set_cookie("vedette-zone", "Asia/Kolkata")
    # Half past two in the afternoon.
    page = alice.get(address).text
    assert 'title="Mon 09:00: 0.0 GPUs"' in page
    assert 'title="Mon 14:00: 8.0 GPUs"' in page
    assert "Invalid gpu_model" in alice.get(f"{PAGE}?gpu_model=B200").text
    assert "Invalid measure" in alice.get(f"{PAGE}?measure=x").text
    assert "No own appliance with GPUs" in alice.get(PAGE).text


def test_too_little_data_gives_no_advice(
    alice: Browser, sessions: SessionFactory, cast: Cast, advised: str
) -> None:
    assert advised
    names = ("capacity", "allocated", "idle", "rented", "waiting")
    three_days = {name: getattr(SHORT, name)[: 3 * 24] for name in names}
    young = figures(msgspec.structs.replace(SHORT, **three_days), until=MONDAY + 3 * DAY)
    with sessions.begin() as session:
        row = session.get_one(FleetAdvice, cast.acme.id)
        row.figures = msgspec.json.encode(young).decode()
    assert "There are 72 hours of data, and advice needs 168" in alice.get(PAGE).text


def test_others_get_none_of_it(bob: Browser, charlie: Browser, advised: str) -> None:
    for path in (PAGE, API):
        assert bob.get(path).status_code == 403
    assert bob.post(f"{PAGE}/compute").status_code == 403
    assert "Fleet advice" not in bob.get("/jobs").text
    assert charlie.get(API).get_json()["dismissed"] == []
    assert charlie.call("DELETE", f"{API}/dismissals/{advised}").status_code == 404
    assert charlie.get(f"{API}/tenants").status_code == 403


def test_operators_get_the_sums_of_tenants(olivia: Browser, advised: str) -> None:
    assert advised
    page = olivia.get(f"{PAGE}?sort=-gpus").text
    assert "Acme" in page
    assert "448" in page

    [row] = olivia.get(f"{API}/tenants").get_json()["items"]
    assert (row["tenant_name"], row["short_gpu_hours"]) == ("Acme", 448)
    assert olivia.get(API).status_code == 403
