"""What is measured of slices of GPUs: efficiency, ledger, fair share and idle limits."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from core.db import SessionFactory
from jobqueue.dispatch.capacity import list_capacities
from jobqueue.fairshare.usage import Account, read_usage
from jobqueue.jobs.idle_limits import idle_limit_problem, stop_idle_jobs
from jobqueue.jobs.preemptions import lost_text
from jobqueue.projects.models import Project
from jobqueue.queue.project_use import use_of_projects
from jobqueue.usage.efficiency import Efficiency, hardware_of, job_efficiency
from jobqueue.usage.ledger import SETTLE, record_usage
from jobqueue.usage.live import Live, live_use
from jobqueue.usage.measuring import Period
from jobqueue.usage.totals import allocated_now, usage_sum
from protocol.attempts import ObservedState
from protocol.gpu_slices import GPUSlice
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import GIB, report
from tests.unit.jobqueue.slices import GPU, MIG, MPS, TURNS, sample, sample_mig, start_in
from timeseries.store import Store

HOUR = timedelta(hours=1)
DAY = Period(NOON - 12 * HOUR, NOON + 12 * HOUR)
LIMITED = {"idle_gpu_percent": 5, "idle_gpu_seconds": 1800}


def efficiency(
    session: Session, store: Store, cast: Cast, gpu_slice: GPUSlice, *, percent: float | None = None
) -> Efficiency:
    """The report of a job with a slice after an hour; `percent` is its activity under MIG."""
    attempt = start_in(session, cast, gpu_slice)
    if percent is not None:
        sample_mig(store, attempt, percent=percent, minutes=range(60))
    used = {"memory_used_bytes": 3.0 * GIB, "processes": 1.0}
    sample(store, attempt, "gpu_process", used, minutes=range(60), uuid=GPU, owner="job")
    hardware = hardware_of(attempt.job)
    return job_efficiency(store, attempt.job, hardware=hardware, now=NOON + HOUR)


def test_a_mig_slice_is_measured_within_itself(session: Session, store: Store, cast: Cast) -> None:
    seen = efficiency(session, store, cast, MIG, percent=80.0)
    assert (seen.gpu_slice, seen.gpus, seen.gpus_used) == ("1g.20gb", 1, 1)
    assert seen.gpu_utilization_ratio == pytest.approx(0.8)
    assert (seen.allocated_gpu_seconds, seen.used_gpu_seconds) == (900, 720)
    assert (seen.gpu_memory_peak_bytes, seen.gpu_memory_total_bytes) == (5 * GIB, 20 * GIB)
    assert seen.energy_kilowatt_hours is None
    assert seen.not_measurable.startswith("Energy")
    assert "good use of its GPU slice" in seen.advice


def test_an_unused_slice_gets_advice(session: Session, store: Store, cast: Cast) -> None:
    seen = efficiency(session, store, cast, MIG, percent=0.0)
    assert seen.gpus_used == 0
    assert "slice was not used" in seen.advice


def test_a_mig_slice_before_hopper_has_no_utilization(
    session: Session, store: Store, cast: Cast
) -> None:
    seen = efficiency(session, store, cast, MIG)
    assert seen.gpu_utilization_ratio is None
    assert seen.gpus_used is None
    assert "Hopper" in seen.not_measurable


@pytest.mark.parametrize(
    ("gpu_slice", "named", "total_bytes"),
    [(MPS, "50 % by MPS", 40 * GIB), (TURNS, "50 % by time slicing", 80 * GIB)],
)
def test_of_a_share_only_the_memory_of_its_processes_is_measured(
    *,
    session: Session,
    store: Store,
    cast: Cast,
    gpu_slice: GPUSlice,
    named: str,
    total_bytes: int,
) -> None:
    seen = efficiency(session, store, cast, gpu_slice)
    assert seen.gpu_slice == named
    assert (seen.gpu_memory_peak_bytes, seen.gpu_memory_total_bytes) == (3 * GIB, total_bytes)
    assert seen.allocated_gpu_seconds == 1800
    assert (seen.gpu_utilization_ratio, seen.energy_kilowatt_hours) == (None, None)
    assert (seen.gpus_used, seen.bottleneck) == (None, None)
    assert "whole GPU only" in seen.not_measurable


def test_what_a_slice_waits_for_is_found_by_its_activity(
    session: Session, store: Store, cast: Cast
) -> None:
    attempt = start_in(session, cast, MIG, cpus=2)
    sample_mig(store, attempt, percent=10.0, minutes=range(60))
    sample(store, attempt, "attempt", {"cpu_percent": 199.0}, minutes=range(60))
    seen = job_efficiency(store, attempt.job, hardware=hardware_of(attempt.job), now=NOON + HOUR)
    assert seen.bottleneck is not None
    assert seen.bottleneck.code == "cpu"
    evidence = seen.bottleneck.evidence[0]
    assert (evidence.measurement, evidence.value) == ("gpu_slice", 10.0)


def test_the_ledger_counts_a_slice_as_its_share(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with sessions.begin() as session:
        attempt = start_in(session, cast, MIG)
    sample_mig(store, attempt, percent=50.0, minutes=range(30))
    scope, now = scope_of(cast.alice), NOON + HOUR + SETTLE
    with sessions() as session:
        live = live_use(session, store, scope, Period(NOON, NOON + HOUR), now=NOON + HOUR)
        unrecorded = usage_sum(session, scope, Period(NOON, NOON + HOUR), live=live)
        assert allocated_now(session, scope) == (0.25, 1)
    record_usage(sessions, store, now=now)
    with sessions() as session:
        recorded = usage_sum(session, scope, DAY, live=Live())
    assert recorded == unrecorded
    assert recorded.allocated_gpu_seconds == 900
    assert (recorded.used_gpu_seconds, recorded.idle_gpu_seconds) == (225, 225)
    assert recorded.unmeasured_gpu_seconds == 450


def test_the_utilization_of_a_shared_gpu_is_nobodys(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with sessions.begin() as session:
        attempt = start_in(session, cast, MPS)
    sample(store, attempt, "gpu", {"utilization_percent": 90.0}, minutes=range(60), uuid=GPU)
    record_usage(sessions, store, now=NOON + HOUR + SETTLE)
    with sessions() as session:
        usage = usage_sum(session, scope_of(cast.alice), DAY, live=Live())
    assert (usage.allocated_gpu_seconds, usage.unmeasured_gpu_seconds) == (1800, 1800)
    assert usage.used_ratio is None


def test_capacity_counts_the_slots_of_shared_gpus(session: Session, cast: Cast) -> None:
    start_in(session, cast, MPS)
    [row] = list_capacities(session, scope_of(cast.alice)).items
    assert (row.gpus, row.usable_gpus, row.free_gpus) == (8, 8, 7)
    assert (row.shared_gpus, row.slots, row.free_slots) == (1, 2, 1)
    assert row.summary == "7 of 8 usable GPUs free, 1 in slices, 1 of 2 slots free"
    assert list_capacities(session, scope_of(cast.charlie)).items == []


def test_a_project_uses_the_share_of_its_slices(session: Session, cast: Cast) -> None:
    project = Project(tenant_id=cast.acme.id, name="vision", created_at=NOON)
    session.add(project)
    attempt = start_in(session, cast, MIG)
    attempt.job.project_id = project.id
    session.flush()
    [use] = use_of_projects(session, cast.acme.id)
    assert [(part.used, part.total) for part in use.use] == [(0.25, 8)]


def test_fair_share_charges_the_share(session: Session, cast: Cast) -> None:
    attempt = start_in(session, cast, MIG)
    half_life = timedelta(days=10_000)
    usage = read_usage(session, attempt.tenant_id, half_life=half_life, now=NOON + HOUR)
    assert usage[Account("", cast.alice.id)].gpus == pytest.approx(900, rel=1e-3)
    assert "0.2 GPU-hours" in lost_text(attempt, now=NOON + HOUR)


@pytest.mark.parametrize(
    ("gpu_slice", "percent", "stopped"), [(MIG, 1.0, 1), (MIG, 50.0, 0), (MPS, 1.0, 0)]
)
def test_an_idle_limit_looks_at_the_slice(
    *,
    sessions: SessionFactory,
    store: Store,
    cast: Cast,
    gpu_slice: GPUSlice,
    percent: float,
    stopped: int,
) -> None:
    with sessions.begin() as session:
        attempt = start_in(session, cast, gpu_slice, **LIMITED)
        report(session, attempt, ObservedState.RUNNING)
    sample_mig(store, attempt, percent=percent, minutes=range(60))
    assert stop_idle_jobs(sessions, store, now=NOON + HOUR) == stopped


def test_an_idle_limit_that_may_not_stop_says_so(session: Session, cast: Cast) -> None:
    attempt = start_in(session, cast, MPS, **LIMITED)
    assert "whole GPU only" in idle_limit_problem(attempt.job)
    attempt.gpu_slice = None
    assert idle_limit_problem(attempt.job) == ""
