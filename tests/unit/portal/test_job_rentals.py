"""Jobs that pay for rented appliances: the form, the REST API, and what pages show of them."""

import re

import pytest

from core.db import SessionFactory
from jobqueue.models import Job
from tests.cast import NOON, Cast
from tests.unit.jobqueue.builders import add_appliance, dispatch
from tests.unit.jobqueue.rental_builders import grant, offer
from tests.unit.portal.conftest import Browser

FORM = {"name": "train", "image": "python:3.13", "kind": "batch", "gpus": "1", "cpus": "1"}
FORM |= {"memory": "1 GiB", "container_policy": "restricted"}


@pytest.fixture
def rented(sessions: SessionFactory, cast: Cast) -> str:
    """The id of an appliance of Globex's that Acme rents."""
    with sessions.begin() as session:
        row = add_appliance(session, cast.globex, "globex-dgx")
        offer(session, [row])
        grant(session, cast.acme, cast.globex, region="eu-north")
        return row.id


def test_the_form_without_contracts_has_no_word_of_rentals(bob: Browser, charlie: Browser) -> None:
    assert "max_gpu_hour_price" not in bob.get("/jobs/new").text
    assert bob.post("/jobs/new", FORM).status_code == 302
    assert "max_gpu_hour_price" not in charlie.get("/jobs/new").text


@pytest.mark.usefixtures("rented")
def test_the_form_shows_the_contracts_and_submits_and_copies_a_job(bob: Browser) -> None:
    text = bob.get("/jobs/new").text
    assert "Contracts: pool for EUR 2.50 an hour in eu-north." in text
    assert "In EUR. Runs on offers up to this price" in text
    wishes = "region=eu-north\ncompliance=gdpr"
    fields = {"max_gpu_hour_price": "12.40", "rental": wishes}
    answer = bob.post("/jobs/new", FORM | fields)
    assert answer.status_code == 302, answer.text
    job = bob.get("/api/v1/jobs").get_json()["items"][0]
    assert job["max_gpu_hour_price"] == 12.4
    assert job["rental"] == {"region": "eu-north", "compliance": "gdpr"}
    copied = bob.get(f"/jobs/new?copy={job['id']}").text
    assert re.search(r'name="max_gpu_hour_price"[^>]* value="12.4"', copied)
    assert "region=eu-north\ncompliance=gdpr</textarea>" in copied
    page = bob.get(f"/jobs/{job['id']}").text
    assert "<dt>Highest price of a GPU-hour</dt><dd><div>EUR 12.40</div>" in page
    assert "<dt>Rental requirements</dt><dd><div>region=eu-north</div>" in page


@pytest.mark.usefixtures("rented")
def test_the_form_shows_what_rented_gpus_cost_up_to_the_highest_price(bob: Browser) -> None:
    costs = {
        price: bob.post("/jobs/new/fit", FORM | {"gpus": "2", "max_gpu_hour_price": price}).json
        for price in ("2.50", "2.49", "x", "")
    }
    assert {price: answer and answer["cost"] for price, answer in costs.items()} == {
        "2.50": "From EUR 5.00 an hour on rented appliances (pool).",
        **dict.fromkeys(("2.49", "x", ""), ""),
    }


@pytest.mark.usefixtures("rented")
def test_errors_are_beside_the_fields(bob: Browser) -> None:
    answer = bob.post("/jobs/new", FORM | {"max_gpu_hour_price": "1", "rental": "availability=x"})
    assert answer.status_code == 422
    assert "availability is &#39;x&#39;; enter a number from 0 to 100." in answer.text


def test_a_preview_and_a_waiting_job_name_the_offer_alone(
    bob: Browser, sessions: SessionFactory, rented: str
) -> None:
    preview = bob.post("/jobs/new", FORM | {"max_gpu_hour_price": "10", "check": "1"})
    assert "pool can run it for 2.50 an hour for each GPU." in preview.text
    request = {"name": "x", "image": "python:3.13", "gpus": 1, "max_gpu_hour_price": 10}
    headers = {"X-CSRFToken": bob.token()}
    tried = bob.client.post("/api/v1/jobs/dry-run", json=request, headers=headers)
    assert tried.get_json()["appliance_id"] is None
    made = bob.client.post(
        "/api/v1/jobs", json=request | {"max_gpu_hour_price": 1}, headers=headers
    )
    with sessions.begin() as session:
        dispatch(session, now=NOON)
    ident = made.get_json()["id"]
    pending = bob.get(f"/api/v1/jobs/{ident}/pending").get_json()
    [rejected] = pending["rejections"]
    assert rejected["code"] == "price_too_high"
    assert rejected["examples"] == [
        {
            "appliance_id": "",
            "appliance": "offer pool",
            "fact": "2.50 an hour is above the highest price 1.00",
        }
    ]
    page = bob.get(f"/jobs/{ident}").text
    assert "<td>offer pool</td><td>2.50 an hour is above the highest price 1.00</td>" in page
    for text in (preview.text, tried.text, page, str(pending)):
        assert rented not in text
        assert "globex-dgx" not in text


def test_the_placement_of_an_attempt_names_the_offer_alone(
    bob: Browser, sessions: SessionFactory, rented: str
) -> None:
    made = bob.post("/jobs/new", FORM | {"max_gpu_hour_price": "10"})
    assert made.status_code == 302
    with sessions.begin() as session:
        dispatch(session, now=NOON)
    with sessions() as session:
        [job] = session.query(Job).all()
        assert job.attempt is not None
        assert job.attempt.appliance_id == rented
        assert "globex-dgx" not in str(job.attempt.placement)
        assert rented not in str(job.attempt.placement)
