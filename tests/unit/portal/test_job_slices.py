"""Jobs on a part of a GPU: the form, the REST API, and what their pages say of isolation."""

from typing import Any

import pytest
from werkzeug.test import TestResponse

from core.db import SessionFactory
from jobqueue.partitions.checks import PolicyRequest
from jobqueue.partitions.service import create_policy
from protocol.gpu_slices import PartitionMode
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import GIB, add_appliance, dispatch, submit
from tests.unit.jobqueue.mig_gpus import mig_gpus
from tests.unit.portal.conftest import Browser

FORM = {"name": "notebook", "image": "acme/lab:1", "kind": "batch"}
FORM |= {"gpus": "0", "cpus": "1", "memory": "1 GiB", "container_policy": "restricted"}


@pytest.fixture(autouse=True)
def _fleet(sessions: SessionFactory, cast: Cast) -> None:
    with sessions.begin() as session:
        add_appliance(
            session,
            cast.acme,
            "dgx-01",
            gpus=mig_gpus("dgx-01", 2, is_enabled=True),
            partition_modes=["mig", "mps", "time_slicing"],
        )
        request = PolicyRequest(name="Shared", mode=PartitionMode.MIG)
        create_policy(session, scope_of(cast.alice), request, now=NOON)


def post(browser: Browser, **fields: object) -> TestResponse:
    body = {"name": "x", "image": "x/y:1", **fields}
    return browser.client.post("/api/v1/jobs", json=body, headers={"X-CSRFToken": browser.token()})


def latest(browser: Browser) -> dict[str, Any]:
    return dict(browser.get("/api/v1/jobs").get_json()["items"][0])


@pytest.mark.parametrize(
    ("fields", "requested"),
    [
        ({"gpu_choice": "part", "gpu_memory": "8 GiB", "gpus": "2"}, "8 GiB of a GPU"),
        ({"gpu_choice": "profile", "gpu_slice": "1g.10gb", "gpu_memory": "8 GiB"}, "1g.10gb"),
        ({"gpu_choice": "whole", "gpu_compute": "0.5", "gpu_slice": "1g.10gb"}, "0"),
    ],
)
def test_the_form_submits_what_was_chosen(
    bob: Browser, fields: dict[str, str], requested: str
) -> None:
    assert bob.post("/jobs/new", FORM | fields).status_code == 302
    job = latest(bob)
    assert (job["requested_gpus"], job["gpus"]) == (requested, 0)
    copied = bob.get(f"/jobs/new?copy={job['id']}").text
    assert f'<option selected value="{fields["gpu_choice"]}">' in copied


def test_the_form_says_what_is_wrong(bob: Browser) -> None:
    for fields, text in (
        ({"gpu_choice": "part"}, "Enter the GPU memory or the compute share."),
        ({"gpu_choice": "profile"}, "Enter a MIG profile."),
        ({"gpu_choice": "whole", "gpu_memory": "8 GiB"}, "choose a part of a GPU"),
        ({"gpu_choice": "part", "gpu_compute": "nan"}, "between 0 and 1"),
        ({"gpu_choice": "profile", "gpu_slice": "1g.12gb"}, "The nearest is 1g.20gb."),
    ):
        refused = bob.post("/jobs/new", FORM | fields)
        assert refused.status_code == 422
        assert text in refused.text


def test_the_form_shows_what_fits_now(bob: Browser) -> None:
    wanted = FORM | {"gpu_choice": "part", "gpu_memory": "15 GiB"}
    [offer] = bob.post("/jobs/new/fit", wanted).get_json()["offers"]
    assert offer["title"] == "MIG 1g.20gb with 20 GiB on NVIDIA H100 80GB HBM3"
    assert offer["text"] == "8 of 8 free now"
    assert offer["isolation"]["memory"] == "separate memory and cache"
    assert bob.post("/jobs/new/fit", wanted | {"gpu_memory": "?"}).get_json()["offers"] == []
    [asked] = bob.get(f"/api/v1/jobs/gpu-offers?gpu_memory_bytes={15 * GIB}").get_json()["items"]
    assert (asked["profile"], asked["free"], asked["total"]) == ("1g.20gb", 8, 8)
    assert (asked["title"], asked["text"]) == (offer["title"], offer["text"])
    assert asked["isolation"].items() <= offer["isolation"].items()


@pytest.mark.parametrize(
    "query", ["gpu_compute=nan", "gpu_compute=inf", "gpu_compute=1.1", "gpu_memory_bytes=-1"]
)
def test_offers_refuse_numbers_out_of_range(bob: Browser, query: str) -> None:
    assert bob.get(f"/api/v1/jobs/gpu-offers?{query}").status_code == 422


def test_numbers_out_of_range_are_refused(bob: Browser) -> None:
    for fields, status in (
        ({"gpu_compute": float("nan")}, 400),
        ({"gpu_compute": float("inf")}, 400),
        ({"gpu_compute": "NaN"}, 422),
        ({"gpu_compute": -0.1}, 422),
        ({"gpu_compute": 1.01}, 422),
        ({"gpu_compute": 1}, 201),
        ({"gpu_compute": 1e-9}, 201),
        ({"gpu_memory_bytes": -1}, 422),
        ({"gpu_memory_bytes": "8GiB"}, 201),
        ({"gpu_slice": "x" * 33}, 422),
        ({"gpu_slice": None}, 422),
        ({"gpu_slice": "1g.10gb", "gpus": 1}, 422),
    ):
        answer = post(bob, **fields)
        assert answer.status_code == status, answer.text
        if status == 422:
            assert next(iter(fields)) in answer.get_json()["errors"]


def test_a_running_job_says_what_it_has_and_what_isolates_it(
    sessions: SessionFactory, cast: Cast, bob: Browser
) -> None:
    with sessions.begin() as session:
        job_id = submit(session, cast.bob, gpu_slice="2g.20gb").id
        dispatch(session, now=NOON)
    job = bob.get(f"/api/v1/jobs/{job_id}").get_json()
    held = job["attempt"]["gpu_slice"]
    assert (held["mode"], held["profile"], held["memory_bytes"]) == ("mig", "2g.20gb", 20 * GIB)
    assert held["text"].startswith("MIG 2g.20gb with 20 GiB, slots ")
    assert held["isolation"]["faults"].startswith("isolated from other instances")
    page = bob.get(f"/jobs/{job_id}").text
    assert held["text"] in page
    assert held["isolation"]["bandwidth"] in page
    assert "2g.20gb" in bob.get("/jobs").text


def test_the_page_of_an_appliance_shows_who_has_what(
    sessions: SessionFactory, cast: Cast, bob: Browser
) -> None:
    with sessions.begin() as session:
        job = submit(session, cast.bob, "notebook", gpu_slice="3g.40gb")
        dispatch(session, now=NOON)
        session.refresh(job)
        assert job.attempt is not None
        appliance_id = job.attempt.appliance_id
    page = bob.get(f"/appliances/{appliance_id}").text
    assert "Slots of GPU 0: MIG, 4 of 8 slots free" in page
    assert 'title="3g.40gb, slots 4 to 7, notebook of Bob"' in page
    assert "style=" not in page.partition("GPUs <span")[2].partition("</section>")[0]
