"""GPU use by owner: points and the list of processes, of any maker's GPUs."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from core.clock import to_ns
from plugins.gpu_processes.owners import Owner
from protocol.gpu_processes import GPUProcess
from timeseries.points import FieldValue, Point

WHOLE_PERCENT = 100
MemoryOf = Mapping[int, int | None]
"""The GPU memory of each process in bytes, None if it is not known."""


@dataclass(slots=True)
class _Use:
    """GPU use of one owner; None if unknown."""

    processes: int = 0
    memory_bytes: int | None = None
    percent: float | None = None

    def add(self, memory_bytes: int | None, percent: float | None) -> None:
        self.processes += 1
        if memory_bytes is not None:
            self.memory_bytes = (self.memory_bytes or 0) + memory_bytes
        if percent is not None:
            self.percent = min(float(WHOLE_PERCENT), (self.percent or 0.0) + percent)

    def fields(self) -> dict[str, FieldValue]:
        fields: dict[str, FieldValue] = {"processes": self.processes}
        if self.memory_bytes is not None:
            fields["memory_used_bytes"] = self.memory_bytes
        if self.percent is not None:
            fields["utilization_percent"] = round(self.percent, 1)
        return fields


def use_points(
    tags: Mapping[str, str],
    memory_of: MemoryOf,
    percent_of: Callable[[int], float | None],
    owners: Mapping[int, Owner],
    *,
    now: datetime,
) -> Iterator[Point]:
    """Yield a point for each owner with processes on a GPU or slice.

    Args:
        tags: of the GPU or slice.
        memory_of: its processes.
        percent_of: returns the use of a process, None if it is not known.
        owners: of the processes that still run.
        now: the time of the points.
    """
    uses: dict[Owner, _Use] = defaultdict(_Use)
    for pid, memory_bytes in memory_of.items():
        if pid in owners:
            uses[owners[pid]].add(memory_bytes, percent_of(pid))
    for owner, use in uses.items():
        yield Point("gpu_process", {**tags, **owner.tags()}, use.fields(), to_ns(now))


def listed(
    tags: Mapping[str, str],
    memory_of: MemoryOf,
    owners: Mapping[int, Owner],
    name_of: Callable[[int], str],
) -> Iterator[GPUProcess]:
    """Yield the processes on a GPU or slice that still run, for the heartbeat."""
    for pid, memory_bytes in memory_of.items():
        if pid in owners:
            owner = owners[pid]
            yield GPUProcess(
                pid=pid,
                name=name_of(pid),
                gpu=int(tags["gpu"]),
                uuid=tags["uuid"],
                memory_bytes=memory_bytes or 0,
                owner=owner.kind,
                job=owner.job,
                container=owner.container,
            )
