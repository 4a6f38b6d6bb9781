"""Arrays, dependencies and idle limits of jobs, in the form, in lists and on the page."""

import pytest

from core.db import SessionFactory
from tests.cast import Cast, FrozenClock
from tests.unit.jobqueue.builders import dispatch
from tests.unit.portal.conftest import Browser
from tests.unit.portal.test_job_pages import FORM
from tests.unit.portal.world_parts import add_appliance


@pytest.fixture(autouse=True)
def appliance(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> None:
    with sessions.begin() as session:
        add_appliance(session, cast, "dgx-01", now=clock.now)


def place(sessions: SessionFactory, clock: FrozenClock) -> None:
    with sessions.begin() as session:
        dispatch(session, now=clock.now)


def test_the_form_submits_an_array_that_others_wait_for(
    bob: Browser, sessions: SessionFactory, clock: FrozenClock
) -> None:
    limits = {"idle_gpu_percent": "5", "idle_gpu_time": "30m"}
    answer = bob.post("/jobs/new", {**FORM, **limits, "array": "0-2%1"})
    first = answer.headers["Location"]
    place(sessions, clock)
    merge = bob.post("/jobs/new", {**FORM, "name": "merge", "after_ok": "train\r\n"})

    job = bob.get(f"/api/v1{first}").get_json()
    assert (job["array_index"], job["array_size"], job["array_limit"]) == (0, 3, 1)
    assert (job["idle_gpu_percent"], job["idle_gpu_seconds"]) == (5, 1800)
    waiting = bob.get(f"/api/v1{merge.headers['Location']}").get_json()
    assert waiting["dependencies"] == [{"job_id": job["id"], "name": "train", "condition": "ok"}]
    pending = bob.get(f"/api/v1/jobs/{waiting['id']}/pending").get_json()
    assert (pending["is_pending"], pending["position"]) == (True, None)
    assert "'train' succeeds" in pending["reason"]

    page = bob.get(merge.headers["Location"]).text
    assert f'href="{first}">train</a>' in page
    task = bob.get(first).text
    assert "train[0]" in task
    assert f"/jobs?array_id={job['id']}" in task
    assert "below 5 % for 30m" in task


def test_a_list_has_one_row_for_an_array(
    bob: Browser, sessions: SessionFactory, clock: FrozenClock
) -> None:
    first = bob.post("/jobs/new", {**FORM, "array": "0-2%1"}).headers["Location"]
    place(sessions, clock)
    ident = first.rpartition("/")[2]

    assert bob.get("/jobs").text.count('class="vd-first"') == 1
    assert "3 tasks" in bob.get("/jobs").text
    assert bob.get(f"/jobs?array_id={ident}").text.count('class="vd-first"') == 3
    assert bob.get("/jobs?state=queued").text.count('class="vd-first"') == 2
    (row,) = bob.get("/api/v1/jobs?is_collapsed=true").get_json()["items"]
    assert row["array_states"] == {"queued": 2, "starting": 1}
    assert bob.get("/api/v1/jobs").get_json()["total"] == 3

    assert bob.post(f"{first}/stop-array").status_code == 302
    (row,) = bob.get("/api/v1/jobs?is_collapsed=true").get_json()["items"]
    assert row["array_states"] == {"starting": 1, "stopped": 2}


def test_errors_are_shown_beside_their_fields(bob: Browser) -> None:
    wrong = {"array": "1-", "after_any": "nothing", "idle_gpu_time": "30m"}
    answer = bob.post("/jobs/new", {**FORM, **wrong})
    assert answer.status_code == 422
    gone = bob.post("/jobs/new", {**FORM, "retry_on": "gone"})
    assert (gone.status_code, 'id="retry_on-error"' in gone.text) == (422, True)
    for field in ("array", "after_any", "idle_gpu_time"):
        assert f'id="{field}-error"' in answer.text


def test_the_form_warns_of_an_appliance_that_can_not_run_the_job(bob: Browser) -> None:
    def fit(**changes: str) -> dict[str, list[str]]:
        shape: dict[str, object] = {
            **FORM,
            "name": "",
            "retry_on": "exit",
            "appliance": "dgx-01",
            **changes,
        }
        answer: dict[str, list[str]] = bob.post("/jobs/new/fit", shape).get_json()
        return {name: answer[name] for name in ("never", "busy")}

    assert fit(gpu_memory="") == {"never": [], "busy": []}
    assert "GPUs" in fit(gpus="64")["never"][0]
    assert fit(gpu_models="MI300X", gpu_memory="")["never"]
    assert fit(required_labels="rack=9", gpu_memory="")["never"]
    assert "elsewhere" in fit(appliance="elsewhere")["never"][0]
    assert fit(gpus="many") == fit(appliance="") == {"never": [], "busy": []}
    assert 'data-fit="/jobs/new/fit"' in bob.get("/jobs/new").text


def test_days_of_job_history_and_minutes_of_a_fetch_are_set(alice: Browser, cast: Cast) -> None:
    weights = dict.fromkeys(
        ("priority_weight", "fair_share_weight", "age_weight", "size_weight"), "1"
    )
    plan = {
        "placement_policy": "spread",
        "policy": "fifo",
        "half_life_days": "7",
        "memory_usage_weight": "0",
        "job_retention_days": "30",
        **weights,
    }
    assert alice.post("/jobs/settings", dict(plan)).status_code == 302
    assert 'value="30"' in alice.get("/jobs/settings").text
    for minutes in ("", "0"):  # empty is the default
        answer = alice.post("/jobs/settings", {**plan, "longest_fetch_minutes": minutes})
        assert answer.status_code == 302
        settings = alice.get(f"/api/v1/tenants/{cast.acme.id}/queue-settings").get_json()
        assert settings["longest_fetch_minutes"] == int(minutes or 5)
    wrong = {**plan, "longest_fetch_minutes": "43201"}
    assert alice.post("/jobs/settings", wrong).status_code == 422
    assert alice.post("/jobs/settings", {**plan, "job_retention_days": "0"}).status_code == 422


def test_the_form_submits_a_gang_whose_page_lists_its_members(
    bob: Browser, sessions: SessionFactory, clock: FrozenClock
) -> None:
    gang = {
        **FORM,
        "nodes": "3",
        "gpus": "0",
        "gpu_memory": "",
        "on_member_loss": "restart",
        "max_retries": "1",
    }
    first = bob.post("/jobs/new", gang).headers["Location"]
    place(sessions, clock)
    page = bob.get(first).text
    assert "3, this is member 0" in page
    assert "all restart" in page
    assert page.count(">dgx-01</a>") >= 3
    assert "Stop gang" in page
    assert "3 members" in bob.get("/jobs").text
    report = bob.get(f"/api/v1{first}/efficiency").get_json()
    assert [member["rank"] for member in report["gang"]["members"]] == [0, 1, 2]
    assert report["gang"]["gpu_utilization_ratio"] is None
    assert "All members" in bob.get(f"{first}/efficiency").text
    assert (
        "choose restart or continue"
        in bob.post("/jobs/new", {**gang, "on_member_loss": "stop"}).text
    )
    bob.post(f"{first}/stop")
    jobs = bob.get("/api/v1/jobs").get_json()["items"]
    assert all(job["stop_requested_at"] for job in jobs)
