"""The public API of the marketplace: its documents, caching and limits."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from core.db import SessionFactory
from core.rate_limits import BURST_SECONDS
from core.settings import ServerSettings
from portal.app import create_portal
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.market import Market
from timeseries.store import Store

PREFIX = "/api/public/v1"
PATHS = ("/offers", "/capacity", "/models", "/regions", "/status")


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


def read(client: FlaskClient, path: str) -> Any:  # noqa: ANN401 - JSON
    answer = client.get(f"{PREFIX}{path}")
    assert answer.status_code == 200, answer.text
    return answer.json


@pytest.mark.usefixtures("market")
def test_offers_are_listed_with_exact_prices(client: FlaskClient) -> None:
    answer = read(client, "/offers?gpu_model=h100&min_free_gpus=8&facts=iso27001&max_price=3.10")
    assert answer["total"] == 1
    entry = answer["items"][0]
    assert (entry["offer_name"], entry["provider_name"]) == ("H100 in Lyon", "Acme")
    assert (entry["gpus"], entry["free_gpus"]) == (8, 8)
    assert {entry[f"{name}price"].rstrip("0") for name in ("", "lowest_", "highest_")} == {
        "3.1",
        "1.9",
    }
    assert read(client, "/offers?max_price=3.09")["total"] == 0


def test_an_offer_has_its_terms(client: FlaskClient, market: Market) -> None:
    answer = read(client, f"/offers/{market.offer.id}")
    assert answer["terms"]["price"] == "2.45"
    assert len(answer["terms_hash"]) == 64
    assert "appliance_ids" not in answer
    assert client.get(f"{PREFIX}/offers/x").status_code == 404


@pytest.mark.usefixtures("market")
def test_capacity_models_and_regions(client: FlaskClient) -> None:
    capacity = read(client, "/capacity")
    assert capacity["currency"] == "EUR"
    assert capacity["items"][0]["region"] == "eu-west"
    assert read(client, "/models")["items"][0]["regions"] == ["eu-west"]
    assert read(client, "/regions")["items"] == ["eu-west"]


@pytest.mark.usefixtures("market")
def test_nothing_names_a_tenant_a_user_or_an_appliance(client: FlaskClient, cast: Cast) -> None:
    for path in PATHS:
        text = client.get(f"{PREFIX}{path}").text
        for secret in (cast.acme.id, cast.alice.email, "h100-in-lyon"):
            assert secret not in text, path


@pytest.mark.usefixtures("market")
def test_answers_may_be_cached(client: FlaskClient) -> None:
    for path in PATHS:
        answer = client.get(f"{PREFIX}{path}")
        assert answer.headers["Cache-Control"] == "public, max-age=15"
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert "Set-Cookie" not in answer.headers
        tag = {"If-None-Match": answer.headers["ETag"]}
        assert client.get(f"{PREFIX}{path}", headers=tag).status_code == 304


@pytest.mark.parametrize(
    "query", ["rang=1", "page=0", "page_size=101", "max_price=x", "min_free_gpus=-1", "sort=name"]
)
def test_wrong_parameters_are_refused(client: FlaskClient, query: str) -> None:
    answer = client.get(f"{PREFIX}/offers?{query}")
    assert answer.status_code == 422
    assert answer.json is not None
    assert answer.json["errors"]


def test_the_document_is_of_the_public_api_alone(client: FlaskClient) -> None:
    document = read(client, "/openapi.json")
    assert set(document["paths"]) == {f"{PREFIX}{path}" for path in (*PATHS, "/offers/{offer_id}")}
    assert "security" not in document
    private = client.get("/api/v1/openapi.json").json
    assert private is not None
    assert not any(path.startswith(PREFIX) for path in private["paths"])


def test_the_public_api_has_a_limit_of_its_own(
    settings: ServerSettings, sessions: SessionFactory, store: Store
) -> None:
    tight = replace(settings, public_requests_per_second_per_address=0.5)
    client = create_portal(tight, sessions=sessions, store=store, clock=FrozenClock()).test_client()
    burst = int(0.5 * BURST_SECONDS)
    answers = [client.get(f"{PREFIX}/regions") for _ in range(burst + 1)]
    assert [answer.status_code for answer in answers] == [200] * burst + [429]
    assert answers[-1].headers["Retry-After"]
    assert client.get("/market").status_code == 200


def test_operators_have_a_document_of_their_own(alice: Browser, olivia: Browser) -> None:
    path = "/api/v1/operator-openapi.json"
    assert alice.get(path).status_code == 403
    document = olivia.get(path).json
    assert document is not None
    assert "/api/v1/access-points" in document["paths"]
    assert "/api/v1/jobs" not in document["paths"]


def test_both_sides_read_how_a_contract_was_kept(
    alice: Browser, charlie: Browser, bob: Browser, market: Market
) -> None:
    prefix = "/api/v1/market/records"
    for browser in (alice, charlie):
        answer = browser.get(f"{prefix}/contracts/{market.contract.id}")
        assert answer.json == {"breaches": [], "bookings": []}
    assert charlie.get(f"{prefix}/contracts/x").status_code == 404
    earnings = alice.get(f"{prefix}/earnings").json
    assert earnings is not None
    assert earnings["currency"] == "EUR"
    # On 2 March, the lines of yesterday and of 40 days before.
    totals = [(month["start"][:7], Decimal(month["total"])) for month in earnings["months"]]
    assert totals == [("2026-03", Decimal(11)), ("2026-01", Decimal("24.50"))]
    assert bob.get(f"{prefix}/earnings").status_code == 403
