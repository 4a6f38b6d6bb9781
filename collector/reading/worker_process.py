"""Worker processes, in which plugins run whose libraries may hang or crash.

A worker is started when it is first needed, and lives on between readings. One that does not reply
in time is killed with all that it started; one that dies is started again for the next reading.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from threading import Lock
from typing import cast

import msgspec

from collector.errors import ReadingTimedOutError
from collector.reading.plugin_reader import WORKER_START_SECONDS, PluginPlan
from collector.reading.worker_protocol import (
    REPLIES,
    Close,
    Configure,
    DisconnectedError,
    Failed,
    FailureKind,
    Gather,
    Gathered,
    Reply,
    Request,
    receive,
    send,
)
from core.clock import to_ns
from plugins.base import (
    NeedsWorker,
    Plugin,
    PluginContext,
    PluginError,
    PluginUnavailableError,
)
from timeseries.points import Point

log = logging.getLogger(__name__)

WORKER_MODULE = "collector.reading.worker"
END_SECONDS = 1.0
CLOSE_SECONDS = 3.0


class WorkerProcess:
    """One worker process. For one thread, except `kill`.

    Attributes:
        starts: how often it was started; plugins must be configured after each start.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._unkillable: subprocess.Popen[bytes] | None = None
        self._lock = Lock()
        self._is_closed = False
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """The process id; None if it isn't running."""
        process = self._process
        return process.pid if process is not None else None

    @property
    def is_running(self) -> bool:
        """Return whether it runs; logs a warning if it has died."""
        process = self._process
        if process is not None and process.poll() is not None:
            log.warning("worker process %s %s", self._name, _exit_message(process))
            self._release(process)
        return self._process is not None

    def start(self) -> None:
        """Start it, unless it runs.

        Raises:
            PluginError: it can't be started.
        """
        if self.is_running:
            return
        if self._unkillable is not None and self._unkillable.poll() is None:
            raise PluginError(
                f"the killed worker process {self._unkillable.pid} still hangs in the kernel"
            )
        self._unkillable = None
        with self._lock:
            if self._is_closed:
                raise PluginError("the agent is stopping")
            self._process = _spawn(self._name)
            self.starts += 1

    def request(self, request: Request, *, timeout_seconds: float) -> Reply:
        """Send a request to the running process and return the reply.

        Raises:
            ReadingTimedOutError: it did not reply in time and was killed.
            PluginError: it died.
        """
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise PluginError("its worker process has ended")
        deadline = time.monotonic() + timeout_seconds
        try:
            send(process.stdin.fileno(), request, timeout_seconds=timeout_seconds)
            left_seconds = max(0.0, deadline - time.monotonic())
            return receive(process.stdout.fileno(), REPLIES, timeout_seconds=left_seconds)
        except TimeoutError:
            self._kill(process)
            raise ReadingTimedOutError(
                f"no response within {timeout_seconds:g} s; its worker process was killed"
            ) from None
        except DisconnectedError as error:
            self._kill(process)
            raise PluginError(f"its worker process {_exit_message(process)} ({error})") from None

    def discard(self) -> None:
        """Kill the process; the next request starts a new one."""
        process = self._process
        if process is not None:
            self._kill(process)

    def kill(self) -> None:
        """Kill the process for good, even while another thread waits for its reply."""
        with self._lock:
            self._is_closed = True
        process = self._process
        if process is not None:
            _kill_group(process)

    def close(self) -> None:
        """Let the process end, or kill it; it can't be started again."""
        with self._lock:
            self._is_closed = True
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        self._kill(process)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        # The whole group: programs that a plugin started would keep the pipes open.
        _kill_group(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        if process.poll() is None:
            self._unkillable = process
        self._release(process)

    def _release(self, process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process = None


class WorkerPlugin:
    """A plugin in a worker process; or in the agent, if it needs no worker on this host.

    Args:
        plan: how to read it.
        context: what plugins share.
        worker: shared by all plugins of that worker, in one thread.
        start_limit_seconds: for the start of the worker and the plugin; its own time limit is for
            readings alone.
    """

    def __init__(
        self,
        plan: PluginPlan,
        context: PluginContext,
        worker: WorkerProcess,
        *,
        start_limit_seconds: float = WORKER_START_SECONDS,
    ) -> None:
        self.name = plan.name
        self.config_class = plan.plugin_class.config_class
        self.traits = plan.plugin_class.traits
        self.metrics = plan.plugin_class.metrics
        self._plan = plan
        self._context = context
        self._worker = worker
        self._start_limit_seconds = start_limit_seconds
        self._configured_start = 0
        self._local: Plugin | None = None

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a reading, and pass on what the plugin published.

        Raises:
            PluginUnavailableError: the plugin is not available on this host.
            ReadingTimedOutError: the start or the reading took too long; the worker was killed.
            PluginError: the reading failed, or the worker died.
        """
        if not self._worker.is_running and not self._needs_worker():
            if self._local is None:
                self._local = self._plan.plugin_class(self._plan.config, self._context)
            return self._local.gather(now)
        self._worker.start()
        if self._configured_start != self._worker.starts:
            self._close_local()
            self._request(self._configuration(), timeout_seconds=self._start_limit_seconds)
            self._configured_start = self._worker.starts
        context = self._context
        request = Gather(
            plugin=self.name,
            now_ns=to_ns(now),
            job_of_gpu=dict(context.job_of_gpu()),
            job_of_container=dict(context.job_of_container()),
        )
        reply = self._request(request, timeout_seconds=self._plan.time_limit_seconds)
        if not isinstance(reply, Gathered):
            raise PluginError("its worker process sent an unexpected reply")
        if reply.inventory is not None:
            context.publish_inventory(reply.inventory)
        if reply.gpu_processes is not None:
            context.publish_gpu_processes(reply.gpu_processes)
        return reply.points

    def close(self) -> None:
        """Close the plugin where it runs."""
        self._close_local()
        if self._configured_start == self._worker.starts and self._worker.is_running:
            self._configured_start = 0
            with contextlib.suppress(PluginError):  # the worker has ended, and so has the plugin
                self._request(Close(plugin=self.name), timeout_seconds=CLOSE_SECONDS)

    def _needs_worker(self) -> bool:
        choosers: tuple[object, ...] = (self._plan.config, self._plan.plugin_class)
        for chooser in choosers:
            if isinstance(chooser, NeedsWorker):
                return chooser.needs_worker(self._context)
        return True

    def _close_local(self) -> None:
        local, self._local = self._local, None
        if local is not None:
            local.close()

    def _configuration(self) -> Configure:
        plugin_class = cast("type", self._plan.plugin_class)
        return Configure(
            plugin=self.name,
            class_path=f"{plugin_class.__module__}:{plugin_class.__qualname__}",
            config=msgspec.to_builtins(self._plan.config, enc_hook=str),
            proc=str(self._context.proc),
            sys=str(self._context.sys),
            docker_url=self._context.docker_url,
        )

    def _request(self, request: Request, *, timeout_seconds: float) -> Reply:
        reply = self._worker.request(request, timeout_seconds=timeout_seconds)
        if not isinstance(reply, Failed):
            return reply
        if reply.kind is FailureKind.UNAVAILABLE:
            raise PluginUnavailableError(reply.message)
        if reply.kind is FailureKind.RESTART:
            self._worker.discard()
        raise PluginError(reply.message)


def open_plugin(
    plan: PluginPlan, context: PluginContext, workers: dict[str, WorkerProcess]
) -> Plugin:
    """Create the plugin of a plan; its worker, if it has one, is added to `workers` by name."""
    if not plan.worker:
        return plan.plugin_class(plan.config, context)
    worker = workers.setdefault(plan.worker, WorkerProcess(plan.worker))
    return cast("Plugin", WorkerPlugin(plan, context, worker))


def _spawn(name: str) -> subprocess.Popen[bytes]:
    """Start a worker that imports the same modules as this process."""
    path = os.pathsep.join(entry or str(os.getcwd()) for entry in sys.path)  # noqa: PTH109 - text
    level = logging.getLevelName(logging.getLogger().level)
    try:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-P", "-m", WORKER_MODULE, name, str(os.getpid()), level],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
    except OSError as error:
        raise PluginError(f"can't start its worker process: {error}") from error
    if process.stdin is not None:
        os.set_blocking(process.stdin.fileno(), False)
    log.info("started worker process %s (%d)", name, process.pid)
    return process


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _exit_message(process: subprocess.Popen[bytes]) -> str:
    code = process.poll()
    if code is None:
        return "was killed and hangs in the kernel"
    if code < 0:
        try:
            return f"died of {signal.Signals(-code).name}"
        except ValueError:
            return f"died of signal {-code}"
    return f"exited with status {code}"
