"""Datasets of jobs on pages and by REST: the form, the progress, copies and prefetches."""

from datetime import UTC, datetime

import pytest

from core.db import SessionFactory
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.jobs.settings import QueueSettings, set_settings
from jobqueue.models import Attempt
from protocol.attempts import AttemptObservation, ObservedState, StagingProgress
from protocol.job_spec import DatasetMount
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import dispatch, submit
from tests.unit.jobqueue.dataset_builders import (
    TIB,
    add_dataset,
    add_stager,
    copy_of,
    report_copies,
)
from tests.unit.portal.conftest import Browser
from tests.unit.portal.test_job_pages import FORM

PLAIN = {**FORM, "gpus": "0", "gpu_memory": ""}


@pytest.fixture
def dataset_id(sessions: SessionFactory, cast: Cast) -> str:
    """A dataset of acme's, half of which is on dgx-01: near enough to start jobs."""
    with sessions.begin() as session:
        settings = QueueSettings(longest_fetch_minutes=24 * 60)
        set_settings(session, scope_of(cast.alice), cast.acme.id, settings)
        dataset = add_dataset(session, cast.acme)
        dgx = add_stager(session, cast.acme, "dgx-01")
        report_copies(session, dgx, copy_of(dataset.versions[0], cached_bytes=TIB))
        return dataset.id


def staging_job(sessions: SessionFactory, cast: Cast) -> str:
    """A job of bob's that waits for data on dgx-01, and returns its id."""
    with sessions.begin() as session:
        mount = DatasetMount(dataset="imagenet", target="/data")
        job = submit(session, cast.bob, datasets=[mount])
        dispatch(session, now=NOON)
        session.refresh(job)
        attempt = job.attempt
        assert isinstance(attempt, Attempt)
        seen = AttemptObservation(
            attempt_id=attempt.id,
            state=ObservedState.STARTING,
            staging=StagingProgress(staged_bytes=TIB, total_bytes=2 * TIB, remaining_seconds=720.0),
        )
        apply_report(session, attempt.appliance_id, [seen], now=datetime.now(UTC))
        return job.id


def test_the_form_offers_datasets_and_submits_them(bob: Browser, dataset_id: str) -> None:
    form = bob.get("/jobs/new").text
    assert 'value="imagenet">imagenet (2 TiB, version 1)' in form

    answer = bob.post("/jobs/new", {**PLAIN, "datasets": "imagenet:/data\n"})

    assert answer.status_code == 302, answer.text
    [job] = bob.get("/api/v1/jobs").get_json()["items"]
    assert job["datasets"] == [{"dataset": "imagenet", "target": "/data", "version": 1}]
    assert "imagenet@1:/data" in bob.get(f"/jobs/{job['id']}").text
    assert "imagenet@1:/data" in bob.get(f"/jobs/new?copy={job['id']}").text
    assert dataset_id not in job["datasets"]


def test_the_form_and_rest_refuse_an_unknown_dataset(bob: Browser, dataset_id: str) -> None:
    answer = bob.post("/jobs/new", {**PLAIN, "datasets": "cifar:/data"})
    assert answer.status_code == 422
    assert 'id="datasets-error"' in answer.text
    body = {"name": "a", "image": "b", "datasets": [{"dataset": "cifar", "target": "/data"}]}
    refused = bob.call("POST", "/api/v1/jobs", json=body)
    assert refused.status_code == 422
    assert list(refused.get_json()["errors"]) == ["datasets"]
    malformed = bob.post("/jobs/new", {**PLAIN, "datasets": "imagenet"})
    assert malformed.status_code == 422
    assert dataset_id


def test_another_tenants_user_is_offered_nothing(
    charlie: Browser, cast: Cast, dataset_id: str
) -> None:
    assert "imagenet (" not in charlie.get("/jobs/new").text
    assert charlie.get(f"/datasets/{dataset_id}/copies").status_code == 404
    assert cast.globex.name == "Globex"


@pytest.mark.usefixtures("dataset_id")
def test_a_job_that_waits_for_data_shows_its_progress_everywhere(
    bob: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    job_id = staging_job(sessions, cast)

    shown = bob.get(f"/api/v1/jobs/{job_id}").get_json()
    assert (shown["state"], shown["reason"]) == ("starting", "waiting_for_data")
    assert shown["attempt"]["staging"] == {
        "staged_bytes": TIB,
        "total_bytes": 2 * TIB,
        "remaining_seconds": 720.0,
    }
    page = bob.get(f"/jobs/{job_id}").text
    assert "waiting for data" in page
    assert "1 of 2 TiB fetched, about 12m left" in page
    assert 'value="50.0"' in page
    assert "1 of 2 TiB cached when it was placed" in page
    assert "waiting for data, 12m left" in bob.get("/jobs").text


@pytest.mark.usefixtures("dataset_id")
def test_where_a_new_job_would_go_counts_its_data(bob: Browser) -> None:
    body = {"name": "a", "image": "b", "datasets": [{"dataset": "imagenet", "target": "/data"}]}
    answer = bob.call("POST", "/api/v1/jobs/dry-run", json=body).get_json()
    assert answer["data"] == "dgx-01: 1 of 2 TiB cached"
    assert answer["reason"].endswith("Of its data, 1 of 2 TiB cached there.")


def test_copies_are_listed_by_page_and_rest(bob: Browser, dataset_id: str) -> None:
    page = bob.get(f"/datasets/{dataset_id}/copies").text
    assert "1 of 2 TiB" in page
    [copy] = bob.get(f"/api/v1/datasets/{dataset_id}/copies").get_json()["items"]
    assert (copy["appliance_name"], copy["version"], copy["state"]) == ("dgx-01", 1, "fetching")
    assert (copy["cached_bytes"], copy["total_bytes"]) == (TIB, 2 * TIB)


def test_a_prefetch_is_made_and_deleted_by_rest(bob: Browser, dataset_id: str) -> None:
    path = f"/api/v1/datasets/{dataset_id}/prefetches"
    made = bob.call("POST", path, json={"appliance": "dgx-01"})
    assert made.status_code == 201
    shown = made.get_json()
    assert (shown["appliance_name"], shown["version"], shown["is_pinned"]) == ("dgx-01", 1, False)
    assert bob.get(f"{path}/{shown['id']}").get_json() == shown
    assert [row["id"] for row in bob.get(path).get_json()["items"]] == [shown["id"]]
    assert bob.call("POST", path, json={"is_pinned": True}).status_code == 403
    assert bob.call("POST", path, json={"schedule": "@daily"}).status_code == 403
    assert bob.call("POST", path, json={"version": 9}).status_code == 422
    assert bob.call("DELETE", f"{path}/{shown['id']}").status_code == 204
    assert bob.get(path).get_json()["items"] == []


def test_an_admin_pins_and_unpins_on_the_page(alice: Browser, dataset_id: str) -> None:
    path = f"/datasets/{dataset_id}/copies"
    nightly = {"labels": "pool=train", "schedule": "0 2 * * *", "time_zone": "Asia/Kolkata"}
    assert alice.post(path, {**nightly, "is_pinned": "y"}).status_code == 302
    page = alice.get(path).text
    assert "pool=train" in page
    assert "Asia/Kolkata" in page
    [row] = alice.get(f"/api/v1/datasets/{dataset_id}/prefetches").get_json()["items"]
    assert row["is_pinned"]
    assert row["version"] is None
    assert alice.post(path, {"schedule": "soon"}).status_code == 422
    assert (
        alice.post(f"/datasets/{dataset_id}/prefetches/{row['id']}/delete", {}).status_code == 302
    )
    assert "Asia/Kolkata" not in alice.get(path).text
