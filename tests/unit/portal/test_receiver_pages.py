"""Receivers in forms and the API: webhooks, paging services, and what is refused."""

import re

import pytest

from tests.unit.portal.conftest import Browser


@pytest.mark.usefixtures("cast")
def test_the_key_of_a_webhook_is_shown_once(bob: Browser) -> None:
    form: dict[str, object] = {
        "name": "Pager",
        "kind": "webhook",
        "target": "https://hooks.acme.example/x",
    }
    made = bob.post("/receivers", form)
    assert 'aria-label="Signing key"' in made.text
    page = bob.get("/receivers").text
    assert "hooks.acme.example" in page
    assert 'aria-label="Signing key"' not in page


@pytest.mark.usefixtures("cast")
def test_a_webhook_into_the_portals_own_network_is_refused_by_page_and_api(bob: Browser) -> None:
    asked: dict[str, object] = {"name": "x", "kind": "webhook", "target": "http://127.0.0.1:6379/"}
    page = bob.post("/receivers", asked)
    assert page.status_code == 422
    assert "private network" in page.text
    answer = bob.call("POST", "/api/v1/receivers", json=asked)
    assert answer.status_code == 422


@pytest.mark.usefixtures("cast")
def test_a_paging_receiver_is_added_and_changed_without_its_key_being_shown(bob: Browser) -> None:
    key = "0123456789abcdef0123456789abcdef"
    form: dict[str, object] = {"name": "On call", "kind": "pagerduty", "target": key}
    form |= {"region": "eu", "sends_resolved": "y"}
    assert bob.post("/receivers", form).status_code == 302
    assert "https://events.eu.pagerduty.com" in bob.get("/receivers").text
    (shown,) = bob.get("/api/v1/receivers").get_json()["items"]
    assert (shown["region"], shown["sends_resolved"]) == ("eu", True)
    page = bob.get(f"/receivers/{shown['id']}").text
    assert key not in page + str(shown)
    assert re.search(r'<option selected value="eu"', page)
    changed = bob.post(f"/receivers/{shown['id']}", {"name": "On call", "region": "us"})
    assert changed.status_code == 302
    after = bob.get(f"/api/v1/receivers/{shown['id']}").get_json()
    assert (after["region"], after["sends_resolved"]) == ("us", False)
    body = {"region": "eu", "sends_resolved": True}
    patched = bob.call("PATCH", f"/api/v1/receivers/{shown['id']}", json=body).get_json()
    assert (patched["target"], patched["sends_resolved"]) == (
        "https://events.eu.pagerduty.com",
        True,
    )


@pytest.mark.usefixtures("cast")
def test_the_api_shows_a_test_message_that_it_queued(bob: Browser) -> None:
    body = {"name": "Ops", "kind": "email", "target": "ops@acme.example"}
    receiver = bob.call("POST", "/api/v1/receivers", json=body).get_json()
    answer = bob.call("POST", f"/api/v1/receivers/{receiver['id']}/test")
    assert answer.status_code == 200
    assert answer.get_json()["receiver_name"] == "Ops"
    assert answer.get_json()["state"] == "waiting"


def test_a_receiver_that_is_no_address_is_refused(bob: Browser) -> None:
    form: dict[str, object] = {"name": "Pager", "kind": "email", "target": "nobody"}
    answer = bob.post("/receivers", form)
    assert answer.status_code == 422
    assert 'class="vd-error"' in answer.text
    assert 'value="nobody"' in answer.text
