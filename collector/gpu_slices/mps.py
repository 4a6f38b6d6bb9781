"""Shares of GPUs by MPS: a control daemon on a GPU for as long as attempts of a user share it.

What the agent changes is in a file before it happens: the compute mode to put back, and the
attempts that use a daemon. When the last of them has ended, the daemon ends, too, and the next
attempt, which may be another user's, gets a new one.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from collector.data_dir import load_json, save_json
from collector.gpu_slices.base import SliceAccess, SliceError
from collector.gpu_slices.compute_mode import DEFAULT, EXCLUSIVE_PROCESS
from collector.gpu_slices.mps_control import PIPE_VARIABLE, MPSControl
from collector.gpu_slices.mps_faults import MPSFaults
from core.clock import Clock, utc_now
from protocol.attempts import AttemptObservation
from protocol.gpu_slices import GPUPartition, GPUSlice, PartitionMode
from protocol.job_spec import Mount

log = logging.getLogger(__name__)

PIPE_DIR_IN_CONTAINER = "/run/vedette-mps"
MIB = 2**20


class ServedGPU(msgspec.Struct):
    """A GPU with a daemon: the compute mode of before, and the attempts that it serves."""

    compute_mode: int
    attempts: set[str] = set()


class MPSSlices:
    """Shares of GPUs. For one thread.

    Args:
        control: the daemons.
        state_path: where the changes are noted.
        clock: the time.
        faults: explains attempts that a fault has ended.
    """

    def __init__(
        self,
        control: MPSControl,
        state_path: Path,
        *,
        clock: Clock = utc_now,
        faults: MPSFaults | None = None,
    ) -> None:
        self._control = control
        self._state_path = state_path
        self._faults = faults or MPSFaults(control, clock)
        self._gpus = load_json(state_path, dict[str, ServedGPU]) or {}
        self.modes: Sequence[PartitionMode] = () if control.problem else (PartitionMode.MPS,)
        self._errors: dict[str, str] = {}

    def prepare(self, attempt_id: str, wanted: GPUSlice) -> SliceAccess:
        """Start the daemon of the GPU if none runs, and return what its clients need.

        Raises:
            SliceError: MPS does not work here, the daemon does not start, or the driver refuses.
        """
        if self._control.problem:
            raise SliceError(self._control.problem)
        gpu_uuid = wanted.gpu_uuid
        if gpu_uuid not in self._gpus:
            self._gpus[gpu_uuid] = ServedGPU(self._control.compute_mode(gpu_uuid))
        if attempt_id not in self._gpus[gpu_uuid].attempts:
            self._gpus[gpu_uuid].attempts.add(attempt_id)
            if not self._save():
                raise SliceError(f"The agent can't write to {self._state_path.parent}.")
        self._serve(gpu_uuid)
        return SliceAccess(
            gpu_uuids=[gpu_uuid],
            env=client_variables(wanted),
            mounts=[
                Mount(
                    source=str(self._control.pipe_dir(gpu_uuid)),
                    target=PIPE_DIR_IN_CONTAINER,
                    is_read_only=False,
                )
            ],
            uses_host_ipc=True,
        )

    def review(
        self,
        observed: Iterable[AttemptObservation],
        attempt_of_container: Mapping[str, str],
    ) -> list[AttemptObservation]:
        """Return what was observed, with the faults of neighbors that ended attempts.

        Call it before `settle`, which forgets attempts that have ended.
        """
        gpu_of_attempt: dict[str, str] = {}
        for gpu_uuid, gpu in self._gpus.items():
            self._faults.look(gpu_uuid, frozenset(gpu.attempts), attempt_of_container)
            gpu_of_attempt |= dict.fromkeys(gpu.attempts, gpu_uuid)
        return [
            self._faults.explained(seen, gpu_of_attempt[seen.attempt_id])
            if seen.attempt_id in gpu_of_attempt
            else seen
            for seen in observed
        ]

    def settle(
        self, partitions: Sequence[GPUPartition], in_use: Mapping[str, GPUSlice], busy: set[str]
    ) -> None:
        """End daemons that no attempt uses, and start those again that have ended."""
        del partitions, busy  # Daemons follow the attempts alone.
        if self._control.problem and not self._gpus:
            return
        self._adopt(in_use)
        for gpu_uuid, gpu in list(self._gpus.items()):
            attempts = {name for name in gpu.attempts if _is_on(in_use.get(name), gpu_uuid)}
            if attempts != gpu.attempts:
                gpu.attempts = attempts
                self._save()
            try:
                if not attempts:
                    self._release(gpu_uuid)
                elif gpu_uuid not in self._control.running():
                    log.warning("the MPS control daemon of %s has ended", gpu_uuid)
                    self._serve(gpu_uuid)
                    self._faults.note_restart(gpu_uuid)
                self._errors.pop(gpu_uuid, None)
            except SliceError as error:
                if self._errors.get(gpu_uuid) != str(error):
                    self._errors[gpu_uuid] = str(error)
                    log.warning("%s", error)

    def close(self) -> None:
        """Leave the daemons of attempts; the others have ended."""

    def _adopt(self, in_use: Mapping[str, GPUSlice]) -> None:
        """Note daemons of ours that the file, which may be lost, does not list."""
        for gpu_uuid in self._control.running() - self._gpus.keys():
            attempts = {name for name, wanted in in_use.items() if _is_on(wanted, gpu_uuid)}
            self._gpus[gpu_uuid] = ServedGPU(DEFAULT, attempts)
            self._save()

    def _serve(self, gpu_uuid: str) -> None:
        if gpu_uuid not in self._control.running():
            self._control.compute_mode(gpu_uuid, EXCLUSIVE_PROCESS)
            self._control.start(gpu_uuid)

    def _release(self, gpu_uuid: str) -> None:
        self._control.end(gpu_uuid)
        self._control.compute_mode(gpu_uuid, self._gpus[gpu_uuid].compute_mode)
        self._faults.forget(gpu_uuid)
        del self._gpus[gpu_uuid]
        self._save()

    def _save(self) -> bool:
        return save_json(self._state_path, self._gpus)


def client_variables(wanted: GPUSlice) -> dict[str, str]:
    """Return the variables by which a client finds the daemon, and its limits."""
    variables = {
        PIPE_VARIABLE: PIPE_DIR_IN_CONTAINER,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{max(1, wanted.share_milli) / 10:g}",
    }
    if wanted.memory_bytes:
        # The container has this GPU only, as device 0.
        limit = f"0={max(1, wanted.memory_bytes // MIB)}M"
        variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = limit
    return variables


def _is_on(wanted: GPUSlice | None, gpu_uuid: str) -> bool:
    is_shared = wanted is not None and wanted.mode is PartitionMode.MPS
    return is_shared and wanted is not None and wanted.gpu_uuid == gpu_uuid
