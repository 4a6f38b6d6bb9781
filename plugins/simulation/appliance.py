"""The simulated appliance: devices and the work on them, moved forward by the time it is told.

Plugins read it, the simulated executor adds and removes work; both may do so from their threads.
A *workload* is what a job is to the hardware: GPUs held, cores, memory, and when it began.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock

from plugins.simulation.config import SimulationConfig
from plugins.simulation.gpu import GPULoad, GPUReading, SimulatedGPU
from plugins.simulation.host import HostLoad, HostReading, SimulatedHost


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Work on the appliance; `intensity` is how busy it keeps its GPUs (0 to 1)."""

    workload_id: str
    gpu_uuids: Sequence[str] = ()
    cpus: float = 1.0
    memory_bytes: int = 0
    is_service: bool = False
    intensity: float = 1.0
    started_at: datetime


@dataclass(frozen=True, slots=True)
class ApplianceReading:
    """Everything that can be read at one instant; GPUs by UUID, in index order."""

    host: HostReading
    gpus: Mapping[str, GPUReading]


@dataclass(slots=True)
class _Instant:
    now: datetime
    reading: ApplianceReading | None = field(default=None)


class SimulatedAppliance:
    """A server with GPUs that exists only as numbers. Safe to share by threads.

    Args:
        is_restart: an earlier agent of this appliance has told what happened at its start: the
            driver reports a lost GPU once, not to every agent anew.
    """

    def __init__(
        self, config: SimulationConfig, *, started_at: datetime, is_restart: bool = False
    ) -> None:
        self.config = config
        self._started_at = started_at
        self._looked_at = started_at if is_restart else None
        self._lock = Lock()
        self._workloads: dict[str, Workload] = {}
        self._host = SimulatedHost(config)
        self._gpus = {
            uuid: SimulatedGPU(
                f"{config.seed}/{index}",
                memory_bytes=config.gpu_memory_bytes,
                power_limit_watts=config.power_limit_watts,
                sm_clock_hertz=config.sm_clock_hertz,
                is_hot=index == config.hot_gpu,
            )
            for index, uuid in enumerate(config.gpu_uuids)
        }
        self._last = _Instant(started_at)

    def add(self, workload: Workload) -> None:
        """Put work on the appliance; the same id again changes nothing."""
        with self._lock:
            self._workloads.setdefault(workload.workload_id, workload)

    def remove(self, workload_id: str) -> None:
        """Take work off the appliance; unknown ids are ignored."""
        with self._lock:
            self._workloads.pop(workload_id, None)

    def read(self, now: datetime) -> ApplianceReading:
        """Return the readings at `now`; an instant before the last one gives the last again."""
        with self._lock:
            if self._last.reading is None or now > self._last.now:
                self._last = _Instant(now, self._advance(now))
            assert self._last.reading is not None  # noqa: S101 - set just above
            return self._last.reading

    def take_look(self, now: datetime) -> datetime | None:
        """Return when events were looked for last, None at the very first time."""
        with self._lock:
            before, self._looked_at = self._looked_at, now
            return before

    def is_offline(self, now: datetime) -> bool:
        """Return whether the agent is in one of its planned outages."""
        every, length = self.config.outage_every_seconds, self.config.outage_seconds
        if every <= 0 or length <= 0:
            return False
        return (now - self._started_at).total_seconds() % every >= every - length

    def _advance(self, now: datetime) -> ApplianceReading:
        elapsed_seconds = max(0.0, (now - self._last.now).total_seconds())
        work = sorted(self._workloads.values(), key=lambda workload: workload.workload_id)
        holder = {uuid: workload for workload in work for uuid in workload.gpu_uuids}
        seconds = now.timestamp()
        gpus = {
            uuid: gpu.advance(
                _gpu_load(holder.get(uuid), uuid, now),
                seconds=seconds,
                elapsed_seconds=elapsed_seconds,
            )
            for uuid, gpu in self._gpus.items()
        }
        host = self._host.advance(
            [_host_load(workload, now) for workload in work],
            seconds=seconds,
            elapsed_seconds=elapsed_seconds,
        )
        return ApplianceReading(host, gpus)


def _age_seconds(workload: Workload, now: datetime) -> float:
    return max(0.0, (now - workload.started_at).total_seconds())


def _gpu_load(workload: Workload | None, uuid: str, now: datetime) -> GPULoad | None:
    if workload is None:
        return None
    return GPULoad(
        name=f"{workload.workload_id}/{uuid}",
        age_seconds=_age_seconds(workload, now),
        is_service=workload.is_service,
        intensity=workload.intensity,
    )


def _host_load(workload: Workload, now: datetime) -> HostLoad:
    return HostLoad(
        name=workload.workload_id,
        cpus=workload.cpus,
        memory_bytes=workload.memory_bytes,
        gpu_count=len(workload.gpu_uuids),
        age_seconds=_age_seconds(workload, now),
    )
