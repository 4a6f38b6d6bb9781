"""The process that plugins with `traits.child` are read in: this module, run by itself.

It ends with its agent: when its input ends, and, should it hang just then, by a signal of the
kernel. It imports no more than the plugins that it is told to build.
"""

import ctypes
import importlib
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from collector.reading.child_wire import (
    Close,
    Configure,
    Done,
    Failed,
    FrameEndError,
    Gather,
    Gathered,
    Reply,
    Request,
    Restart,
    Unavailable,
    read_request,
    write_frame,
)
from core.clock import from_ns
from core.config import check_config
from core.logs import configure_logging
from jobqueue.executors.wire import Inventory
from plugins.base import Plugin, PluginContext, PluginRestartError, PluginUnavailableError

log = logging.getLogger(__name__)

_SET_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def main(argv: list[str]) -> None:
    """Answer the agent until it is gone.

    Args:
        argv: the child's name, the agent's process id, the level of the log.
    """
    name, parent, level = argv
    # It led here; programs that plugins start have ways of their own.
    os.environ.pop("PYTHONPATH", None)
    requests, replies = _take_pipes()
    configure_logging(level if level.isalpha() else "INFO", process=f"agent/{name}")
    die_with(int(parent))
    serve(requests, replies)


def serve(requests: int, replies: int) -> None:
    """Answer the questions that come in on one descriptor on the other one."""
    room = PluginRoom()
    try:
        while True:
            _answer(room, read_request(requests), replies)
    except FrameEndError:
        pass  # the agent has ended, or wants no more
    finally:
        room.close()


class PluginRoom:
    """The plugins of this child."""

    def __init__(self) -> None:
        self._plugins: dict[str, Plugin] = {}
        self._gpus: Mapping[str, str] = {}
        self._containers: Mapping[str, str] = {}
        self._published: Inventory | None = None

    def reply(self, request: Request) -> Reply:
        """Do what is asked; a plugin's fault is an answer too."""
        try:
            match request:
                case Configure():
                    self._configure(request)
                case Gather():
                    return self._gather(request)
                case Close(plugin=name):
                    self._drop(name)
        except PluginUnavailableError as error:
            return Unavailable(message=str(error))
        except PluginRestartError as error:
            return Restart(message=str(error))
        except Exception as error:  # noqa: BLE001 - a foreign plugin may raise anything
            return Failed(message=str(error) or type(error).__name__)
        return Done()

    def close(self) -> None:
        """Close the plugins."""
        for name in list(self._plugins):
            try:
                self._drop(name)
            except Exception:
                log.exception("plugin %s could not be closed", name)

    def _configure(self, request: Configure) -> None:
        self._drop(request.plugin)
        module, _, attribute = request.address.partition(":")
        plugin_class = getattr(importlib.import_module(module), attribute)
        config, faults = check_config(plugin_class.config_class, request.config)
        if config is None:
            raise ValueError("; ".join(faults))
        context = PluginContext(
            proc=Path(request.proc),
            sys=Path(request.sys),
            docker_url=request.docker_url,
            job_of_gpu=lambda: self._gpus,
            job_of_container=lambda: self._containers,
            publish_inventory=self._publish,
        )
        self._plugins[request.plugin] = plugin_class(config, context)

    def _gather(self, request: Gather) -> Gathered:
        self._gpus, self._containers = request.job_of_gpu, request.job_of_container
        self._published = None
        points = list(self._plugins[request.plugin].gather(from_ns(request.now_ns)))
        return Gathered(points=points, inventory=self._published)

    def _drop(self, name: str) -> None:
        plugin = self._plugins.pop(name, None)
        if plugin is not None:
            plugin.close()

    def _publish(self, inventory: Inventory) -> None:
        self._published = inventory


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, also inside a call that hangs."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        sys.exit(1)


def _answer(room: PluginRoom, request: Request, replies: int) -> None:
    reply = room.reply(request)
    try:
        write_frame(replies, reply, timeout_seconds=None)
    except (OverflowError, TypeError, ValueError) as error:  # a value that msgpack does not have
        failed = Failed(message=f"it gave a value that is no sample: {error}")
        write_frame(replies, failed, timeout_seconds=None)


def _take_pipes() -> tuple[int, int]:
    """Keep the pipes for frames; give plugins an empty input, and the log for their output."""
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


if __name__ == "__main__":
    main(sys.argv[1:])
