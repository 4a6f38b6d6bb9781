"""The simulated appliance: devices and workloads, advanced to the time of each reading.

Plugins read it, the simulated executor adds and removes workloads, from different threads. A
*workload* is a job's use of hardware: allocated GPUs, cores, memory, and its start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Lock

from plugins.simulation.config import SimulationConfig, Workload
from plugins.simulation.gpu import GPUReading, SimulatedGPU, SliceReading
from plugins.simulation.host import HostReading, SimulatedHost
from plugins.simulation.mig import SimulatedMIGDriver


@dataclass(frozen=True, slots=True)
class ApplianceReading:
    """All readings at one instant: GPUs by UUID, in index order, and the parts of GPUs in use."""

    host: HostReading
    gpus: Mapping[str, GPUReading]
    slices: Sequence[SliceReading]


class SimulatedAppliance:
    """A simulated server with GPUs. Thread-safe.

    Args:
        is_restart: an earlier agent reported the events at its start: the driver reports a lost GPU
            only once.
        mig_state_path: where MIG's modes and instances stay between starts.

    Attributes:
        mig: cuts its GPUs.
    """

    def __init__(
        self,
        config: SimulationConfig,
        *,
        started_at: datetime,
        is_restart: bool = False,
        mig_state_path: Path | None = None,
    ) -> None:
        self.config = config
        self.mig = SimulatedMIGDriver(config, state_path=mig_state_path)
        self._started_at = started_at
        self._looked_at = started_at if is_restart else None
        self._lock = Lock()
        self._workloads: dict[str, Workload] = {}
        self._mps_faults: list[str] = []
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
        self._read_at = started_at
        self._reading: ApplianceReading | None = None

    def add(self, workload: Workload) -> None:
        """Add a workload; idempotent by ID."""
        with self._lock:
            self._workloads.setdefault(workload.workload_id, workload)

    def remove(self, workload_id: str) -> None:
        """Remove a workload; ignores unknown IDs."""
        with self._lock:
            self._workloads.pop(workload_id, None)

    def note_mps_fault(self, gpu_uuid: str) -> None:
        """Note that a job has caused a fatal fault on a GPU that jobs share by MPS."""
        with self._lock:
            self._mps_faults.append(gpu_uuid)

    def pop_mps_faults(self, gpu_uuid: str) -> int:
        """Return how many faults there were on a GPU since the last call."""
        with self._lock:
            count = self._mps_faults.count(gpu_uuid)
            self._mps_faults = [other for other in self._mps_faults if other != gpu_uuid]
            return count

    def read(self, now: datetime) -> ApplianceReading:
        """Return the readings at `now`; for an earlier time than the last, return the last."""
        with self._lock:
            if self._reading is None or now > self._read_at:
                self._reading = self._advance(now)
                self._read_at = now
            return self._reading

    def mark_events_read(self, now: datetime) -> datetime | None:
        """Return when events were last read; None at first. Record `now`."""
        with self._lock:
            before, self._looked_at = self._looked_at, now
            return before

    def is_offline(self, now: datetime) -> bool:
        """Return whether the agent is in a simulated outage."""
        every, length = self.config.outage_every_seconds, self.config.outage_seconds
        if every <= 0 or length <= 0:
            return False
        return (now - self._started_at).total_seconds() % every >= every - length

    def _advance(self, now: datetime) -> ApplianceReading:
        elapsed_seconds = max(0.0, (now - self._read_at).total_seconds())
        running = (workload for workload in self._workloads.values() if workload.is_running(now))
        # Jobs come last, so that they take over the GPUs of others.
        work = sorted(
            running, key=lambda workload: (workload.until_at is None, workload.workload_id)
        )
        holder = {uuid: workload for workload in work for uuid in workload.gpu_uuids}
        slices = [
            gpu.read_slice(workload, workload.gpu_slice, now)
            for workload in work
            if workload.gpu_slice is not None
            and (gpu := self._gpus.get(workload.gpu_slice.gpu_uuid)) is not None
        ]
        gpus = {
            uuid: gpu.advance(
                holder.get(uuid),
                now,
                elapsed_seconds=elapsed_seconds,
                slices=[own for own in slices if own.gpu_slice.gpu_uuid == uuid],
            )
            for uuid, gpu in self._gpus.items()
        }
        host = self._host.advance(work, now, elapsed_seconds=elapsed_seconds)
        return ApplianceReading(host, gpus, slices)
