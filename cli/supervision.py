"""Child processes of `vedette up`: started, watched, started again when they die, and ended."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cli.parentage import PARENT_VARIABLE

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
STOP_SECONDS = 15.0
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0


class Child:
    """One `vedette` command run as a process, with its output in a log file."""

    def __init__(
        self, name: str, arguments: Sequence[str], *, environ: Mapping[str, str], log_path: Path
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._argv = [sys.executable, "-m", "cli.main", *arguments]
        self._environ = {**environ, PARENT_VARIABLE: str(os.getpid())}
        self._process: subprocess.Popen[bytes] | None = None
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._start_again_at = 0.0

    @property
    def pid(self) -> int | None:
        """The process id, while it runs."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process in a session of its own, so that Ctrl-C reaches only the parent."""
        with self.log_path.open("ab") as log_file:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._argv,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def tend(self, now: float, say: Callable[[str], None]) -> None:
        """Start the process again when it has died, after a pause that doubles each time."""
        if self.is_running():
            return
        if self._process is not None:
            code = self._process.returncode
            say(
                f"{self.name} ended with status {code}; started again in "
                f"{self._pause_seconds:.0f} s (see {self.log_path})"
            )
            self._process = None
            self._start_again_at = now + self._pause_seconds
            self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
        elif now >= self._start_again_at:
            self.start()

    def stop(self) -> None:
        """Ask the process to end, wait, and kill it if it does not."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("%s did not end within %s s and is killed", self.name, STOP_SECONDS)
            self._process.kill()
            self._process.wait()

    def last_lines(self, count: int = 5) -> str:
        """Return the end of the log, to show when a start fails."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-count:])


def supervise(
    children: Sequence[Child], *, stop: threading.Event, say: Callable[[str], None]
) -> None:
    """Tend the children until `stop` is set, then end them, the last started first."""
    try:
        while not stop.wait(POLL_SECONDS):
            for child in children:
                child.tend(time.monotonic(), say)
    finally:
        stop_all(children)


def stop_all(children: Sequence[Child]) -> None:
    """End the children, the last started first."""
    for child in reversed(children):
        child.stop()
