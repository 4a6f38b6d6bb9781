"""The interface of what cuts GPUs into slices on this appliance."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from protocol.attempts import AttemptObservation
from protocol.gpu_slices import GPUPartition, GPUSlice, PartitionMode
from protocol.job_spec import Mount


class SliceError(Exception):
    """A slice can't be had; the message says why and what to do, for the job's page."""


class SliceAccess(msgspec.Struct, frozen=True, kw_only=True):
    """What a container gets so that it can use its slice.

    Attributes:
        gpu_uuids: the device: a MIG instance, or the GPU.
        slice_uuid: of the MIG instance, for the attempt's observation.
        env: further variables.
        mounts: further paths of the host.
        uses_host_ipc: whether it needs the host's shared memory, as clients of MPS do.
    """

    gpu_uuids: list[str]
    slice_uuid: str = ""
    env: dict[str, str] = {}
    mounts: list[Mount] = []
    uses_host_ipc: bool = False


class GPUSlices(Protocol):
    """Cuts the GPUs of this appliance. Every call may be repeated, after a crash at any step, too.

    For one thread at a time, except `modes` and `close`.
    """

    @property
    def modes(self) -> Sequence[PartitionMode]:
        """Those that work for this agent, if it has such GPUs."""

    def prepare(self, attempt_id: str, wanted: GPUSlice) -> SliceAccess:
        """Make an attempt's slice if it isn't there, and return how its container uses it.

        Raises:
            SliceError: it can't be made.
        """

    def settle(
        self, partitions: Sequence[GPUPartition], in_use: Mapping[str, GPUSlice], busy: set[str]
    ) -> None:
        """Make the GPUs match the portal's orders, as far as no job is in the way.

        Instances and servers that no attempt uses end, apart from those of a layout; the mode of
        a GPU changes while it is idle.

        Args:
            partitions: the orders; a GPU without one is left alone.
            in_use: the slices of the attempts that have not ended, by attempt.
            busy: GPUs that attempts use as a whole.
        """

    def review(
        self, observed: Iterable[AttemptObservation], attempt_of_container: Mapping[str, str]
    ) -> list[AttemptObservation]:
        """Return what was observed, where attempts say if a neighbor on their GPU ended them."""

    def close(self) -> None:
        """End what this process started, but no slice of an attempt."""
