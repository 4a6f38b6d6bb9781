"""All modes of sharing GPUs: each slice and order goes to the part that knows its mode."""

import logging
from collections.abc import Iterable, Mapping, Sequence

from collector.gpu_slices.base import GPUSlices, SliceAccess, SliceError
from protocol.attempts import AttemptObservation
from protocol.gpu_slices import GPUPartition, GPUSlice, PartitionMode

log = logging.getLogger(__name__)


class AllModes:
    """Shares GPUs in the modes of its parts, and by turns, which needs no preparation.

    Args:
        mig: MIG instances; None without.
        mps: MPS servers; None without.
    """

    def __init__(self, *, mig: GPUSlices | None = None, mps: GPUSlices | None = None) -> None:
        parts = {PartitionMode.MPS: mps, PartitionMode.MIG: mig}
        # A server of MPS ends before MIG is switched on.
        self._parts = {mode: part for mode, part in parts.items() if part is not None}

    @property
    def modes(self) -> Sequence[PartitionMode]:
        """Those that work for this agent."""
        modes = [mode for part in self._parts.values() for mode in part.modes]
        return [*modes, PartitionMode.TIME_SLICING]

    def prepare(self, attempt_id: str, wanted: GPUSlice) -> SliceAccess:
        """Make an attempt's slice."""
        part = self._parts.get(wanted.mode)
        if part is not None:
            return part.prepare(attempt_id, wanted)
        if wanted.mode is PartitionMode.TIME_SLICING:
            return SliceAccess(gpu_uuids=[wanted.gpu_uuid])
        raise SliceError(f"This agent can't share GPUs by {wanted.mode}: update it.")

    def settle(
        self, partitions: Sequence[GPUPartition], in_use: Mapping[str, GPUSlice], busy: set[str]
    ) -> None:
        """Make the GPUs match the orders; a part that fails does not stop the others."""
        for mode, part in self._parts.items():
            try:
                part.settle(partitions, in_use, busy)
            except SliceError as error:
                log.warning("GPUs can't be shared by %s: %s", mode, error)

    def review(
        self, observed: Iterable[AttemptObservation], attempt_of_container: Mapping[str, str]
    ) -> list[AttemptObservation]:
        """Return what was observed, as each part explains it."""
        reviewed = list(observed)
        for part in self._parts.values():
            reviewed = part.review(reviewed, attempt_of_container)
        return reviewed

    def close(self) -> None:
        """Close the parts."""
        for part in self._parts.values():
            part.close()
