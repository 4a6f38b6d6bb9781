"""The pages of fair shares: the tree, the settings, and the parts of a job's points."""

from datetime import timedelta

import pytest

from core.db import SessionFactory
from jobqueue.fairshare.settings import OrderPolicy, OrderSettings
from jobqueue.jobs.settings import QueueSettings, set_settings, settings_of
from jobqueue.models import Job
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, submit
from tests.unit.portal.conftest import Browser


@pytest.fixture
def waiting(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> Job:
    """Bob's job, which waits for the GPU that Alice's has had for an hour."""
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "mini", gpus=1)
        submit(session, cast.alice, "busy", gpus=1, time_limit_seconds=7200)
        dispatch(session, now=NOON)
        job = submit(session, cast.bob, "next", gpus=1)
        settings = QueueSettings(ordering=OrderSettings(policy=OrderPolicy.FAIR_TREE))
        set_settings(session, scope_of(cast.alice), cast.acme.id, settings)
    clock.now = NOON + timedelta(hours=1)
    return job


def test_the_tree_is_of_the_own_tenant(waiting: Job, alice: Browser, charlie: Browser) -> None:
    page = alice.get("/jobs/shares").text
    assert "alice@acme.example" in page
    assert "GPU-hours" in page
    assert waiting.id
    theirs = charlie.get("/jobs/shares").text
    assert "Nothing to share yet" in theirs
    assert "acme.example" not in theirs
    answer = charlie.get("/api/v1/queue/shares").get_json()
    assert [(row["kind"], row["usage"]) for row in answer["items"]] == [("tenant", 0)]


def test_a_page_of_the_tree_is_asked_for_by_number(waiting: Job, alice: Browser) -> None:
    first, second = (
        alice.get(f"/api/v1/queue/shares?page_size=2&page={number}").get_json() for number in (1, 2)
    )
    assert [row["name"] for row in first["items"]] == ["", "bob@acme.example"]
    assert [row["name"] for row in second["items"]] == ["alice@acme.example"]
    assert (first["total"], first["policy"], first["half_life_days"]) == (3, "fair_tree", 7)
    assert waiting.id


def test_the_queue_has_the_jobs_of_the_own_tenant_with_their_points(
    waiting: Job, alice: Browser, charlie: Browser
) -> None:
    page = alice.get("/jobs/queue").text
    assert f"/jobs/{waiting.id}" in page
    assert "1,008.3" in page
    [row] = alice.get("/api/v1/queue/jobs").get_json()["items"]
    assert (row["position"], row["job_id"], row["project"]) == (1, waiting.id, "")
    assert "No job waits" in charlie.get("/jobs/queue").text
    assert charlie.get("/api/v1/queue/jobs").get_json()["total"] == 0


def test_a_jobs_page_adds_its_points_up(waiting: Job, alice: Browser) -> None:
    page = alice.get(f"/jobs/{waiting.id}").text
    assert "rank 1 of 2" in page
    assert "1,008.3" in page
    answer = alice.get(f"/api/v1/jobs/{waiting.id}/pending").get_json()
    assert sum(part["points"] for part in answer["parts"]) == pytest.approx(answer["points"])
    assert (answer["rank"], answer["user_count"], answer["past_errors"]) == (1, 2, None)


def test_the_form_saves_the_order_and_shows_what_is_wrong(
    sessions: SessionFactory, cast: Cast, alice: Browser
) -> None:
    fields = {
        "placement_policy": "spread",
        "policy": "drf",
        "half_life_days": "0.5",
        "priority_weight": "10",
        "fair_share_weight": "20",
        "age_weight": "30",
        "size_weight": "-40",
        "gpu_usage_weight": "",
        "cpu_usage_weight": "0.5",
        "memory_usage_weight": "0",
    }
    refused = alice.post("/jobs/settings", {**fields, "half_life_days": "500"})
    assert refused.status_code == 422
    assert "half_life_days is 500" in refused.text
    assert alice.post("/jobs/settings", fields).status_code == 302
    with sessions.begin() as session:
        stored = settings_of(session, cast.acme.id).ordering
    assert stored == OrderSettings(
        policy=OrderPolicy.DRF,
        half_life_days=0.5,
        priority_weight=10,
        fair_share_weight=20,
        age_weight=30,
        size_weight=-40,
        cpu_usage_weight=0.5,
    )
