"""GPUs that jobs share, on the tiers: who has what, and what is measured of each slice."""

import json
from typing import Any

import msgspec
import pytest
from sqlalchemy.orm import Session

from core.clock import to_ns
from core.db import SessionFactory
from dash_app.components import ABSENT
from dash_app.queries.appliance import appliance_detail
from dash_app.queries.fleet import fleet, fleet_totals
from dash_app.queries.gpu import GPUDetail, gpu_detail
from dash_app.queries.job import job_detail
from dash_app.queries.rankings import capacity_by_model
from dash_app.queries.timeline import timeline
from dash_app.routes import appliance_path, gpu_path, job_path
from dash_app.timerange import Span
from jobqueue.models import Attempt, Job
from jobqueue.partitions.models import GPUPartitionPolicy
from protocol.gpu_slices import GPUSlice, PartitionMode
from tenants.models import Appliance
from tests.cast import Cast, FrozenClock, scope_of
from tests.unit.dash_app.browsing import Browser, rows_of
from tests.unit.dash_app.conftest import GIB, SAMPLES, Fleet
from tests.unit.jobqueue.test_gpu_occupancy import PROFILES
from timeseries.points import Point
from timeseries.store import Store, write

HOPPER = {"graphics_engine_active_percent": 30.0}


def cut_by_mig(sessions: SessionFactory, fleet_of_three: Fleet) -> None:
    """Cut the first GPU of acme's: alice's job has slots 0 to 3, another instance is idle."""
    instances = [
        {"uuid": "MIG-a", "profile": "3g.40gb", "start": 0, "slots": 4},
        {"uuid": "MIG-b", "profile": "1g.10gb", "start": 4, "slots": 1},
    ]
    facts = {
        "is_mig_enabled": True,
        "mig_profiles": msgspec.to_builtins(PROFILES),
        "mig_instances": instances,
    }
    own = GPUSlice(
        mode=PartitionMode.MIG,
        gpu_uuid="GPU-a0",
        share_milli=500,
        memory_bytes=40 * GIB,
        profile="3g.40gb",
        start=0,
        slots=4,
        uuid="MIG-a",
    )
    with sessions.begin() as session:
        appliance = session.get_one(Appliance, fleet_of_three.first.id)
        first, second = appliance.inventory["gpus"]
        appliance.inventory = {**appliance.inventory, "gpus": [first | facts, second]}
    allocate(sessions, fleet_of_three.job, own)


def share_by_mps(sessions: SessionFactory, cast: Cast, fleet_of_three: Fleet) -> None:
    """Let acme share its GPUs by MPS, into four each, of which alice's job has two of the first."""
    with sessions.begin() as session:
        appliance = session.get_one(Appliance, fleet_of_three.first.id)
        appliance.inventory = {**appliance.inventory, "partition_modes": ["mps"]}
        policy = GPUPartitionPolicy(
            tenant_id=cast.acme.id,
            name="shared",
            mode=PartitionMode.MPS,
            shares=4,
            created_at=appliance.enrolled_at,
        )
        session.add(policy)
    own = GPUSlice(
        mode=PartitionMode.MPS, gpu_uuid="GPU-a0", share_milli=500, memory_bytes=40 * GIB
    )
    allocate(sessions, fleet_of_three.job, own)


def allocate(sessions: SessionFactory, job: Job, own: GPUSlice) -> None:
    with sessions.begin() as session:
        stored = session.get_one(Job, job.id)
        assert stored.attempt is not None
        stored.gpus, stored.gpu_memory_bytes = 0, 8 * GIB
        stored.attempt.gpu_slice = msgspec.to_builtins(own)


def sample(
    store: Store,
    fleet_of_three: Fleet,
    clock: FrozenClock,
    measurement: str,
    fields: dict[str, Any],
    **tags: str,
) -> None:
    points = [
        Point(measurement, {"gpu": "0", **tags}, fields, to_ns(clock.now) - back * 10 * 10**9)
        for back in range(SAMPLES, 0, -1)
    ]
    first = fleet_of_three.first
    assert not write(store, points, identity={"tenant": first.tenant_id, "appliance": first.id})


@pytest.fixture
def mig(sessions: SessionFactory, store: Store, fleet_of_three: Fleet, clock: FrozenClock) -> Fleet:
    """The fleet with a GPU in MIG mode, with samples as Hopper has them."""
    cut_by_mig(sessions, fleet_of_three)
    job = fleet_of_three.job.id
    fields = HOPPER | {"memory_used_bytes": 5.0 * GIB, "memory_total_bytes": 40.0 * GIB}
    tags = {"uuid": "MIG-a", "profile": "3g.40gb", "slice": "0"}
    sample(store, fleet_of_three, clock, "gpu_slice", fields, job=job, **tags)
    idle = {"memory_used_bytes": 0.0, "graphics_engine_active_percent": 0.0}
    tags = {"uuid": "MIG-b", "profile": "1g.10gb", "slice": "1"}
    sample(store, fleet_of_three, clock, "gpu_slice", idle, **tags)
    used = {"processes": 2.0, "memory_used_bytes": 5.0 * GIB}
    sample(store, fleet_of_three, clock, "gpu_process", used, uuid="MIG-a", owner="job", job=job)
    return fleet_of_three


@pytest.fixture
def mps(
    *,
    sessions: SessionFactory,
    store: Store,
    cast: Cast,
    fleet_of_three: Fleet,
    clock: FrozenClock,
) -> Fleet:
    """The fleet with GPUs that jobs share by MPS."""
    share_by_mps(sessions, cast, fleet_of_three)
    used = {"processes": 1.0, "memory_used_bytes": 6.0 * GIB}
    owner = {"owner": "job", "job": fleet_of_three.job.id}
    sample(store, fleet_of_three, clock, "gpu_process", used, uuid="GPU-a0", **owner)
    return fleet_of_three


def first_gpu(
    *, session: Session, store: Store, cast: Cast, of: Fleet, span: Span, index: str = "0"
) -> GPUDetail:
    return gpu_detail(session, store, scope_of(cast.alice), of.first.id, index=index, span=span)


def test_the_slices_of_a_gpu_have_their_job_memory_and_activity(
    *, session: Session, store: Store, cast: Cast, mig: Fleet, span: Span
) -> None:
    seen = first_gpu(session=session, store=store, cast=cast, of=mig, span=span)
    held, idle = seen.slices
    assert (held.segment.job_id, held.segment.uuid) == (mig.job.id, "MIG-a")
    assert (held.memory_bytes, held.activity_percent, held.processes) == (5 * GIB, 30.0, 2)
    assert (idle.segment.job_id, idle.activity_percent, idle.processes) == ("", 0.0, None)
    assert (seen.gpu.job, seen.gpu.allocated) == (None, 0.5)
    assert (
        first_gpu(session=session, store=store, cast=cast, of=mig, span=span, index="1").slices
        == ()
    )


def test_a_gpu_has_a_line_for_each_slice(
    *, session: Session, store: Store, cast: Cast, mig: Fleet, span: Span
) -> None:
    seen = first_gpu(session=session, store=store, cast=cast, of=mig, span=span)
    for key in ("slice-memory", "slice-activity"):
        names = [(line.name, line.color) for line in seen.charts[key].lines]
        assert names == [("1g.10gb at slot 4", 1), ("3g.40gb at slot 0", 0)]
    # What runs on a part of a GPU says nothing about all of it.
    assert seen.charts["utilization"].bands == ()
    assert "by slice" in seen.charts["activity"].problem
    assert seen.gpu.number("utilization_percent") is None


def test_the_activity_of_shares_is_not_measurable(
    *, session: Session, store: Store, cast: Cast, mps: Fleet, span: Span
) -> None:
    seen = first_gpu(session=session, store=store, cast=cast, of=mps, span=span)
    [held] = seen.slices
    assert (held.segment.slots, held.memory_bytes, held.processes) == (2, 6 * GIB, 1)
    assert held.activity_percent is None
    assert seen.charts["slice-activity"].problem.startswith("Not measurable")
    assert [line.name for line in seen.charts["slice-memory"].lines] == ["train"]


def test_the_fleet_counts_slices_by_their_share(
    *, session: Session, store: Store, cast: Cast, mig: Fleet, span: Span
) -> None:
    scope = scope_of(cast.alice)
    assert mig.first.gpu_count == 2
    cards = fleet(session, store, scope, span=span).cards
    totals = fleet_totals(session, scope, cards, is_filtered=False)
    # Slots 5 and 6 are free and slot 4 is idle; on slot 7 no profile fits.
    assert (totals.allocated_gpus, totals.slices, totals.free_slots) == (0.5, 1, 3)
    [model] = capacity_by_model([(card, gpu) for card in cards for gpu in card.gpus], {})
    assert (model.total, model.allocated, model.free, model.shared) == (4, 0, 3, 1)
    assert (model.slots, model.free_slots) == (8, 3)


def test_the_charts_of_a_job_are_those_of_its_slice(
    *, session: Session, store: Store, cast: Cast, mig: Fleet, clock: FrozenClock
) -> None:
    seen = job_detail(session, store, scope_of(cast.alice), mig.job.id, now=clock.now)
    [activity] = seen.charts["gpu-utilization_percent"].lines
    assert set(activity.values) == {30.0}
    assert set(seen.charts["gpu-memory_used_bytes"].lines[0].values) == {5.0 * GIB}
    assert "Not measurable" in seen.charts["gpu-power_watts"].problem
    assert seen.gpus == ((mig.first.id, "0"),)


def test_a_job_with_a_share_has_the_memory_of_its_processes(
    *, session: Session, store: Store, cast: Cast, mps: Fleet, clock: FrozenClock
) -> None:
    seen = job_detail(session, store, scope_of(cast.alice), mps.job.id, now=clock.now)
    assert set(seen.charts["gpu-memory_used_bytes"].lines[0].values) == {6.0 * GIB}
    assert "by MPS" in seen.charts["gpu-utilization_percent"].problem


def test_jobs_on_slots_have_rows_of_their_own(
    session: Session, cast: Cast, mig: Fleet, span: Span
) -> None:
    gpus = {"GPU-a0": "0"}
    scope = scope_of(cast.alice)
    first = session.get_one(Appliance, mig.first.id)
    [bar] = timeline(session, scope, first, gpus=gpus, span=span, search="")
    assert bar.row == "GPU 0 slot 0"


def test_jobs_that_share_at_once_are_drawn_below_each_other(
    *, sessions: SessionFactory, cast: Cast, mps: Fleet, clock: FrozenClock, span: Span
) -> None:
    with sessions.begin() as session:
        before = session.get_one(Job, mps.job.id).attempt
        assert before is not None
        session.add(
            Attempt(
                job_id=mps.job.id,
                tenant_id=cast.acme.id,
                appliance_id=mps.first.id,
                number=2,
                state=before.state,
                gpu_uuids=["GPU-a0"],
                gpu_slice=before.gpu_slice,
                bound_at=clock.now,
                started_at=before.started_at,
            )
        )
    with sessions() as session:
        first, scope = session.get_one(Appliance, mps.first.id), scope_of(cast.alice)
        bars = timeline(session, scope, first, gpus={"GPU-a0": "0"}, span=span, search="")
    assert sorted(bar.row for bar in bars) == ["GPU 0 share 1", "GPU 0 share 2"]


def test_the_page_of_a_gpu_has_its_bar_and_its_slices(alice: Browser, mig: Fleet) -> None:
    path = gpu_path(mig.first.id, "0")
    answer = json.loads(alice.fill("gpu-slices.children", gpu_path_data=path))["response"]
    assert answer["gpu-slices-section"] == {"hidden": False}
    bar = answer["gpu-slices"]["children"]
    assert bar.count("vdd-slot ") == 4
    assert f'href="{job_path(mig.job.id)}' in bar
    held, idle = rows_of(answer["gpu-slices"])
    memory = "5 GiB of 40 GiB"
    assert held == ["slots 0 to 3", "3g.40gb", "train", "Alice", memory, "30 %", "2"]
    assert idle[2:5] == ["idle", ABSENT, "0 B of 10 GiB"]
    whole = gpu_path(mig.first.id, "1")
    answer = json.loads(alice.fill("gpu-slices.children", gpu_path_data=whole))["response"]
    assert answer["gpu-slices-section"] == {"hidden": True}


def test_the_page_of_an_appliance_has_the_bar_of_a_shared_gpu(alice: Browser, mps: Fleet) -> None:
    path = appliance_path(mps.first.id)
    text = alice.fill("appliance-gpu-table.children", appliance_path_data=path)
    assert "MPS, 2 of 4 shares free" in text
    assert "0.5 / 2" in text


def test_processes_on_a_slice_are_on_the_pages_of_gpu_and_job(
    alice: Browser, sessions: SessionFactory, mig: Fleet
) -> None:
    on_slice = {"pid": 9, "name": "python3", "gpu": 0, "uuid": "MIG-a", "memory_bytes": GIB}
    elsewhere = {"pid": 8, "name": "ollama", "gpu": 1, "uuid": "GPU-a1", "owner": "host"}
    with sessions.begin() as session:
        appliance = session.get_one(Appliance, mig.first.id)
        appliance.gpu_processes = [on_slice | {"owner": "job", "job": mig.job.id}, elsewhere]
    path = gpu_path(mig.first.id, "0")
    answer = json.loads(alice.fill("gpu-slices.children", gpu_path_data=path))["response"]
    expected = ["9", "python3", "train", "1 GiB"]
    assert rows_of(answer["gpu-processes"]) == [["GPU 0, 3g.40gb", *expected]]
    path = job_path(mig.job.id)
    answer = json.loads(alice.fill("job-stats.children", job_path_data=path))["response"]
    assert rows_of(answer["job-processes"]) == [["GPU 0, 3g.40gb", *expected]]
    assert "3g.40gb" in answer["job-stats"]["children"]


def test_another_tenants_slices_are_not_seen(
    *, session: Session, store: Store, cast: Cast, mig: Fleet, span: Span
) -> None:
    assert mig
    cards = fleet(session, store, scope_of(cast.charlie), span=span).cards
    assert [gpu.sharing for card in cards for gpu in card.gpus] == [{}, {}]


def test_a_gpu_of_an_appliance_whose_agent_cannot_share_is_whole(
    *, sessions: SessionFactory, store: Store, cast: Cast, fleet_of_three: Fleet, span: Span
) -> None:
    share_by_mps(sessions, cast, fleet_of_three)
    with sessions() as session:
        ident, scope = fleet_of_three.second.id, scope_of(cast.alice)
        seen = appliance_detail(session, store, scope, ident, span=span)
    assert [gpu.occupancy for gpu in seen.gpus] == [None, None]
