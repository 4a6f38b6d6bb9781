"""Simulated history: what an appliance would have sent in the past.

Workloads are planned for each GPU from the seed: trainings of one to five hours, more by day than
by night, and one service. Each is a job, whose id follows from the plan. A new simulated appliance,
whose GPUs all work, then runs the plan. The present goes on with it for a while, so that no chart
shows where the history ends.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from uuid import UUID

from core.clock import to_ns
from plugins.simulated_gpu.reader import gpu_points, xid_points
from plugins.simulated_host.reader import host_points
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import GIB, SimulationConfig, Workload, fraction
from timeseries.points import Point

DAY_HOURS = range(7, 20)
Span = tuple[datetime, datetime]
# Memory, temperature and the load of 15 minutes need some time to settle.
SETTLING, SETTLING_STEP = timedelta(hours=1), timedelta(minutes=1)
# When workloads end after the history: not all at once, because a GPU is idle until its next job.
SHORTEST_REST, LONGEST_REST = timedelta(seconds=10), timedelta(seconds=150)


def history(
    config: SimulationConfig,
    *,
    start_at: datetime,
    end_at: datetime,
    step: timedelta,
    planned: Span | None = None,
) -> Iterator[Point]:
    """Yield the points of `[start_at, end_at)`, oldest first.

    `planned` is the span of which this is a part; all parts show the same workloads.
    """
    first_at, last_at = planned or (start_at, end_at)
    model = SimulatedAppliance(replace(config, lost_gpu=None), started_at=first_at)
    settling_at = max(first_at, start_at - SETTLING)
    workloads = [
        workload
        for workload in planned_workloads(config, first_at, last_at)
        if workload.started_at < end_at and settling_at < (workload.until_at or end_at)
    ]
    for workload in workloads:
        model.add(workload)
    while settling_at < start_at:
        model.read(settling_at)
        settling_at += SETTLING_STEP
    before, now = start_at - step, start_at
    while now < end_at:
        yield from host_points(model, now)
        job_of_gpu = {
            uuid: job_id_of(workload)
            for workload in workloads
            if workload.is_running(now)
            for uuid in workload.gpu_uuids
        }
        for point in gpu_points(model, now, is_brief=True):
            job_id = job_of_gpu.get(point.tags["uuid"])
            job = {} if job_id is None else {"job": job_id}
            yield replace(point, tags={**point.tags, **job})
        yield from xid_points(model.config, now, before=before)
        before = now
        now += step


@lru_cache(maxsize=8_192)
def job_id_of(workload: Workload) -> str:
    """Return the id of a planned workload's job: a UUIDv7 of its start and its name."""
    milliseconds = to_ns(workload.started_at) // 1_000_000
    digest = int.from_bytes(sha256(workload.workload_id.encode()).digest()[:10], "big")
    # RFC 9562, section 5.7: version 7 and variant 2 amid 74 free bits.
    number = milliseconds << 80 | 7 << 76 | digest >> 68 << 64 | 2 << 62 | digest % 2**62
    return str(UUID(int=number))


def continue_history(model: SimulatedAppliance, *, start_at: datetime, end_at: datetime) -> None:
    """Let a new appliance go on for a while as its history of this span ends."""
    for workload in planned_workloads(model.config, start_at, end_at):
        if workload.until_at is not None and workload.until_at >= end_at:
            rest = fraction(f"rest:{workload.workload_id}") * (LONGEST_REST - SHORTEST_REST)
            model.add(replace(workload, until_at=end_at + SHORTEST_REST + rest))
    model.read(end_at - SETTLING)


def planned_workloads(
    config: SimulationConfig, start_at: datetime, end_at: datetime
) -> Iterator[Workload]:
    """Yield the workloads of a span by GPU; some begin before it or end after it."""
    for index, uuid in enumerate(config.gpu_uuids):
        is_service = index == config.gpu_count - 1
        at, turn = start_at - timedelta(hours=3), 0
        while at < end_at:
            name = f"past:{config.seed}:{index}:{turn}"
            busy = timedelta(hours=1 + 4 * fraction(f"busy:{name}"))
            if is_service:
                busy = end_at - at
            yield Workload(
                workload_id=name,
                gpu_uuids=(uuid,),
                cpus=3 + 6 * fraction(f"cpus:{name}"),
                memory_bytes=int((16 + 32 * fraction(f"memory:{name}")) * GIB),
                is_service=is_service,
                intensity=0.9 + 0.1 * fraction(f"intensity:{name}"),
                started_at=at,
                until_at=at + busy,
            )
            at += busy + _pause(name, at + busy)
            turn += 1


def _pause(name: str, at: datetime) -> timedelta:
    longest_hours = 1.6 if at.hour in DAY_HOURS else 2.4
    return timedelta(hours=0.1 + longest_hours * fraction(f"pause:{name}"))
