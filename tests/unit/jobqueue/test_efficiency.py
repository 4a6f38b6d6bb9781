"""The efficiency report of a job: what it held, what it used, and what to change."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from core.clock import NS_PER_SECOND, to_ns
from jobqueue.jobs.gangs import gang_members
from jobqueue.models import Job
from jobqueue.usage.efficiency import Efficiency, hardware_of, job_efficiency
from tests.cast import NOON, Cast
from tests.unit.jobqueue.builders import GIB, gpu_uuid, start, submit
from timeseries.points import Point
from timeseries.store import Store, write

MEMORY_BYTES = 64 * GIB


def report(store: Store, job: Job, after: timedelta) -> Efficiency:
    """The report of a job, some time after noon."""
    return job_efficiency(store, job, hardware=hardware_of(job), now=NOON + after)


def efficiency(
    session: Session,
    store: Store,
    cast: Cast,
    percents: list[float],
    *,
    memory_peak_bytes: int = 32 * GIB,
) -> Efficiency:
    """The report of a job that has held a GPU for each of these utilizations for ten minutes."""
    attempt = start(session, cast, gpus=len(percents), memory_bytes=MEMORY_BYTES)
    points = []
    for second in range(0, 600, 10):
        at_ns = to_ns(NOON) + second * NS_PER_SECOND
        for gpu, percent in enumerate(percents):
            tags = {"gpu": str(gpu), "uuid": gpu_uuid("dgx-01", gpu), "job": attempt.job_id}
            fields = {
                "utilization_percent": percent,
                "power_watts": 300.0,
                "memory_used_bytes": (gpu + 1) * GIB,
            }
            points.append(Point("gpu", tags, fields, at_ns))
        peak = memory_peak_bytes if second == 300 else GIB
        usage = {"cpu_percent": 150.0, "memory_bytes": peak}
        points.append(Point("attempt", {"job": attempt.job_id}, usage, at_ns))
    identity = {"tenant": attempt.tenant_id, "appliance": attempt.appliance_id}
    assert not write(store, points, identity=identity)
    return report(store, attempt.job, timedelta(minutes=10))


def test_a_report_has_what_a_job_held_and_used(session: Session, store: Store, cast: Cast) -> None:
    efficiency_report = efficiency(session, store, cast, [90.0, 90.0, 0.0, 0.0])
    assert (efficiency_report.gpus, efficiency_report.gpus_used) == (4, 2)
    assert efficiency_report.allocated_gpu_seconds == 2400
    assert efficiency_report.used_gpu_seconds == 1080
    assert efficiency_report.idle_gpu_seconds == 1320
    assert efficiency_report.gpu_utilization_ratio == pytest.approx(0.45)
    assert efficiency_report.energy_kilowatt_hours == pytest.approx(4 * 0.3 / 6)
    assert efficiency_report.gpu_memory_peak_bytes == 4 * GIB
    assert efficiency_report.gpu_memory_total_bytes == 80 * GIB
    assert efficiency_report.memory_peak_bytes == 32 * GIB
    assert efficiency_report.cpu_cores_used == 1.5


@pytest.mark.parametrize(
    ("percents", "memory_peak_bytes", "advice"),
    [
        ([90.0, 90.0, 0.0], 32 * GIB, "Asked for 3 GPUs, used 2."),
        ([1.0], 32 * GIB, "Asked for 1 GPU, used none."),
        ([20.0, 20.0], 32 * GIB, "CPUs are full"),
        ([95.0], 63 * GIB, "Request more"),
        ([95.0], 2 * GIB, "Request less"),
        ([], 2 * GIB, "Request less"),
        ([95.0], 32 * GIB, "good use"),
    ],
)
def test_the_advice_is_what_saves_the_most(
    *,
    session: Session,
    store: Store,
    cast: Cast,
    percents: list[float],
    memory_peak_bytes: int,
    advice: str,
) -> None:
    efficiency_report = efficiency(
        session, store, cast, percents, memory_peak_bytes=memory_peak_bytes
    )
    assert advice in efficiency_report.advice


def test_nothing_is_claimed_of_a_job_that_was_not_measured(
    session: Session, store: Store, cast: Cast
) -> None:
    waiting = report(store, submit(session, cast.alice), timedelta())
    assert (waiting.advice, waiting.allocated_gpu_seconds) == ("", 0)
    attempt = start(session, cast, gpus=2)
    silent = report(store, attempt.job, timedelta(minutes=1))
    assert silent.allocated_gpu_seconds == 120
    assert silent.gpu_utilization_ratio is None
    assert silent.gpus_used is None
    assert silent.energy_kilowatt_hours is None


def slowed(
    session: Session, store: Store, cast: Cast, figures: dict[str, dict[str, float]]
) -> Efficiency:
    """The report of a job whose GPU waits most of the time; `figures` are by measurement."""
    attempt = start(session, cast, gpus=1, cpus=8, memory_bytes=MEMORY_BYTES)
    tags = {"gpu": "0", "uuid": gpu_uuid("dgx-01", 0), "job": attempt.job_id}
    points = []
    for second in range(0, 1200, 10):
        at_ns, is_waiting = to_ns(NOON) + second * NS_PER_SECOND, second < 720
        use = {"utilization_percent": 10.0 if is_waiting else 95.0}
        points.append(Point("gpu", tags, use, at_ns))
        for measurement, fields in figures.items() if is_waiting else ():
            own = {} if measurement == "cpu" else {"job": attempt.job_id}
            points.append(Point(measurement, own, fields, at_ns))
    identity = {"tenant": attempt.tenant_id, "appliance": attempt.appliance_id}
    assert not write(store, points, identity=identity)
    return report(store, attempt.job, timedelta(minutes=20))


@pytest.mark.parametrize(
    ("figures", "code", "texts"),
    [
        (
            {"attempt": {"cpu_percent": 790.0}, "container": {"cpu_pressure_percent": 55.0}},
            "cpu",
            ["Input-bound: 60 % of the time", "CPUs are full (8 of 64 cores asked for)"],
        ),
        ({"container": {"cpu_throttled_percent": 60.0}}, "cpu", ["CPUs are full"]),
        (
            {"container": {"io_pressure_percent": 70.0, "remote_memory_percent": 80.0}},
            "disk",
            ["wait for disks", "80 % of its memory is on another NUMA node"],
        ),
        ({"container": {"memory_pressure_percent": 30.0}}, "memory", ["wait for memory"]),
        ({"cpu": {"steal_percent": 15.0, "iowait_percent": 0.0}}, "host", ["other work"]),
    ],
)
def test_what_the_gpus_wait_for_is_said_with_its_evidence(
    *,
    session: Session,
    store: Store,
    cast: Cast,
    figures: dict[str, dict[str, float]],
    code: str,
    texts: list[str],
) -> None:
    slow = slowed(session, store, cast, figures)
    assert slow.bottleneck is not None
    assert slow.bottleneck.code == code
    assert slow.bottleneck.share_ratio == pytest.approx(0.6, abs=0.02)
    assert slow.advice == slow.bottleneck.sentence
    assert all(text in slow.advice for text in texts), slow.advice
    values = {evidence.field: evidence.value for evidence in slow.bottleneck.evidence}
    assert values["utilization_percent"] == 10.0
    shown = {name for fields in figures.values() for name in fields} - {"remote_memory_percent"}
    assert shown <= values.keys()


def test_gpus_that_wait_without_a_visible_cause_get_the_general_advice(
    session: Session, store: Store, cast: Cast
) -> None:
    slow = slowed(session, store, cast, {"container": {"io_pressure_percent": 1.0}})
    assert slow.bottleneck is None
    assert "Check whether loading data" in slow.advice


def test_a_gang_has_the_gpu_time_of_its_members_and_their_sum(
    session: Session, store: Store, cast: Cast
) -> None:
    attempt = start(session, cast, gpus=2, nodes=3)
    members = gang_members(session, attempt.job)
    points = []
    for rank, percent in enumerate([100.0, 50.0, 0.0]):
        job = members[rank]
        for second in range(0, 600, 10):
            for uuid in job.attempts[-1].gpu_uuids:
                tags = {"gpu": "0", "uuid": uuid, "job": job.id}
                at_ns = to_ns(NOON) + second * NS_PER_SECOND
                points.append(Point("gpu", tags, {"utilization_percent": percent}, at_ns))
    identity = {"tenant": attempt.tenant_id, "appliance": attempt.appliance_id}
    assert not write(store, points, identity=identity)
    now = NOON + timedelta(minutes=10)
    hardware = hardware_of(attempt.job)
    gang = job_efficiency(store, attempt.job, hardware=hardware, members=members, now=now).gang
    assert gang is not None
    assert [member.gpu_utilization_ratio for member in gang.members] == [1.0, 0.5, 0.0]
    assert gang.gpu_utilization_ratio == pytest.approx(0.5)
    assert (gang.allocated_gpu_seconds, gang.used_gpu_seconds) == (3600, 1800)
