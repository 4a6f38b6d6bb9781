"""GPU usage: its page, its REST resource and its CSV; and the efficiency report of a job."""

from datetime import timedelta

import pytest

from core.clock import to_ns
from core.db import SessionFactory
from jobqueue.models import Job
from jobqueue.usage.ledger import SETTLE, record_usage
from tests.cast import NOON, Cast, FrozenClock
from tests.unit.marketplace.cost_builders import add_line
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world_parts import add_appliance, run_job
from timeseries.points import Point
from timeseries.store import Store, write


@pytest.fixture
def job(sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock) -> Job:
    """A job of bob's that has half used its GPU for an hour, which is in the ledger."""
    with sessions.begin() as session:
        add_appliance(session, cast, "dgx-01", now=clock.now)
        job = run_job(session, cast, now=clock.now)
    assert job.attempt is not None
    tags = {"gpu": "0", "uuid": job.attempt.gpu_uuids[0], "job": job.id}
    fields = {"utilization_percent": 50.0, "power_watts": 100.0}
    points = [Point("gpu", tags, fields, to_ns(NOON) + 60 * 10**9 * at) for at in range(60)]
    identity = {"tenant": job.tenant_id, "appliance": job.attempt.appliance_id}
    assert not write(store, points, identity=identity)
    record_usage(sessions, store, now=clock.advance(3600 + SETTLE.total_seconds()))
    return job


def test_the_api_sums_the_ledger(job: Job, alice: Browser, charlie: Browser) -> None:
    answer = alice.get("/api/v1/gpu-usage?by=job").get_json()
    [item] = answer["items"]
    assert (item["key"], item["name"]) == (job.id, "train")
    # The hour of the ledger, and three minutes of the next one without samples.
    assert (item["allocated_gpu_seconds"], item["used_gpu_seconds"]) == (3600 + 180, 1800)
    assert (item["unmeasured_gpu_seconds"], answer["is_so_far"]) == (180, True)
    assert item["used_ratio"] == 0.5
    assert item["energy_kilowatt_hours"] == pytest.approx(0.1)
    assert answer["sum"]["idle_gpu_seconds"] == 1800
    assert answer["recorded_until"] == (NOON + timedelta(hours=1)).isoformat()
    assert charlie.get("/api/v1/gpu-usage").get_json()["total"] == 0


@pytest.mark.parametrize(
    "query", ["by=planet", "sort=colour", "since=2026-03-03T00:00Z&until=2026-03-02T00:00Z"]
)
@pytest.mark.usefixtures("cast")
def test_a_wrong_question_names_what_is_wrong(alice: Browser, query: str) -> None:
    answer = alice.get(f"/api/v1/gpu-usage?{query}")
    assert answer.status_code == 422
    assert answer.get_json()["errors"].keys() & {"by", "sort", "since"}


def test_the_page_and_its_file_show_the_same(job: Job, alice: Browser, olivia: Browser) -> None:
    page = alice.get("/gpu-usage?by=job&since=2026-03-02&until=2026-03-02")
    assert f"/jobs/{job.id}" in page.text
    file = alice.get("/gpu-usage/export?by=job&since=2026-03-02&until=2026-03-02")
    assert file.mimetype == "text/csv"
    assert file.text.splitlines()[1].split(",")[:3] == [job.id, "train", "3780.000000"]
    assert alice.get("/api/v1/gpu-usage/export?by=job").text == file.text
    assert "Acme" in olivia.get("/gpu-usage").text


@pytest.mark.usefixtures("job")
def test_a_group_without_a_price_has_no_cost_beside_others(
    sessions: SessionFactory, cast: Cast, alice: Browser
) -> None:
    with sessions.begin() as session:
        add_line(session, cast.acme, "3.20419", NOON, user_id=cast.alice.id)
    page = alice.get("/gpu-usage?by=user&since=2026-03-02&until=2026-03-02")
    assert page.status_code == 200
    assert "bob@acme.example" in page.text
    # As the cost page shows it: in cents.
    for text in (page.text, alice.get("/billing?month=2026-03").text):
        assert "EUR 3.20" in text
        assert "3.20419" not in text


@pytest.mark.usefixtures("job")
def test_a_period_without_gpu_time_is_empty(alice: Browser) -> None:
    page = alice.get("/gpu-usage?since=2025-01-01&until=2025-01-31").text
    assert "No GPU time in this period" in page
    assert "so far" not in page
    assert alice.get("/gpu-usage?since=yesterday").status_code == 422


def test_a_job_has_an_efficiency_report(job: Job, alice: Browser, charlie: Browser) -> None:
    report = alice.get(f"/api/v1/jobs/{job.id}/efficiency").get_json()
    assert (report["gpus"], report["gpus_used"]) == (1, 1)
    assert report["used_gpu_seconds"] == 1800
    assert "1 of 1" in alice.get(f"/jobs/{job.id}/efficiency").text
    assert charlie.get(f"/jobs/{job.id}/efficiency").status_code == 404
