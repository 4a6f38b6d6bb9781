"""Jobs in the browser: the form, the list, the page, the log and the figures."""

import re
from typing import Any

import pytest

from core.clock import to_ns
from core.db import SessionFactory
from jobqueue.models import Job
from jobqueue.states import JobState
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world_parts import add_appliance, run_job
from timeseries.points import Point
from timeseries.store import Store, write

GIB = 1024**3
FORM: dict[str, object] = {
    "name": "train",
    "image": "registry.example/train:1",
    "command": "python train.py --note 'a b'",
    "env": "EPOCHS=10\nDATA=/data",
    "kind": "batch",
    "gpus": "1",
    "gpu_memory": "40 GiB",
    "cpus": "2.5",
    "memory": "8 GiB",
    "container_policy": "restricted",
    "appliance": "",
}


@pytest.fixture
def appliance_id(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> str:
    with sessions.begin() as session:
        return add_appliance(session, cast, "dgx-01", now=clock.now).id


@pytest.fixture
def job(
    appliance_id: str,  # noqa: ARG001 - where it runs
    sessions: SessionFactory,
    cast: Cast,
    clock: FrozenClock,
) -> Job:
    with sessions.begin() as session:
        return run_job(session, cast, now=clock.now, log="step 1 é\nstep 2\n".encode())


def test_the_form_submits_what_was_typed(bob: Browser, appliance_id: str) -> None:
    answer = bob.post("/jobs/new", {**FORM, "appliance": appliance_id, "stop_grace": "2m"})
    assert answer.status_code == 302
    job = bob.get(f"/api/v1{answer.headers['Location']}").json
    assert job is not None
    assert job["command"] == ["python", "train.py", "--note", "a b"]
    assert job["env"] == {"EPOCHS": "10", "DATA": "/data"}
    assert (job["gpus"], job["gpu_memory_bytes"]) == (1, 40 * GIB)
    assert (job["cpus"], job["memory_bytes"]) == (2.5, 8 * GIB)
    assert job["requested_appliance_id"] == appliance_id
    assert job["stop_grace_seconds"] == 120
    page = bob.get(answer.headers["Location"]).text
    assert "<dt>Stop grace period</dt><dd><div>2m</div></dd>" in page


@pytest.mark.usefixtures("appliance_id")
def test_an_invalid_form_keeps_its_input_and_shows_the_errors(bob: Browser) -> None:
    answer = bob.post("/jobs/new", {**FORM, "name": "", "memory": "lots", "env": "EPOCHS"})
    assert answer.status_code == 422
    assert 'id="name-error"' in answer.text
    assert 'id="memory-error"' in answer.text
    assert 'id="env-error"' in answer.text
    assert 'value="lots"' in answer.text
    assert 'value="registry.example/train:1"' in answer.text


@pytest.mark.usefixtures("appliance_id")
def test_a_command_with_an_open_quote_is_refused_beside_its_field(bob: Browser) -> None:
    answer = bob.post("/jobs/new", {**FORM, "command": "echo 'a"})
    assert answer.status_code == 422
    assert 'id="command-error"' in answer.text


@pytest.mark.usefixtures("appliance_id")
def test_what_no_appliance_has_is_shown_with_figures(bob: Browser) -> None:
    answer = bob.post("/jobs/new", {**FORM, "gpus": "64"})
    assert answer.status_code == 422
    assert "64" in answer.text
    assert "dgx-01" in answer.text


def test_the_operator_submits_no_jobs(olivia: Browser) -> None:
    assert olivia.get("/jobs/new").status_code == 403


def test_the_list_filters_by_state_and_text(bob: Browser, job: Job) -> None:
    assert job.name in bob.get("/jobs?state=running&search=tra").text
    assert 'class="vd-empty"' in bob.get("/jobs?state=failed").text
    assert 'class="vd-empty"' in bob.get("/jobs?search=nothing").text


def test_the_page_shows_where_the_job_runs_and_why(bob: Browser, job: Job) -> None:
    text = bob.get(f"/jobs/{job.id}").text
    assert "Placement" in text
    assert "dgx-01 was the first free appliance." in text
    assert "0 (H100 80GB)" in text


def test_the_log_is_searched_in_upper_and_lower_case(bob: Browser, job: Job) -> None:
    pages = [bob.get(f"/api/v1/jobs/{job.id}/log?search={text}").json for text in ("STEP 2", "no")]
    assert [[line["text"] for line in page["lines"]] for page in pages if page] == [["step 2"], []]


def test_the_log_is_read_piece_by_piece(bob: Browser, job: Job) -> None:
    page = bob.get(f"/api/v1/jobs/{job.id}/log").json
    assert page == {
        "attempt_number": 1,
        "offset": 0,
        "next_offset": 17,
        "text": "step 1 é\nstep 2\n",
        "lines": [
            {"at": "", "stream": "output", "text": text, "is_open": False}
            for text in ("step 1 é", "step 2")
        ],
        "is_complete": False,
    }
    second_piece = bob.get(f"/api/v1/jobs/{job.id}/log?offset=10").json
    assert second_piece is not None
    assert second_piece["text"] == "step 2\n"


def test_the_whole_log_is_downloaded_as_text(bob: Browser, job: Job) -> None:
    answer = bob.get(f"/api/v1/jobs/{job.id}/log?format=raw")
    assert answer.mimetype == "text/plain"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="job-{job.id}.log"'
    assert answer.text == "step 1 é\nstep 2\n"


def test_bob_stops_his_job_and_the_page_shows_it(bob: Browser, job: Job) -> None:
    bob.post(f"/jobs/{job.id}/stop")
    assert "Stop requested" in bob.get(f"/jobs/{job.id}").text


def test_an_ended_job_is_retried_and_copied_from_its_row(
    bob: Browser, sessions: SessionFactory, job: Job
) -> None:
    retry, copy = f'action="/jobs/{job.id}/retry"', f'href="/jobs/new?copy={job.id}"'
    listed = bob.get("/jobs").text
    assert (retry in listed, copy in listed) == (False, True)
    with sessions.begin() as session:
        session.get_one(Job, job.id).state = JobState.FAILED
    assert retry in bob.get("/jobs").text
    retried = bob.post(f"/jobs/{job.id}/retry").headers["Location"]
    assert retried != f"/jobs/{job.id}"
    assert "Retry" in bob.get(f"/jobs/{job.id}").text


def test_usage_shows_the_container_and_its_gpus(
    *, bob: Browser, job: Job, appliance_id: str, cast: Cast, store: Store, clock: FrozenClock
) -> None:
    at_ns = to_ns(clock.advance(10))
    points = [
        Point("attempt", {"job": job.id}, {"cpu_percent": 150.0, "memory_bytes": 2.0}, at_ns),
        Point("gpu", {"gpu": "0", "job": job.id}, {"utilization_percent": 97.0}, at_ns),
        Point("gpu", {"gpu": "1", "job": "another"}, {"utilization_percent": 5.0}, at_ns),
    ]
    write(store, points, identity={"tenant": cast.acme.id, "appliance": appliance_id})
    clock.advance(1)
    usage = bob.get(f"/api/v1/jobs/{job.id}/usage").json
    assert usage is not None
    values = {(series["field"], series["gpu"]): series["values"] for series in usage["series"]}
    assert values == {
        ("cpu_percent", ""): [150.0],
        ("memory_bytes", ""): [2.0],
        ("utilization_percent", "0"): [97.0],
    }


@pytest.mark.usefixtures("appliance_id")
def test_the_form_checks_the_placement_without_submitting(bob: Browser) -> None:
    answer = bob.post("/jobs/new", {**FORM, "check": "1"})
    assert answer.status_code == 200
    assert "Not submitted yet." in answer.text
    assert "dgx-01 was the first free appliance." in answer.text
    assert bob.get("/api/v1/jobs").json["total"] == 0  # type: ignore[index] # an object


def test_a_waiting_job_is_explained_on_its_page_and_by_rest(
    bob: Browser, appliance_id: str
) -> None:
    for name in ("first", "second"):
        job = bob.call("POST", "/api/v1/jobs", json={"name": name, "image": "a", "cpus": 60}).json
    assert job is not None
    page = bob.get(f"/jobs/{job['id']}").text
    assert "2 of 2" in page
    assert "unknown without time limits" in page
    explanation = bob.get(f"/api/v1/jobs/{job['id']}/pending").json
    assert explanation is not None
    assert explanation["is_pending"]
    [rejection] = explanation["rejections"]
    assert (rejection["code"], rejection["count"]) == ("cpus_busy", 1)
    assert rejection["examples"][0]["appliance_id"] == appliance_id


@pytest.mark.usefixtures("job")
def test_the_list_keeps_its_filters_and_sort_in_the_address(bob: Browser, alice: Browser) -> None:
    address = "/jobs?user=me&sort=name&since=2020-01-01&until=2020-01-02&label=a%3Db&page=1"
    page = alice.get(address).text
    assert "No matching jobs" in page
    assert 'value="2020-01-01"' in page
    assert "until=2020-01-03" in page
    assert "sort=-name" in alice.get("/jobs?sort=name&search=a").text
    for wrong in ("sort=owner", "state=odd"):
        assert bob.get(f"/jobs?{wrong}").status_code == 200
    for wrong in ("since=yesterday", "until=9999-12-31"):
        assert bob.get(f"/jobs?{wrong}").status_code == 422


def test_the_form_offers_appliances_with_their_free_gpus_and_takes_their_names(
    bob: Browser, charlie: Browser, job: Job, appliance_id: str
) -> None:
    assert 'data-suggest="appliances"' in bob.get("/jobs/new").text
    search = "/api/v1/jobs/appliances?search=DGX"
    offered: Any = bob.get(search).json
    assert offered["items"] == [
        {
            "appliance_id": appliance_id,
            "name": "dgx-01",
            "gpus": 2,
            "usable_gpus": 2,
            "free_gpus": 1,
            "shared_gpus": 0,
            "slots": 0,
            "free_slots": 0,
            "state": "online",
            "is_drained": False,
            "is_quarantined": False,
            "summary": "1 of 2 usable GPUs free",
        }
    ]
    assert charlie.get(search).json == {"items": [], "total": 0, "page": 1, "page_size": 50}
    answer = bob.post("/jobs/new", {**FORM, "appliance": "dgx-01"})
    location = answer.headers["Location"]
    submitted = bob.get(f"/api/v1{location}").json
    assert submitted is not None
    assert submitted["requested_appliance_id"] == appliance_id
    assert 'value="dgx-01"' in bob.get(f"/jobs/new?copy={submitted['id']}").text
    wrong = bob.post("/jobs/new", {**FORM, "appliance": "dgx-99"})
    assert wrong.status_code == 422
    assert 'id="appliance-error"' in wrong.text
    assert job.id != submitted["id"]


def test_the_options_of_a_new_job_are_folded_until_they_are_used(bob: Browser) -> None:
    def opened(page: str) -> list[str]:
        groups = re.findall(r'vd-options" data-group="(\w+)"([^>]*)>', page)
        assert len(groups) == 7
        return [name for name, attributes in groups if attributes.endswith(" open")]

    assert opened(bob.get("/jobs/new").text) == []
    fields = {"retry_on": ["exit"], "name": "", "ports": "web=8888"}
    wrong = bob.post("/jobs/new", {**FORM, **fields})
    assert (wrong.status_code, opened(wrong.text)) == (422, ["storage", "limits"])


def test_a_service_that_scales_is_submitted_and_changed_in_the_browser(bob: Browser) -> None:
    policy = "0-4; concurrent_requests=8; zero=5m"
    fields: dict[str, object] = {"kind": "service", "ports": "web=8000", "autoscaling": policy}
    assert bob.post("/jobs/new", {**FORM, **fields, "autoscaling": "4"}).status_code == 422
    assert (
        "at most max_instances"
        in bob.post("/jobs/new", {**FORM, **fields, "autoscaling": "5-4"}).text
    )
    page = bob.post("/jobs/new", {**FORM, **fields}).headers["Location"]
    shown = bob.get(page).text
    assert "Scales by itself" in shown
    assert f'name="policy" value="{policy}"' in shown
    assert "0 of 1 awake instance serves" in shown
    assert f'value="{policy}"' in bob.get(f"/jobs/new?copy={page.rpartition('/')[2]}").text
    assert bob.post(f"{page}/autoscaling", {"policy": "1-"}).status_code == 302
    assert (
        bob.post(f"{page}/autoscaling", {"policy": "1-2; requests_per_second=5"}).status_code == 302
    )
    status = bob.get(f"/api/v1{page}/autoscaling").json
    assert status is not None
    assert (status["policy"]["max_instances"], status["policy"]["target"]) == (2, 5)
    assert bob.post(f"{page}/autoscaling", {"policy": ""}).status_code == 302
    assert bob.get(f"/api/v1{page}/autoscaling").status_code == 404


def test_a_service_is_submitted_scaled_and_updated_in_the_browser(bob: Browser) -> None:
    fields: dict[str, object] = {
        "kind": "service",
        "instances": "2",
        "health_check": "http:8000/health",
        "gpus": "0",
    }
    fields |= {"gpu_memory": "", "health_interval": "20s", "labels": "team=vision"}
    page = bob.post("/jobs/new", {**FORM, **fields}).headers["Location"]
    assert bob.post("/jobs/new", {**FORM, **fields, "health_check": "8000"}).status_code == 422
    job = bob.get(f"/api/v1{page}").json
    assert job is not None
    assert job["health_check"]["interval_seconds"] == 20
    assert bob.post(f"{page}/scale", {"instances": "3"}).status_code == 302
    assert "3 instances" in bob.get("/jobs").text

    form = bob.get(f"{page}/update").text
    assert 'value="http:8000/health"' in form
    assert 'name="schedule"' not in form
    changes = {**FORM, **fields, "image": "registry.example/train:2", "labels": ""}
    assert bob.post(f"{page}/update", {**changes, "cpus": "-1"}).status_code == 422
    assert bob.post(f"{page}/update", changes).headers["Location"] == page
    update = bob.get(f"/api/v1{page}/update").json
    assert update is not None
    assert (update["state"], update["changed"]) == ("rolling", ["image", "labels"])
    assert "image, labels" in bob.get(page).text
    assert bob.post(f"{page}/rollback", {}).status_code == 302
    assert bob.get(f"/api/v1{page}").json["instances"] == 3  # type: ignore[index] # JSON
