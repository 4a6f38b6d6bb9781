"""The pictures of GPU utilization in the list of jobs."""

import re
from collections.abc import Iterable
from datetime import timedelta

import pytest

from core.clock import to_ns
from core.db import SessionFactory
from jobqueue.jobs.shown import read_shown
from jobqueue.models import Job
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world_parts import add_appliance, run_job
from timeseries.points import Point
from timeseries.store import RangeQuery, Series, Store, write

LABEL = re.compile(r'role="img" aria-label="(GPU utilization of [^"]*)"')


@pytest.fixture
def jobs(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> list[Job]:
    """Two running jobs of bob's with a GPU each."""
    with sessions.begin() as session:
        add_appliance(session, cast, "dgx-01", now=clock.now)
        jobs = [run_job(session, cast, now=clock.now) for _ in range(2)]
        for job in jobs:
            session.refresh(job)
        read_shown(session, jobs)
    return jobs


def add_samples(store: Store, job: Job, clock: FrozenClock, percents: Iterable[float]) -> None:
    """Add a sample a minute from now on, and let the time pass."""
    assert job.attempt is not None
    points = [
        Point(
            "gpu",
            {"gpu": "0", "uuid": job.attempt.gpu_uuids[0], "job": job.id},
            {"utilization_percent": percent},
            to_ns(clock.now + timedelta(minutes=minute)),
        )
        for minute, percent in enumerate(percents)
    ]
    identity = {"tenant": job.tenant_id, "appliance": job.attempt.appliance_id}
    assert not write(store, points, identity=identity)
    clock.advance(60 * len(points))


def test_a_recent_job_has_its_line_with_the_figures_as_text(
    bob: Browser, charlie: Browser, store: Store, jobs: list[Job], clock: FrozenClock
) -> None:
    add_samples(store, jobs[0], clock, [0.0, 100.0, 50.0, 90.0])
    page = bob.get("/jobs").text
    assert LABEL.findall(page) == ["GPU utilization of train: 60 % on average, 0 to 100 %"]
    [line] = re.findall(r'<polyline points="([^"]*)"', page)
    heights = [float(pair.split(",")[1]) for pair in line.split()]
    # 22 pixels with a margin of 2: 0 % is at the bottom, 100 % at the top.
    assert heights == [20.0, 2.0, 11.0, 3.8]
    assert "<span>90 %</span>" in page
    assert not LABEL.findall(charlie.get("/jobs").text)


def test_an_old_job_has_no_line(
    bob: Browser, store: Store, sessions: SessionFactory, jobs: list[Job], clock: FrozenClock
) -> None:
    add_samples(store, jobs[0], clock, [50.0] * 3)
    with sessions.begin() as session:
        session.get_one(Job, jobs[0].id).finished_at = clock.now
    assert len(LABEL.findall(bob.get("/jobs").text)) == 1
    clock.advance(6 * 3600)
    page = bob.get("/jobs").text
    assert jobs[0].id in page
    assert not LABEL.findall(page)


def test_a_page_of_jobs_takes_one_query(
    bob: Browser,
    store: Store,
    jobs: list[Job],
    clock: FrozenClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for job in jobs:
        add_samples(store, job, clock, [70.0, 80.0])
    asked: list[RangeQuery] = []
    answer = store.query_range

    def counted(query: RangeQuery) -> Iterable[Series]:
        asked.append(query)
        return answer(query)

    monkeypatch.setattr(store, "query_range", counted)
    assert len(LABEL.findall(bob.get("/jobs").text)) == 2
    assert [query.measurement for query in asked] == ["gpu"]
