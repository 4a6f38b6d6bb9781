"""Tenants, users, settings and appliances in the browser."""

import re

import pytest

from tests.cast import PASSWORD, Cast
from tests.unit.portal.conftest import Browser, portal_in
from tests.unit.portal.world import World

NEW_PASSWORD = "staple battery horse"


def test_a_suspended_tenant_is_blocked_immediately(
    olivia: Browser, alice: Browser, cast: Cast
) -> None:
    olivia.post(f"/tenants/{cast.acme.id}/state", {"move": "suspend"})
    assert alice.get("/jobs").status_code == 302
    olivia.post(f"/tenants/{cast.acme.id}/state", {"move": "activate"})
    assert alice.sign_in(cast.alice.email).status_code == 302


@pytest.mark.usefixtures("cast")
def test_a_slug_in_use_is_reported_beside_its_field(olivia: Browser) -> None:
    taken = olivia.post("/tenants", {"name": "Acme", "slug": ""})
    assert taken.status_code == 409
    assert "another tenant" in taken.text


def test_bob_manages_no_users(bob: Browser) -> None:
    assert bob.get("/users").status_code == 403


def test_a_deactivated_user_loses_the_session(alice: Browser, bob: Browser, cast: Cast) -> None:
    alice.post(f"/users/{cast.bob.id}/active", {"is_active": "0", "next": "/users"})
    assert bob.get("/jobs").status_code == 302


def test_alice_cannot_deactivate_herself(alice: Browser, cast: Cast) -> None:
    alice.post(f"/users/{cast.alice.id}/active", {"is_active": "0"})
    assert alice.get("/jobs").status_code == 200


def test_a_changed_password_keeps_this_browser_and_signs_out_the_others(
    alice: Browser, nobody: Browser, cast: Cast
) -> None:
    nobody.sign_in(cast.alice.email)
    form: dict[str, object] = {
        "current": PASSWORD,
        "new": NEW_PASSWORD,
        "repeated": NEW_PASSWORD,
    }
    assert alice.post("/settings/password", form).status_code == 302
    assert alice.get("/jobs").status_code == 200
    assert nobody.get("/jobs").status_code == 302


def test_a_wrong_current_password_is_reported_beside_its_field(alice: Browser) -> None:
    form: dict[str, object] = {"current": "no", "new": NEW_PASSWORD, "repeated": NEW_PASSWORD}
    answer = alice.post("/settings/password", form)
    assert answer.status_code == 422
    assert 'id="current-error"' in answer.text


def test_an_api_token_is_shown_once_and_revoked(alice: Browser) -> None:
    made = alice.post("/settings/tokens", {"name": "laptop"}).text
    secret = re.search(r'value="(vdt_[^"]+)"', made)
    assert secret is not None
    headers = {"Authorization": f"Bearer {secret[1]}"}
    assert alice.get("/api/v1/me", headers=headers).status_code == 200
    page = alice.get("/settings").text
    assert secret[1] not in page
    action = re.search(r'action="(/settings/tokens/[^"]+/revoke)"', page)
    assert action is not None
    alice.post(action[1])
    assert alice.get("/api/v1/me", headers=headers).status_code == 401


def test_a_token_is_made_with_scopes_and_an_end_and_its_use_is_shown(alice: Browser) -> None:
    form: dict[str, object] = {"name": "ci", "scopes": ["read", "jobs"], "lifetime": "90"}
    made = re.search(r'value="(vdt_[^"]+)"', alice.post("/settings/tokens", form).text)
    assert made is not None
    headers = {"Authorization": f"Bearer {made[1]}"}
    assert alice.get("/api/v1/jobs", headers=headers).status_code == 200
    assert alice.get("/api/v1/users", headers=headers).status_code == 403
    assert alice.get("/jobs", headers=headers).status_code == 403
    portal_in(alice.client.application).sightings.write()
    page = alice.get("/settings").text
    assert "read, jobs" in page
    assert "2026-05-31" in page  # 90 days after the cast's noon of March 2
    assert "from 127.0.0.1" in page


def test_bob_adds_no_appliance(bob: Browser) -> None:
    assert bob.get("/appliances/new").status_code == 403
    assert "Add appliance" not in bob.get("/appliances").text


def test_the_appliance_page_shows_the_job_of_each_gpu(bob: Browser, world: World) -> None:
    text = bob.get(f"/appliances/{world.ids['appliance_id']}").text
    assert "GPU 0" in text
    assert f'href="/jobs/{world.ids["job_id"]}"' in text
    assert "free" in text


def test_an_appliance_is_drained_and_undrained(alice: Browser, world: World) -> None:
    path = f"/appliances/{world.ids['appliance_id']}"
    assert "train" in alice.get(f"{path}/drain").text
    alice.post(f"{path}/drain", {"wait": "1"})
    text = alice.get(path).text
    assert 'max="1" value="0"' in text
    progress = alice.get(f"/api/v1{path}/drain").json
    assert progress is not None
    assert (progress["job_count"], progress["jobs_left"], progress["is_done"]) == (1, 1, False)
    assert [job["name"] for job in progress["jobs"]] == ["train"]
    assert progress["deadline_at"] > progress["drained_at"]
    alice.post(f"{path}/undrain")
    assert alice.get(f"/api/v1{path}").json["drained_at"] is None  # type: ignore[index] # JSON


def test_a_revoked_appliance_leaves_the_list(alice: Browser, world: World) -> None:
    alice.post(f"/appliances/{world.ids['appliance_id']}/revoke")
    assert 'class="vd-empty"' in alice.get("/appliances").text


@pytest.mark.usefixtures("world")
def test_search_and_state_filter_the_appliances(bob: Browser) -> None:
    assert "dgx-01" in bob.get("/appliances?search=DGX&status=online").text
    assert 'class="vd-empty"' in bob.get("/appliances?search=nothing").text
    assert 'class="vd-empty"' in bob.get("/appliances?status=lost").text
