"""What pages and REST show of a job with a slice of a GPU: what is measured, and what can't be."""

import msgspec
import pytest

from core.clock import to_ns
from core.db import SessionFactory
from jobqueue.models import Job
from protocol.gpu_slices import GPUSlice, PartitionMode
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world_parts import add_appliance, run_job
from timeseries.points import Point
from timeseries.store import Store, write

GIB = 1024**3
MIG = GPUSlice(
    mode=PartitionMode.MIG,
    gpu_uuid="GPU-0",
    share_milli=125,
    memory_bytes=10 * GIB,
    profile="1g.10gb",
    slots=1,
    uuid="MIG-0",
)
MPS = GPUSlice(mode=PartitionMode.MPS, gpu_uuid="GPU-0", share_milli=500, shares=1)


def run_in(sessions: SessionFactory, cast: Cast, clock: FrozenClock, own: GPUSlice) -> Job:
    """A job of bob's that runs in a slice."""
    with sessions.begin() as session:
        add_appliance(session, cast, "dgx-01", now=clock.now)
        job = run_job(session, cast, now=clock.now)
        assert job.attempt is not None
        job.gpus, job.gpu_memory_bytes = 0, 8 * GIB
        job.idle_gpu_percent, job.idle_gpu_seconds = 5, 1800
        job.attempt.gpu_slice = msgspec.to_builtins(own)
        return job


def sample(store: Store, job: Job, clock: FrozenClock, point: Point) -> None:
    assert job.attempt is not None
    identity = {"tenant": job.tenant_id, "appliance": job.attempt.appliance_id}
    point = Point(point.measurement, {"job": job.id, **point.tags}, point.fields, to_ns(clock.now))
    assert not write(store, [point], identity=identity)


@pytest.mark.parametrize(
    ("own", "measurement", "fields"),
    [
        (MIG, "gpu_slice", {"graphics_engine_active_percent": 40.0, "memory_used_bytes": 2.0}),
        (MPS, "gpu_process", {"memory_used_bytes": 2.0}),
    ],
    ids=["mig", "mps"],
)
def test_usage_is_that_of_the_slice(
    *,
    bob: Browser,
    sessions: SessionFactory,
    cast: Cast,
    clock: FrozenClock,
    store: Store,
    own: GPUSlice,
    measurement: str,
    fields: dict[str, float],
) -> None:
    job = run_in(sessions, cast, clock, own)
    clock.advance(10)
    sample(store, job, clock, Point(measurement, {"gpu": "0"}, fields, 0))
    sample(store, job, clock, Point("gpu", {"gpu": "0"}, {"power_watts": 300.0}, 0))
    clock.advance(1)
    usage = bob.get(f"/api/v1/jobs/{job.id}/usage").get_json()
    assert {series["field"]: series["values"] for series in usage["series"]} == {
        name: [value] for name, value in fields.items()
    }


def test_the_list_of_jobs_draws_the_activity_of_a_slice(
    bob: Browser, sessions: SessionFactory, cast: Cast, clock: FrozenClock, store: Store
) -> None:
    job = run_in(sessions, cast, clock, MIG)
    clock.advance(60)
    fields = {"graphics_engine_active_percent": 40.0}
    sample(store, job, clock, Point("gpu_slice", {"gpu": "0", "uuid": "MIG-0"}, fields, 0))
    clock.advance(1)
    assert "40 % on average" in bob.get("/jobs").text


def test_what_can_not_be_measured_has_its_reason(
    bob: Browser, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    job = run_in(sessions, cast, clock, MPS)
    clock.advance(60)
    report = bob.get(f"/api/v1/jobs/{job.id}/efficiency").get_json()
    assert (report["gpu_slice"], report["gpu_utilization_ratio"]) == ("50 % by MPS", None)
    assert "whole GPU only" in report["not_measurable"]
    page = bob.get(f"/jobs/{job.id}/efficiency").text
    assert "50 % by MPS" in page
    assert report["not_measurable"] in page
    assert "It does not stop" in bob.get(f"/jobs/{job.id}").text
