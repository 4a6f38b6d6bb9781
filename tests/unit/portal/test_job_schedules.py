"""Schedules of jobs in the browser and in the API."""

from core.db import SessionFactory
from jobqueue.queue.schedule_runs import submit_due
from tests.cast import BOX, FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.test_job_pages import FORM

PLAN = {**FORM, "schedule": "0 2 * * *", "time_zone": "Europe/Oslo", "secrets": "A=hidden"}


def test_a_schedule_is_created_followed_and_changed(
    bob: Browser, sessions: SessionFactory, clock: FrozenClock
) -> None:
    path = bob.post("/jobs/new", PLAN).headers["Location"]
    assert bob.get("/api/v1/jobs").get_json()["total"] == 0
    assert "No runs yet" in bob.get(path).text
    assert "Europe/Oslo" in bob.get("/jobs/schedules").text
    clock.advance(86400)
    with sessions.begin() as session:
        submit_due(session, box=BOX, now=clock.now)
    assert "missed" in bob.get(path).text
    assert bob.post(f"{path}/run").status_code == 302
    ident = path.rpartition("/")[2]
    first, second = bob.get(f"/api/v1/job-schedules/{ident}/runs").get_json()["items"]
    assert (first["outcome"], first["job_state"]) == ("submitted", "submitted")
    assert (second["outcome"], second["job_id"]) == ("missed", None)
    assert f"/jobs/{first['job_id']}" in bob.get(path).text

    bob.post(f"{path}/disable")
    shown = bob.get(f"/api/v1/job-schedules/{ident}").get_json()
    assert (shown["is_enabled"], shown["next_run_at"]) == (False, None)
    assert (shown["secret_names"], shown["job"]["gpus"]) == (["A"], 1)
    assert "hidden" not in str(shown)
    bob.post(f"{path}/enable")
    body = {"name": "eval", "schedule": "R/2026-01-01T00:00Z/PT6H", "job": shown["job"]}
    changed = bob.call("PATCH", f"/api/v1/job-schedules/{ident}", body).get_json()
    assert (changed["name"], changed["is_enabled"]) == ("eval", True)
    assert bob.post(f"{path}/delete").status_code == 302
    assert bob.get(path).status_code == 404


def test_errors_of_a_schedule_are_shown_beside_their_fields(bob: Browser) -> None:
    answer = bob.post("/jobs/new", {**PLAN, "schedule": "daily", "time_zone": "Mars"})
    assert answer.status_code == 422
    for field in ("schedule", "time_zone"):
        assert f'id="{field}-error"' in answer.text


def test_a_schedule_is_edited_in_the_browser_and_in_part(bob: Browser, alice: Browser) -> None:
    path = bob.post("/jobs/new", PLAN).headers["Location"]
    api = f"/api/v1/job-schedules/{path.rpartition('/')[2]}"
    shown = bob.get(api).get_json()
    assert [at[11:] for at in shown["next_runs_at"]] == ["02:00:00+01:00"] * 5
    assert bob.get(path).text.count("02:00 CET") == 5

    form = bob.get(f"{path}/edit").text
    assert 'value="0 2 * * *"' in form
    assert bob.post(f"{path}/edit", {**PLAN, "schedule": ""}).status_code == 422
    changes = {**PLAN, "schedule": "30 4 * * *", "image": "registry.example/train:2", "secrets": ""}
    assert bob.post(f"{path}/edit", changes).headers["Location"] == path
    saved = bob.get(api).get_json()
    assert (saved["schedule"], saved["job"]["image"]) == ("30 4 * * *", changes["image"])
    assert saved["secret_names"] == ["A"]
    assert "edit" not in alice.get(path).text.partition("<main")[2].partition("Run now")[0]

    part = {"time_zone": "UTC", "job": {"gpus": 2}}
    changed = bob.call("PATCH", api, part).get_json()
    assert (changed["time_zone"], changed["schedule"]) == ("UTC", "30 4 * * *")
    assert (changed["job"]["gpus"], changed["job"]["image"]) == (2, changes["image"])
    wrong = bob.call("PATCH", api, {"schedule": "daily", "job": {"cpus": -1}})
    assert wrong.get_json()["errors"].keys() >= {"schedule", "cpus"}
    assert alice.call("PATCH", api, part).status_code == 409
