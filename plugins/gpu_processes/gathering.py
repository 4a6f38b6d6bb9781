"""GPU processes of each GPU or MIG slice, by owner."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from core.clock import to_ns
from plugins.base import PluginContext
from plugins.gpu_processes.owners import Owners
from plugins.gpu_processes.uses import WHOLE_PERCENT, listed, use_points
from plugins.nvml.calls import Calls, read_reopening
from plugins.nvml.library import Device, GPULostError, NVMLLibrary, pynvml
from plugins.nvml.slices import find_slices, is_mig_enabled
from timeseries.points import Point

CACHE_LIFETIME = timedelta(hours=1)
MICROS_PER_SECOND = 1_000_000
NS_PER_MICRO = 1000
LISTS = (
    pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
)
OLDER_LISTS = (
    pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
)


@dataclass(slots=True)
class _Target:
    """A GPU or slice with its processes."""

    tags: dict[str, str]
    calls: Calls
    memory_of: dict[int, int | None] = field(default_factory=dict)
    percent_of: dict[int, float] | None = None

    def percent(self, pid: int) -> float | None:
        """Return the use of a process; None if the driver does not sample processes."""
        return None if self.percent_of is None else self.percent_of.get(pid, 0.0)


class Gathering:
    """Reads NVML, which stays open between readings."""

    def __init__(self, context: PluginContext, *, skip_uuids: Collection[str]) -> None:
        self._library = NVMLLibrary()
        self._publish = context.publish_gpu_processes
        self._owners = Owners(context.proc, context.job_of_container)
        self._skip_uuids = skip_uuids
        self._calls: dict[str, Calls] = {}
        self._learned_at: datetime | None = None
        self._samples: dict[str, _Samples] = {}

    def points(self, now: datetime) -> list[Point]:
        """Return a point for each GPU or slice and owner, and publish the processes."""
        targets = read_reopening(lambda: self._read(now), close=self.close)
        pids = {pid for target in targets for pid in target.memory_of}
        owners = self._owners.of(pids)
        self._publish(
            [
                process
                for target in targets
                for process in listed(target.tags, target.memory_of, owners, self._owners.name_of)
            ]
        )
        return [
            point
            for target in targets
            for point in use_points(target.tags, target.memory_of, target.percent, owners, now=now)
        ]

    def close(self) -> None:
        """Close NVML."""
        self._calls, self._learned_at = {}, None
        self._library.close()

    def _read(self, now: datetime) -> list[_Target]:
        if self._learned_at is None or now - self._learned_at >= CACHE_LIFETIME:
            self._calls, self._learned_at = {}, now
        targets = []
        for device in self._library.devices():
            try:
                targets += [self._fill(target, now) for target in self._targets(device)]
            except GPULostError:
                continue  # the nvml plugin reports it
        return targets

    def _targets(self, device: Device) -> Iterator[_Target]:
        if device.uuid in self._skip_uuids:
            return
        calls = self._calls_to(device.uuid, device.handle)
        own = {"gpu": str(device.index), "uuid": device.uuid}
        if not is_mig_enabled(calls):
            yield _Target(own, calls)
            return
        for mig_slice in find_slices(calls):
            if mig_slice.uuid not in self._skip_uuids:
                yield _Target(
                    {**own, "uuid": mig_slice.uuid},
                    self._calls_to(mig_slice.uuid, mig_slice.handle),
                )

    def _calls_to(self, uuid: str, handle: object) -> Calls:
        calls = self._calls.setdefault(uuid, Calls(handle))
        calls.handle = handle
        return calls

    def _fill(self, target: _Target, now: datetime) -> _Target:
        lists = [target.calls.ask(call) for call in LISTS]
        if lists[0] is None:  # drivers before 510
            lists = [target.calls.ask(call) for call in OLDER_LISTS]
        target.memory_of = _memory_by_pid(
            process for processes in lists for process in processes or ()
        )
        if target.memory_of:
            target.percent_of = self._use_by_pid(target, now)
        return target

    def _use_by_pid(self, target: _Target, now: datetime) -> dict[int, float] | None:
        """Return the mean use of each process since the last reading; None if not supported."""
        first_us = to_ns(now) // NS_PER_MICRO - MICROS_PER_SECOND
        samples = self._samples.setdefault(target.tags["uuid"], _Samples(first_us))
        uses = target.calls.ask(samples)
        if uses is None:
            return None
        percents: dict[int, list[int]] = defaultdict(list)
        for pid, percent in uses:
            percents[pid].append(percent)
        return {pid: sum(values) / len(values) for pid, values in percents.items()}


class _Samples:
    """Process utilization samples of one GPU; the driver returns each once.

    Args:
        since_us: skip samples up to this driver time, in microseconds.
    """

    def __init__(self, since_us: int) -> None:
        self._since_us = since_us

    def __call__(self, handle: object) -> list[tuple[int, int]]:
        """Return process and percent of each new sample."""
        try:
            samples = list(pynvml.nvmlDeviceGetProcessUtilization(handle, self._since_us))
        except pynvml.NVMLError as error:
            if error.value in {pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND}:
                return []  # no new samples
            raise
        # The driver pads the result with empty entries.
        new = [sample for sample in samples if sample.timeStamp > self._since_us]
        self._since_us = max((sample.timeStamp for sample in new), default=self._since_us)
        return [(sample.pid, sample.smUtil) for sample in new if sample.smUtil <= WHOLE_PERCENT]


def _memory_by_pid(processes: Iterable[pynvml.c_nvmlProcessInfo_t]) -> dict[int, int | None]:
    """Return GPU memory by process; one with compute and graphics contexts is listed twice."""
    memory_of: dict[int, int | None] = {}
    for process in processes:
        before, used = memory_of.get(process.pid), process.usedGpuMemory
        amounts = [int(amount) for amount in (before, used) if amount is not None]
        memory_of[process.pid] = max(amounts) if amounts else None
    return memory_of
