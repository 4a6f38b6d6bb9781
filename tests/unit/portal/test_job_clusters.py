"""Jobs for clusters: the form, the REST API, and what pages show of them."""

import re
from typing import Any

import pytest
from werkzeug.test import TestResponse

from core.db import SessionFactory
from tests.cast import Cast
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.jobqueue.test_cluster_requests import add_cluster
from tests.unit.portal.conftest import Browser

FORM = {"name": "train", "image": "", "kind": "batch", "command": "./train.sh", "gpus": "0"}
FORM |= {"cpus": "1", "memory": "1 GiB", "container_policy": "restricted", "without_image": "y"}
RUNTIME_ENV = '{\r\n "pip": ["torch"]\r\n}'


@pytest.fixture
def slurm(sessions: SessionFactory, cast: Cast) -> str:
    with sessions.begin() as session:
        return add_cluster(session, cast, "slurm-a")


def latest(browser: Browser) -> dict[str, Any]:
    return dict(browser.get("/api/v1/jobs").get_json()["items"][0])


def post(browser: Browser, **fields: object) -> TestResponse:
    body = {"name": "x", "command": ["true"], **fields}
    return browser.client.post("/api/v1/jobs", json=body, headers={"X-CSRFToken": browser.token()})


def test_the_form_without_clusters_has_no_word_of_them(bob: Browser) -> None:
    text = bob.get("/jobs/new").text
    assert "without_image" not in text
    assert "cluster_options" not in text
    answer = bob.post("/jobs/new", FORM)
    assert answer.status_code == 422
    assert "Enter a container image." in answer.text


def test_the_form_offers_clusters_with_their_queues(
    bob: Browser, charlie: Browser, slurm: str
) -> None:
    text = bob.get("/jobs/new").text
    assert f'<option value="{slurm}">slurm-a (Slurm)</option>' in text
    assert f'<option value="gpu" data-cluster="{slurm}">slurm-a, the default, up to 1d</op' in text
    assert f'<option value="old" data-cluster="{slurm}">slurm-a, takes no jobs now</option>' in text
    assert "slurm.constraint, slurm.reservation, slurm.dependency, slurm.gres, slurm.nice" in text
    assert "ray_runtime_env" not in text
    assert "cluster's nodes: slurm-a." in text.replace("&#39;", "'")
    assert "slurm" not in charlie.get("/jobs/new").text


def test_the_form_submits_a_job_and_copies_it(bob: Browser, slurm: str) -> None:
    options = {"slurm_partition": " gpu ", "slurm_account": "vision", "slurm_qos": ""}
    options |= {"cluster_options": "slurm.nice=100", "cluster": slurm}
    answer = bob.post("/jobs/new", FORM | options)
    assert answer.status_code == 302, answer.text
    job = latest(bob)
    wanted = {"slurm.partition": "gpu", "slurm.account": "vision", "slurm.nice": "100"}
    assert (job["image"], job["cluster_options"]) == ("", wanted)
    assert job["requested_appliance_id"] == slurm
    copied = bob.get(f"/jobs/new?copy={job['id']}").text
    assert f'<option selected value="{slurm}">' in copied
    assert re.search(r'name="slurm_partition"[^>]* value="gpu"', copied)
    assert "slurm.nice=100</textarea>" in copied
    assert re.search(r'<input [^>]*\bchecked\b[^>]* name="without_image"', copied)
    page = bob.get(f"/jobs/{job['id']}").text.replace("&#39;", "'")
    assert "<dt>Image</dt><dd>the cluster's environment</dd>" in page
    assert "<dt>Cluster options</dt><dd><div>slurm.partition=gpu</div>" in page
    assert "the cluster's environment" in bob.get("/jobs").text.replace("&#39;", "'")


def test_options_of_another_kind_than_the_chosen_cluster_are_left_out(
    bob: Browser, sessions: SessionFactory, cast: Cast, slurm: str
) -> None:
    with sessions.begin() as session:
        ray = add_cluster(session, cast, "ray-1", kind="ray")
    fields = {"slurm_partition": "gpu", "ray_runtime_env": RUNTIME_ENV}
    assert bob.post("/jobs/new", FORM | fields | {"cluster": ray}).status_code == 302
    assert latest(bob)["cluster_options"] == {"ray.runtime_env": RUNTIME_ENV}
    refused = bob.post("/jobs/new", FORM | fields)
    assert refused.status_code == 422
    assert "The options are for slurm and ray; set those of one kind" in refused.text
    both = bob.post("/jobs/new", FORM | {"cluster": slurm, "appliance": "ray-1"})
    assert "Enter an appliance or choose a cluster, not both." in both.text


def test_what_a_cluster_refuses_is_shown_at_its_field(bob: Browser, slurm: str) -> None:
    for fields, text in (
        ({"without_image": "", "image": "a/b"}, "slurm-a runs no images"),
        ({"kind": "service"}, "Slurm runs jobs that end, not services."),
        ({"command": ""}, "Slurm requires a command; add it to the job."),
        ({"cluster_options": "slurm.x=1"}, "There is no option"),
        ({"slurm_qos": "-x"}, 'id="slurm_qos-error"'),
    ):
        form = FORM | {"cluster": slurm, "slurm_qos": "high"} | fields
        answer = bob.post("/jobs/new", form)
        assert answer.status_code == 422
        assert text in answer.text


def test_the_form_says_what_a_cluster_refuses_before_it_is_submitted(
    bob: Browser, slurm: str
) -> None:
    fields = FORM | {"without_image": "", "image": "acme/train:1", "cluster": slurm}
    answer = bob.post("/jobs/new/fit", fields | {"slurm_partition": "gpux"}).get_json()
    assert answer["clusters"] == [
        "slurm-a runs no images; leave the image empty.",
        "slurm-a lists no partition gpux. It has gpu, old.",
    ]
    limit = {"time_limit": "2d"}
    [problem] = bob.post("/jobs/new/fit", FORM | limit).get_json()["clusters"]
    assert problem.startswith("The partition gpu of slurm-a allows 1d at most")
    assert bob.post("/jobs/new/fit", FORM | {"cpus": "x"}).get_json()["clusters"] == []


def test_the_fit_of_an_appliance_is_not_that_of_a_job_without_an_image(
    bob: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
    fields = FORM | {"without_image": "", "appliance": "dgx-01"}
    assert bob.post("/jobs/new/fit", fields).get_json()["never"] == []


def test_jobs_over_rest(bob: Browser, slurm: str) -> None:
    del slurm
    answer = post(bob, cluster_options={"slurm.partition": "gpu"})
    assert answer.status_code == 201, answer.text
    job = answer.get_json()
    assert (job["image"], job["cluster_options"]) == ("", {"slurm.partition": "gpu"})
    retried = bob.client.post(
        f"/api/v1/jobs/{job['id']}/retry", headers={"X-CSRFToken": bob.token()}
    )
    assert retried.status_code == 201
    for wrong in ({"slurm.partition": 1}, ["slurm.partition"], "gpu", {"slurm.partition": None}):
        answer = post(bob, cluster_options=wrong)
        assert answer.status_code == 422
        assert str(*answer.get_json()["errors"]).startswith("cluster_options")
    answer = post(bob, image="", cluster_options={})
    assert answer.status_code == 201


def test_templates_and_schedules_have_options_and_no_image(bob: Browser, slurm: str) -> None:
    fields = {"slurm_partition": "gpu", "cluster": slurm}
    assert bob.post("/jobs/new", FORM | fields | {"save": "1"}).status_code == 302
    listed = bob.get("/jobs/templates").text.replace("&#39;", "'")
    assert "the cluster's environment" in listed
    used = bob.get("/jobs/new?template=train").text
    assert re.search(r'name="slurm_partition"[^>]* value="gpu"', used)
    answer = bob.post("/jobs/new", FORM | fields | {"schedule": "@daily", "name": "nightly"})
    assert answer.status_code == 302
    page = bob.get(answer.location).text.replace("&#39;", "'")
    assert "Submits a job of a cluster by a schedule." in page
    assert "the cluster's environment" in page
    edited = bob.get(f"{answer.location}/edit").text
    assert f'<option selected value="{slurm}">' in edited
