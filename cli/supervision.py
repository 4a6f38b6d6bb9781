"""Child processes of `vedette up`: start, restart when they exit, and stop with their parent."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

log = logging.getLogger(__name__)

# How the `vedette` command begins the message of an expected error.
ERROR_PREFIX = "vedette: "
PARENT_VARIABLE = "VEDETTE_PARENT_PID"
PARENT_POLL_SECONDS = 1.0
POLL_SECONDS = 0.2
STOP_SECONDS = 15.0
INITIAL_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 30.0


class Child:
    """One `vedette` command as a process, with its output in a log file."""

    def __init__(
        self, name: str, arguments: Sequence[str], *, environ: Mapping[str, str], log_path: Path
    ) -> None:
        self._name = name
        self.log_path = log_path
        self._log_start = 0
        self._argv = [sys.executable, "-m", "cli.main", *arguments]
        self._environ = {**environ, PARENT_VARIABLE: str(os.getpid())}
        self._process: subprocess.Popen[bytes] | None = None
        self._backoff_seconds = INITIAL_BACKOFF_SECONDS
        self._restart_at = 0.0

    def start(self) -> None:
        """Start the process in its own session, so that Ctrl-C reaches only the parent."""
        with self.log_path.open("ab") as log_file:
            self._log_start = log_file.tell()
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._argv,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        """Return whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def restart_if_exited(self, now: float, report: Callable[[str], None]) -> None:
        """Restart the process after it exits, with exponential backoff."""
        if self.is_running():
            return
        if self._process is not None:
            report(
                f"{self._name} exited with status {self._process.returncode}. Restarting in "
                f"{self._backoff_seconds:.0f} s. See {self.log_path}."
            )
            self._process = None
            self._restart_at = now + self._backoff_seconds
            self._backoff_seconds = min(2 * self._backoff_seconds, MAX_BACKOFF_SECONDS)
        elif now >= self._restart_at:
            self.start()

    def stop(self) -> None:
        """Send SIGTERM, wait, and send SIGKILL if the process does not exit."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("%s did not exit within %s s; sending SIGKILL", self._name, STOP_SECONDS)
            self._process.kill()
            self._process.wait()

    def error(self) -> str:
        """Return in one line why the process exited: its error message, or the end of its log."""
        with self.log_path.open("rb") as log_file:
            log_file.seek(self._log_start)
            lines = log_file.read().decode(errors="replace").splitlines()
        for number, line in enumerate(lines):
            if line.startswith(ERROR_PREFIX):
                return " ".join(" ".join(lines[number:]).removeprefix(ERROR_PREFIX).split())
        return f"{lines[-1] if lines else 'no output'}. See {self.log_path}."


def stop_event() -> threading.Event:
    """Return an event that Ctrl-C and SIGTERM set."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def supervise(
    children: Sequence[Child], *, stop: threading.Event, report: Callable[[str], None]
) -> None:
    """Restart children that exit until `stop` is set, then stop them all."""
    try:
        while not stop.wait(POLL_SECONDS):
            for child in children:
                child.restart_if_exited(time.monotonic(), report)
    finally:
        stop_all(children)


def stop_all(children: Sequence[Child]) -> None:
    """Stop the children, the last started first."""
    for child in reversed(children):
        child.stop()


def stop_with_parent() -> None:
    """Send this process SIGTERM when the `vedette up` that started it is gone, even if killed.

    Does nothing in a process that `vedette up` did not start.
    """
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None:
        threading.Thread(target=_watch_parent, args=(int(parent),), daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
