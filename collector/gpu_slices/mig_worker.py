"""The MIG driver in a worker process, which is killed when a call hangs."""

from threading import Lock
from typing import Literal

from collector.reading.worker_process import WorkerProcess
from collector.reading.worker_protocol import CutGPUs, Failed, FailureKind, GPUsCut, Reply
from plugins.base import PluginError
from plugins.mig import MIGGPU, MIGError, MIGInUseError, MIGPermissionError
from protocol.gpu_slices import MIGInstance

# Drivers reset a GPU to change its mode, which takes some seconds.
CALL_SECONDS = 60.0
_ERRORS = {
    FailureKind.IN_USE: MIGInUseError,
    FailureKind.NOT_PERMITTED: MIGPermissionError,
}


class WorkerMIGDriver:
    """Cuts GPUs in a worker process; see `plugins.mig.MIGDriver`.

    `close` may be called while another thread waits for a call.
    """

    def __init__(self, *, call_seconds: float = CALL_SECONDS) -> None:
        self._call_seconds = call_seconds
        self._worker = WorkerProcess("mig")
        self._lock = Lock()

    def read(self) -> list[MIGGPU]:
        """Return the GPUs that know MIG."""
        return self._call("read").gpus

    def set_mode(self, gpu_uuid: str, *, enabled: bool) -> None:
        """Switch MIG on or off."""
        self._call("set_mode", gpu_uuid=gpu_uuid, enabled=enabled)

    def create(self, gpu_uuid: str, profile: str, start: int) -> MIGInstance:
        """Make or complete an instance."""
        made = self._call("create", gpu_uuid=gpu_uuid, profile=profile, start=start).instance
        if made is None:
            raise MIGError("the driver's process sent an unexpected reply")
        return made

    def destroy(self, gpu_uuid: str, start: int) -> None:
        """Destroy an instance."""
        self._call("destroy", gpu_uuid=gpu_uuid, start=start)

    def close(self) -> None:
        """End the worker process, also during a call."""
        self._worker.kill()
        with self._lock:
            self._worker.close()

    def _call(
        self,
        method: Literal["read", "set_mode", "create", "destroy"],
        **arguments: str | int | bool,
    ) -> GPUsCut:
        request = CutGPUs(method=method, arguments=arguments)
        with self._lock:
            reply = self._reply(request)
        if isinstance(reply, GPUsCut):
            return reply
        if not isinstance(reply, Failed):
            raise MIGError("the driver's process sent an unexpected reply")
        raise _ERRORS.get(reply.kind, MIGError)(reply.message)

    def _reply(self, request: CutGPUs) -> Reply:
        try:
            self._worker.start()
            reply = self._worker.request(request, timeout_seconds=self._call_seconds)
        except PluginError as error:
            raise MIGError(f"the NVIDIA driver does not answer: {error}") from error
        if isinstance(reply, Failed) and reply.kind is FailureKind.RESTART:
            self._worker.discard()
        return reply
