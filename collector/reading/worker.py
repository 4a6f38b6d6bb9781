"""The worker process, in which plugins with `traits.worker` run.

It ends with its agent: when its input ends, or by a signal of the kernel if it hangs. It imports
only the plugins that it is configured with.
"""

import ctypes
import importlib
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from collector.reading.worker_protocol import (
    REQUESTS,
    Close,
    Configure,
    CutGPUs,
    DisconnectedError,
    Done,
    Failed,
    FailureKind,
    Gather,
    Gathered,
    GPUsCut,
    Reply,
    Request,
    receive,
    send,
)
from core.clock import from_ns
from core.config import check_config
from core.logs import configure_logging
from plugins.base import Plugin, PluginContext, PluginRestartError, PluginUnavailableError
from plugins.mig import MIGDriver, MIGInUseError, MIGPermissionError
from protocol.gpu_processes import GPUProcess
from protocol.inventory import Inventory

log = logging.getLogger(__name__)

KINDS = {
    PluginUnavailableError: FailureKind.UNAVAILABLE,
    PluginRestartError: FailureKind.RESTART,
    MIGInUseError: FailureKind.IN_USE,
    MIGPermissionError: FailureKind.NOT_PERMITTED,
}

_SET_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def main(argv: list[str]) -> None:
    """Serve the agent until it ends.

    Args:
        argv: the worker's name, the agent's process id, the log level.
    """
    name, parent, level = argv
    # It was set to find this module; programs that plugins start must not inherit it.
    os.environ.pop("PYTHONPATH", None)
    requests, replies = _redirect_pipes()
    configure_logging(level if level.isalpha() else "INFO", process=f"agent/{name}")
    # The kernel kills this process when its parent ends, even in a call that hangs.
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != int(parent):  # it had ended before
        sys.exit(1)
    serve(requests, replies)


def serve(requests: int, replies: int) -> None:
    """Reply to the requests from one descriptor on the other one."""
    plugins = WorkerPlugins()
    try:
        while True:
            reply = plugins.handle(receive(requests, REQUESTS, timeout_seconds=None))
            try:
                send(replies, reply, timeout_seconds=None)
            except (OverflowError, TypeError, ValueError) as error:  # a value msgpack can't encode
                failed = Failed(message=f"it returned an invalid value: {error}")
                send(replies, failed, timeout_seconds=None)
    except DisconnectedError:
        pass  # the agent has ended or closed the pipe
    finally:
        plugins.close()


class WorkerPlugins:
    """The plugins of this worker."""

    def __init__(self) -> None:
        self._plugins: dict[str, Plugin] = {}
        self._mig_driver: MIGDriver | None = None
        self._job_of_gpu: Mapping[str, str] = {}
        self._job_of_container: Mapping[str, str] = {}
        self._inventory: Inventory | None = None
        self._gpu_processes: list[GPUProcess] | None = None

    def handle(self, request: Request) -> Reply:
        """Handle a request; errors of plugins are replies."""
        try:
            match request:
                case Configure():
                    self._configure(request)
                case Gather():
                    return self._gather(request)
                case Close(plugin=name):
                    self._close(name)
                case CutGPUs():
                    return self._cut_gpus(request)
        except Exception as error:  # noqa: BLE001 - a third-party plugin may raise anything
            kinds = (kind for cls, kind in KINDS.items() if isinstance(error, cls))
            message = str(error) or type(error).__name__
            return Failed(message=message, kind=next(kinds, FailureKind.ERROR))
        return Done()

    def close(self) -> None:
        """Close all plugins."""
        for name in list(self._plugins):
            try:
                self._close(name)
            except Exception:
                log.exception("can't close plugin %s", name)

    def _configure(self, request: Configure) -> None:
        self._close(request.plugin)
        module, _, attribute = request.class_path.partition(":")
        plugin_class = getattr(importlib.import_module(module), attribute)
        config, errors = check_config(plugin_class.config_class, request.config)
        if config is None:
            raise ValueError("; ".join(errors))
        context = PluginContext(
            proc=Path(request.proc),
            sys=Path(request.sys),
            docker_url=request.docker_url,
            job_of_gpu=lambda: self._job_of_gpu,
            job_of_container=lambda: self._job_of_container,
            publish_inventory=self._set_inventory,
            publish_gpu_processes=self._set_gpu_processes,
        )
        self._plugins[request.plugin] = plugin_class(config, context)

    def _gather(self, request: Gather) -> Gathered:
        self._job_of_gpu = request.job_of_gpu
        self._job_of_container = request.job_of_container
        self._inventory = self._gpu_processes = None
        points = list(self._plugins[request.plugin].gather(from_ns(request.now_ns)))
        return Gathered(points=points, inventory=self._inventory, gpu_processes=self._gpu_processes)

    def _close(self, name: str) -> None:
        plugin = self._plugins.pop(name, None)
        if plugin is not None:
            plugin.close()

    def _cut_gpus(self, request: CutGPUs) -> GPUsCut:
        if self._mig_driver is None:
            from plugins.nvml.mig import NVMLMIGDriver  # noqa: PLC0415 - NVML's bindings are heavy

            self._mig_driver = NVMLMIGDriver()
        result = getattr(self._mig_driver, request.method)(**request.arguments)
        if isinstance(result, list):
            return GPUsCut(gpus=result)
        return GPUsCut(instance=result)

    def _set_inventory(self, inventory: Inventory) -> None:
        self._inventory = inventory

    def _set_gpu_processes(self, processes: list[GPUProcess]) -> None:
        self._gpu_processes = processes


def _redirect_pipes() -> tuple[int, int]:
    """Reserve the pipes for messages: plugins get an empty input, their output goes to the log."""
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


if __name__ == "__main__":
    main(sys.argv[1:])
