"""A plausible past: what an appliance of this kind would have sent while jobs came and went.

Work is planned for each GPU from the seed: trainings of one to five hours, more by day than by
night, one GPU kept by a service. The plan is then played through a fresh simulated appliance, in
which the GPU that is lost when the agent starts still works.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from plugins.simulation.appliance import SimulatedAppliance, Workload
from plugins.simulation.config import GIB, SimulationConfig
from plugins.simulation.gpu_readings import gpu_points, xid_points
from plugins.simulation.host_readings import host_points
from plugins.simulation.noise import fraction
from timeseries.points import Point

DAY_HOURS = range(7, 20)


def history(
    config: SimulationConfig, *, start_at: datetime, end_at: datetime, step: timedelta
) -> Iterator[Point]:
    """Yield the points of `[start_at, end_at)`, oldest first, one instant every `step`."""
    model = SimulatedAppliance(replace(config, lost_gpu=None), started_at=start_at)
    coming = sorted(_plan(config, start_at, end_at), key=lambda work: work[0].started_at)
    running: list[tuple[Workload, datetime]] = []
    now = start_at
    while now < end_at:
        for workload, until_at in [item for item in running if item[1] <= now]:
            model.remove(workload.workload_id)
            running.remove((workload, until_at))
        while coming and coming[0][0].started_at <= now:
            running.append(coming.pop(0))
            model.add(running[-1][0])
        yield from host_points(model, now)
        yield from gpu_points(model, now, is_brief=True)
        yield from xid_points(model.config, now, before=now - step)
        now += step


def _plan(
    config: SimulationConfig, start_at: datetime, end_at: datetime
) -> Iterator[tuple[Workload, datetime]]:
    for index, uuid in enumerate(config.gpu_uuids):
        is_service = index == config.gpu_count - 1
        at, turn = start_at - timedelta(hours=3), 0
        while at < end_at:
            name = f"past:{config.seed}:{index}:{turn}"
            busy = timedelta(hours=1 + 4 * fraction(f"busy:{name}"))
            if is_service:
                busy = end_at - at
            yield _workload(name, uuid, started_at=at, is_service=is_service), at + busy
            at += busy + _pause(name, at + busy)
            turn += 1


def _workload(name: str, uuid: str, *, started_at: datetime, is_service: bool) -> Workload:
    return Workload(
        workload_id=name,
        gpu_uuids=(uuid,),
        cpus=3 + 6 * fraction(f"cpus:{name}"),
        memory_bytes=int((16 + 32 * fraction(f"memory:{name}")) * GIB),
        is_service=is_service,
        intensity=0.7 + 0.3 * fraction(f"intensity:{name}"),
        started_at=started_at,
    )


def _pause(name: str, at: datetime) -> timedelta:
    longest_hours = 1.5 if at.hour in DAY_HOURS else 6.0
    return timedelta(hours=0.1 + longest_hours * fraction(f"pause:{name}"))
