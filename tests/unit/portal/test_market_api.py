"""The marketplace by REST: acme offers, globex rents, olivia operates."""

from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from core.db import SessionFactory
from core.settings import ServerSettings
from portal.app import create_portal
from tests.cast import Cast, FrozenClock
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.portal.conftest import Browser, MakeToken, usual_settings
from timeseries.store import Store

API = "/api/v1/market"
TERMS: dict[str, Any] = {"currency": "EUR", "price": "2.50", "max_seconds": "2h"}
OFFER: dict[str, Any] = {"name": "H100s", "appliance_ids": ["dgx-01"], "terms": TERMS}


def call(browser: Browser, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON of a successful answer."""
    answer = browser.call(method, f"{API}{path}", body)
    assert answer.status_code < 300, answer.text
    return answer.json


def refused(browser: Browser, path: str, body: object = None) -> tuple[int, Any]:
    answer = browser.call("POST", f"{API}{path}", body)
    return answer.status_code, answer.json


@pytest.fixture
def offer(
    sessions: SessionFactory, cast: Cast, alice: Browser, charlie: Browser, olivia: Browser
) -> dict[str, Any]:
    """A published offer of acme, as its provider sees it."""
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
    for browser, tenant, side in (
        (alice, cast.acme, "provider"),
        (charlie, cast.globex, "customer"),
    ):
        call(browser, "POST", "/account/request", {"side": side})
        admission = {"side": side, "state": "active"}
        call(olivia, "POST", f"/accounts/{tenant.id}/admission", admission)
    made = call(alice, "POST", "/offers", OFFER)
    published: dict[str, Any] = call(alice, "POST", f"/offers/{made['id']}/publish")
    return published


def take(charlie: Browser, offer: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    shown = call(charlie, "GET", f"/catalogue/{offer['id']}")
    body = {"offer_id": offer["id"], "terms_hash": shown["terms_hash"]}
    return call(charlie, "POST", "/contracts", body)


def test_the_catalogue_has_what_is_published(charlie: Browser, offer: dict[str, Any]) -> None:
    query = "gpu_model=H100&max_price=2.5&min_free_gpus=8&sort=price&is_open=true"
    (entry,) = call(charlie, "GET", f"/catalogue?{query}")["items"]
    assert (entry["offer_id"], entry["price"]) == (offer["id"], "2.5")
    assert (entry["free_gpus"], entry["max_seconds"]) == (8, 7200)
    (capacity,) = call(charlie, "GET", "/capacity")["items"]
    assert (capacity["gpus"], capacity["free_gpus"]) == (8, 8)
    shown = call(charlie, "GET", f"/catalogue/{offer['id']}")
    assert shown["terms_hash"] == offer["terms_hash"]
    assert shown["terms"]["price"] == "2.5"
    assert "appliance_ids" not in shown
    assert call(charlie, "GET", "/catalogue?text=nothing")["items"] == []


@pytest.mark.parametrize("price", ["-1", "1e30", "0.000000001", "NaN", "x", "1e999999999"])
def test_a_price_that_cannot_be_is_refused(charlie: Browser, price: str) -> None:
    assert charlie.get(f"{API}/catalogue?max_price={price}").status_code == 422


def test_an_offer_is_changed_in_part(alice: Browser, offer: dict[str, Any]) -> None:
    path = f"/offers/{offer['id']}"
    changed = call(alice, "PATCH", path, {"terms": {"price": "3"}, "needs_approval": True})
    assert (changed["terms"]["price"], changed["terms"]["max_seconds"]) == ("3", 7200)
    assert (changed["needs_approval"], changed["name"]) == (True, "H100s")
    (listed,) = call(alice, "GET", "/offers?sort=-updated_at")["items"]
    assert listed == changed
    (appliance,) = call(alice, "GET", f"{path}/appliances")["items"]
    assert (appliance["name"], appliance["price"]) == ("dgx-01", "3")
    assert call(alice, "POST", f"{path}/pause")["state"] == "paused"
    assert call(alice, "POST", f"{path}/withdraw")["state"] == "withdrawn"


@pytest.mark.usefixtures("offer")
def test_all_errors_of_an_offer_are_named_at_once(alice: Browser) -> None:
    wrong = {
        **OFFER,
        "terms": {"currency": "USD", "price": "1000001", "hourly_prices": [{"days": [0]}]},
    }
    status, answer = refused(alice, "/offers", wrong)
    assert status == 422
    assert answer["errors"].keys() == {
        "terms.hourly_prices.0.from_hour",
        "terms.hourly_prices.0.until_hour",
        "terms.hourly_prices.0.price",
    }
    wrong["terms"].pop("hourly_prices")
    status, answer = refused(alice, "/offers", wrong)
    assert answer["errors"].keys() == {"name", "terms.currency", "terms.price"}


def test_a_taken_offer_is_a_contract_of_both_sides(
    alice: Browser, charlie: Browser, olivia: Browser, offer: dict[str, Any]
) -> None:
    contract = take(charlie, offer)
    assert (contract["state"], contract["side"]) == ("active", "customer")
    assert contract["versions"][0]["accepted_by"] == "charlie@globex.example"
    path = f"/contracts/{contract['id']}"
    assert call(alice, "GET", path) == {**contract, "side": "provider"}
    assert call(olivia, "GET", path)["side"] is None
    assert call(alice, "GET", "/contracts?side=customer")["items"] == []
    assert len(call(alice, "GET", "/contracts?side=provider&sort=offer_name")["items"]) == 1


def test_terms_that_changed_are_a_conflict_that_says_how(
    alice: Browser, charlie: Browser, offer: dict[str, Any]
) -> None:
    call(alice, "PATCH", f"/offers/{offer['id']}", {"terms": {"price": "3"}})
    body = {"offer_id": offer["id"], "terms_hash": offer["terms_hash"]}
    status, answer = refused(charlie, "/contracts", body)
    assert (status, answer["code"]) == (409, "terms_changed")
    assert answer["message"].startswith("The terms have changed: price is 3, was 2.5.")


def test_a_negotiation(alice: Browser, charlie: Browser, offer: dict[str, Any]) -> None:
    proposal = {"offer_id": offer["id"], "terms": {**TERMS, "price": "2"}, "note": "For a year"}
    contract = call(charlie, "POST", "/contracts/propose", proposal)
    path = f"/contracts/{contract['id']}"
    counter = {"terms": {**TERMS, "price": "2.2", "notice_days": 1}}
    countered = call(alice, "POST", f"{path}/versions", counter)
    first, second = countered["versions"]
    assert (first["state"], first["note"], second["state"]) == (
        "declined",
        "For a year",
        "proposed",
    )
    accepted = {"terms_hash": first["terms_hash"]}
    status, answer = refused(charlie, f"{path}/versions/2/accept", accepted)
    assert status == 409
    assert "price is 2.2, was 2" in answer["message"]
    accepted = {"terms_hash": second["terms_hash"]}
    assert call(charlie, "POST", f"{path}/versions/2/accept", accepted)["state"] == "active"
    call(alice, "POST", f"{path}/versions", counter)
    call(alice, "POST", f"{path}/versions/3/withdraw")
    call(alice, "POST", f"{path}/versions", counter)
    states = [
        row["state"] for row in call(charlie, "POST", f"{path}/versions/4/decline")["versions"]
    ]
    assert states == ["declined", "accepted", "withdrawn", "declined"]
    assert call(charlie, "POST", f"{path}/notice")["state"] == "noticed"
    status, answer = refused(alice, f"{path}/end")
    assert (status, answer["message"]) == (409, "The contract ends at 2026-03-03 12:00 UTC.")


def test_the_operator_ends_a_contract(
    charlie: Browser, olivia: Browser, offer: dict[str, Any]
) -> None:
    path = f"/contracts/{take(charlie, offer)['id']}/terminate"
    assert refused(charlie, path, {"reason": "I want to"})[0] == 403
    assert refused(olivia, path, {"reason": " "})[0] == 422
    assert call(olivia, "POST", path, {"reason": "Fraud"})["state"] == "ended"


@pytest.mark.usefixtures("offer")
def test_accounts(alice: Browser, olivia: Browser, cast: Cast) -> None:
    changed = call(alice, "PATCH", "/account", {"legal_name": "Acme AS", "country": "no"})
    assert call(alice, "GET", "/account") == changed
    assert (changed["legal_name"], changed["country"]) == ("Acme AS", "NO")
    path = f"/accounts/{cast.acme.id}"
    charged = call(olivia, "PATCH", path, {"tax_percent": "25", "is_prepaid": True})
    assert (charged["tax_percent"], charged["is_prepaid"]) == ("25", True)
    assert call(olivia, "GET", path) == charged
    names = [row["public_name"] for row in call(olivia, "GET", "/accounts")["items"]]
    assert names == ["Acme", "Globex"]


def test_a_token_of_the_market_suffices(
    app: Flask, charlie: Browser, offer: dict[str, Any]
) -> None:
    made = charlie.call("POST", "/api/v1/tokens", {"name": "rent", "scopes": ["market"]})
    assert made.json is not None
    headers = {"Authorization": f"Bearer {made.json['secret']}"}
    body = {"offer_id": offer["id"], "terms_hash": offer["terms_hash"]}
    answer = app.test_client().post(f"{API}/contracts", json=body, headers=headers)
    assert answer.status_code == 201


@pytest.mark.own_app
def test_everything_is_404_while_the_marketplace_is_off(
    *,
    sessions: SessionFactory,
    store: Store,
    clock: FrozenClock,
    tmp_path: Path,
    cast: Cast,
    make_token: MakeToken,
) -> None:
    settings = ServerSettings(
        data_dir=tmp_path, public_url=usual_settings(tmp_path).resolved_public_url
    )
    client = create_portal(settings, sessions=sessions, store=store, clock=clock).test_client()
    headers = {"Authorization": f"Bearer {make_token(cast.alice)}"}
    for path in ("account", "accounts", "offers", "offers/x", "catalogue", "capacity", "contracts"):
        answer = client.get(f"{API}/{path}", headers=headers)
        assert answer.status_code == 404, path
    assert client.post(f"{API}/offers", headers=headers, json=OFFER).status_code == 404
