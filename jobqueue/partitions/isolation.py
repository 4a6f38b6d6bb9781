"""What separates jobs that share a GPU, by its mode, and which of them may share.

Sources: NVIDIA's Multi-Instance GPU User Guide and Multi-Process Service documentation.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.gpu_slices import PartitionMode


@dataclass(frozen=True, slots=True)
class Isolation:
    """What a mode separates, each in a few words for users.

    Attributes:
        level: a higher one separates more.
        memory: whether a job can use or read the memory of others.
        faults: whether a fault of one job ends others.
        bandwidth: whether jobs slow each other down.
        metrics: what can be measured of each job.
    """

    level: int
    memory: str
    faults: str
    bandwidth: str
    metrics: str


ISOLATION: Mapping[PartitionMode, Isolation] = {
    PartitionMode.TIME_SLICING: Isolation(
        1,
        memory="not limited: a job can take the memory of the others",
        faults="not isolated: an error that resets the GPU ends all jobs on it",
        bandwidth="shared by turns",
        metrics="memory of each job; utilization only of the whole GPU",
    ),
    PartitionMode.MPS: Isolation(
        2,
        memory="limited for each job, unless its program lifts that; separate address spaces",
        faults="not isolated: a fatal fault of one job ends the others on the GPU",
        bandwidth="multiprocessors limited, memory bandwidth shared",
        metrics="memory of each job; utilization only of the whole GPU",
    ),
    PartitionMode.MIG: Isolation(
        3,
        memory="separate memory and cache",
        faults="isolated from other instances, but for a reset of the whole GPU",
        bandwidth="separate multiprocessors and memory bandwidth; PCIe is shared",
        metrics="memory of each slice; its activity on Hopper and newer",
    ),
    PartitionMode.WHOLE: Isolation(
        4,
        memory="a GPU of its own",
        faults="isolated",
        bandwidth="a GPU of its own; NVLink and PCIe are shared",
        metrics="everything",
    ),
}

MODE_NAMES: Mapping[PartitionMode, str] = {
    PartitionMode.WHOLE: "whole GPUs",
    PartitionMode.MIG: "MIG",
    PartitionMode.MPS: "MPS",
    PartitionMode.TIME_SLICING: "time slicing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationRules:
    """The weakest modes in which jobs of different users, or projects, share a GPU.

    By default, jobs of one user or one project share in any mode, others under MIG only. Under MPS
    jobs share with those of the same user only: a server serves one user at a time.
    """

    between_users: PartitionMode | None = None
    between_projects: PartitionMode | None = None

    def may_share(self, mode: PartitionMode, *, is_same_user: bool, is_same_project: bool) -> bool:
        """Return whether two jobs may share a GPU; jobs without a project have no same one."""
        if mode is PartitionMode.WHOLE or (mode is PartitionMode.MPS and not is_same_user):
            return False
        needed = [0]
        if not is_same_user:
            default = PartitionMode.TIME_SLICING if is_same_project else PartitionMode.MIG
            needed.append(ISOLATION[self.between_users or default].level)
        if not is_same_project and self.between_projects is not None:
            needed.append(ISOLATION[self.between_projects].level)
        return ISOLATION[mode].level >= max(needed)
