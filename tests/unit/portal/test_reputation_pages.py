"""Reputation and ratings on pages and in the REST API."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from core.db import SessionFactory
from marketplace.reputation.refresh import refresh_reputations
from tests.cast import Cast, FrozenClock
from tests.unit.marketplace.attempts import LOST, end_attempts
from tests.unit.portal.conftest import Browser
from tests.unit.portal.market import Market
from timeseries.store import Store

API = "/api/v1/market/reputation"


Refresh = Callable[[], int]


@pytest.fixture
def refresh(sessions: SessionFactory, store: Store, clock: FrozenClock) -> Refresh:
    """Return what brings reputations up to date."""
    half_life = timedelta(days=60)
    return lambda: refresh_reputations(sessions, store, now=clock.now, half_life=half_life)


@pytest.fixture
def market(
    market: Market, sessions: SessionFactory, cast: Cast, clock: FrozenClock, refresh: Refresh
) -> Market:
    """Globex ran eight attempts under its contract, of which acme lost three."""
    with sessions.begin() as session:
        at = clock.now - timedelta(hours=2)
        end_attempts(session, cast, market.contract, *([LOST] * 3), *([{}] * 5), at=at)
    refresh()
    return market


@pytest.mark.usefixtures("market")
def test_a_provider_sees_its_evidence_what_it_costs_and_what_would_raise_it(
    alice: Browser,
) -> None:
    assert "Reputation" in alice.get("/provider").text
    page = alice.get("/provider/reputation").text
    assert "3 attempts of a customer on 2026-03-02" in page
    assert "Appliance lost" in page
    assert "reachable at least 99.9 % of the time raise availability from 50" in page
    assert "Globex" not in page
    filtered = alice.get("/provider/reputation?dimension=jobs&kind=ran").text
    assert "5 attempts of a customer" in filtered
    assert "3 attempts of a customer" not in filtered
    assert "No evidence of this kind" in alice.get("/provider/reputation?dimension=checks").text
    assert "Invalid kind" in alice.get("/provider/reputation?kind=lies").text
    assert "fewer pages" in alice.get("/provider/reputation?page=9").text


def test_a_customer_rates_and_the_provider_reads_it_without_a_name(
    alice: Browser,
    charlie: Browser,
    market: Market,
    refresh: Refresh,
) -> None:
    path = f"/contracts/{market.contract.id}"
    assert f'href="{path}/rate"' in charlie.get(path).text
    assert "Choose a rating" in charlie.post(f"{path}/rate", {"month": "2026-03"}).text
    long = charlie.post(f"{path}/rate", {"month": "2026-03", "stars": "2", "comment": "x" * 1001})
    assert "Use at most 1,000 characters" in long.text
    charlie.post(f"{path}/rate", {"month": "2026-03", "stars": "2", "comment": "slow <disks>"})
    page = charlie.get(path).text
    assert "2 of 5 stars" in page
    assert "slow &lt;disks&gt;" in page
    assert 'selected value="2"' in charlie.get(f"{path}/rate").text
    refresh()
    page = alice.get("/provider/reputation?dimension=satisfaction").text
    assert "slow &lt;disks&gt;" in page
    assert "Globex" not in page
    assert "charlie" not in page.lower()
    assert "Your ratings" not in alice.get(path).text
    assert alice.get(f"{path}/rate").status_code == 403


def test_everybody_sees_the_public_part_on_offers(
    nobody: Browser, charlie: Browser, market: Market
) -> None:
    for browser, area in ((nobody, "/market"), (charlie, "/rent")):
        page = browser.get(f"{area}/offers/{market.offer.id}").text
        assert "Reputation of Acme" in page
        assert "most likely" in page
        assert "attempts of a customer" not in page
        assert "little evidence" in browser.get(area).text


def test_operators_see_any_provider_and_others_none(
    olivia: Browser, charlie: Browser, cast: Cast, market: Market
) -> None:
    path = f"/console/market/accounts/{cast.acme.id}/reputation"
    assert "Reputation of Acme" in olivia.get(path).text
    assert charlie.get(path).status_code in {403, 404}
    query = f"?tenant_id={cast.acme.id}"
    assert olivia.get(f"{API}{query}").status_code == 200
    for address in ("", "/evidence", "/history"):
        assert charlie.get(f"{API}{address}{query}").status_code == 404
    assert market.offer.id


def test_the_rest_api_has_the_same(
    alice: Browser, bob: Browser, charlie: Browser, market: Market
) -> None:
    shown = alice.get(API).json
    assert shown is not None
    assert shown["overall"]["low"] < shown["overall"]["mean"] < shown["overall"]["high"]
    assert [cause["kind"] for cause in shown["causes"]] == ["appliance_lost"]
    assert {row["dimension"] for row in shown["improvements"]} >= {"jobs", "availability"}
    evidence = bob.get(f"{API}/evidence?kind=appliance_lost").json
    assert evidence is not None
    assert [(item["good"], item["dimension"]) for item in evidence["items"]] == [(0.0, "jobs")]
    history = alice.get(f"{API}/history").json
    assert history is not None
    assert history["items"][-1]["day_at"].startswith("2026-03-02")
    public = charlie.get(f"{API}/offers/{market.offer.id}").json
    assert public is not None
    assert public["score"] == pytest.approx(shown["score"], abs=1e-3)
    assert charlie.get(f"{API}/offers/x").status_code == 404
    path = f"{API}/contracts/{market.contract.id}/ratings"
    assert charlie.call("POST", path, {"stars": 9}).status_code == 422
    assert charlie.call("POST", path, {"stars": 4, "month": "2025-01"}).status_code == 422
    assert charlie.call("POST", path, {"stars": 4}).status_code == 201
    ratings = charlie.get(path).json
    assert ratings is not None
    assert [(row["month"], row["stars"]) for row in ratings["items"]] == [("2026-03", 4)]
    assert alice.get(path).status_code == 403
    assert alice.call("POST", path, {"stars": 1}).status_code == 403
