"""A child process that plugins are read in, because what they call may hang or crash.

It is started when it is first asked and lives on between readings. One that does not answer in time
is killed with all that it started; one that dies is started again at the next question.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from threading import Lock

from collector.errors import ReadingTimedOutError
from collector.reading.child_wire import (
    FrameEndError,
    FrameTimeoutError,
    Reply,
    Request,
    read_reply,
    write_frame,
)
from plugins.base import PluginError

log = logging.getLogger(__name__)

CHILD_MODULE = "collector.reading.plugin_child"
END_SECONDS = 1.0


class ChildProcess:
    """One child, asked by one thread at a time.

    Attributes:
        incarnation: counts the starts; plugins must be configured anew in each.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._undead: subprocess.Popen[bytes] | None = None
        self._lock = Lock()
        self._is_closed = False
        self.incarnation = 0

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is none."""
        process = self._process
        return process.pid if process is not None else None

    @property
    def is_running(self) -> bool:
        """Whether there is a child; one that died unasked is noticed here."""
        process = self._process
        if process is not None and process.poll() is not None:
            log.warning("the child process %s %s", self._name, _end_of(process))
            self._let_go(process)
        return self._process is not None

    def start(self) -> None:
        """Start the child, unless it runs.

        Raises:
            PluginError: it can't be started.
        """
        if self.is_running:
            return
        if self._undead is not None and self._undead.poll() is None:
            raise PluginError(
                f"the killed child process {self._undead.pid} still hangs in the kernel"
            )
        self._undead = None
        with self._lock:
            if self._is_closed:
                raise PluginError("the agent is ending")
            self._process = _spawn(self._name)
            self.incarnation += 1

    def ask(self, request: Request, *, timeout_seconds: float) -> Reply:
        """Return the answer of a child that was started.

        Raises:
            ReadingTimedOutError: it did not answer in time and was killed.
            PluginError: it died.
        """
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise PluginError("its child process has ended")
        deadline = time.monotonic() + timeout_seconds
        try:
            write_frame(process.stdin.fileno(), request, timeout_seconds=timeout_seconds)
            left_seconds = max(0.0, deadline - time.monotonic())
            return read_reply(process.stdout.fileno(), timeout_seconds=left_seconds)
        except FrameTimeoutError:
            self._kill(process)
            raise ReadingTimedOutError(
                f"it did not answer within {timeout_seconds:g} s; its child process was killed"
            ) from None
        except FrameEndError as error:
            self._kill(process)
            raise PluginError(f"its child process {_end_of(process)} ({error})") from None

    def discard(self) -> None:
        """End this child; the next question is for a new one."""
        process = self._process
        if process is not None:
            self._kill(process)

    def kill(self) -> None:
        """Kill the child for good, also while another thread waits for its answer."""
        with self._lock:
            self._is_closed = True
        process = self._process
        if process is not None:
            _kill_group(process)

    def close(self) -> None:
        """Let the child end by itself, or kill it; start no other."""
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
        # The group too: what a plugin has started would hold the pipes open.
        _kill_group(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        if process.poll() is None:
            self._undead = process
        self._let_go(process)

    def _let_go(self, process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process = None


def _spawn(name: str) -> subprocess.Popen[bytes]:
    """Start a child that finds the same modules as this process."""
    path = os.pathsep.join(entry or str(os.getcwd()) for entry in sys.path)  # noqa: PTH109 - text
    level = logging.getLevelName(logging.getLogger().level)
    try:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-P", "-m", CHILD_MODULE, name, str(os.getpid()), level],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
    except OSError as error:
        raise PluginError(f"its child process can't be started: {error}") from error
    if process.stdin is not None:
        os.set_blocking(process.stdin.fileno(), False)
    log.info("started the child process %s (%d)", name, process.pid)
    return process


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _end_of(process: subprocess.Popen[bytes]) -> str:
    """Return how a process ended, in words."""
    code = process.poll()
    if code is None:
        return "was killed and hangs in the kernel"
    if code < 0:
        try:
            return f"died by {signal.Signals(-code).name}"
        except ValueError:
            return f"died by signal {-code}"
    return f"ended with status {code}"
