"""Work in a process of its own, with bounds on its time and memory, and a low priority.

`BoundedProcess` starts a module of ours with a task on its standard input. The module calls
`run_task`, which writes the percent that is done, and at the end the results or an error that users
understand, to files in a folder. It ends when its parent is gone.
"""

import contextlib
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TypeVar

import msgspec

from core.atomic_files import replace_file
from core.errors import VedetteError

log = logging.getLogger(__name__)

MAX_RESULT_BYTES = 4 * 1024**2
_PROGRESS, _RESULTS, _ERROR = "progress", "results.json", "error"
_NICENESS = 10
Report = Callable[[float], None]


class BoundedTask(msgspec.Struct, kw_only=True):
    """What to do for a tenant, and the bounds.

    Attributes:
        database_url: of the database to read.
        tenant_id: whose jobs.
        since: the begin of the period.
        until: its end, exclusive.
        now: the current time.
        folder: for the files.
        max_memory_bytes: more than that fails.
        max_cpu_seconds: after which the process is killed.
    """

    database_url: str
    tenant_id: str
    since: datetime
    until: datetime
    now: datetime
    folder: str = ""
    max_memory_bytes: int
    max_cpu_seconds: int


TaskType = TypeVar("TaskType", bound=BoundedTask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a task ended: its results as JSON, or why there are none, for users."""

    results: str = ""
    error: str = ""


class BoundedProcess:
    """A process that runs a task, with its folder; it never waits for it.

    Args:
        module: the name of the module that calls `run_task`.
        task: what to run; its folder is set.

    Attributes:
        tenant_id: whose task it is.
        until: when it is too late.
    """

    def __init__(self, module: str, task: BoundedTask) -> None:
        self.folder = TemporaryDirectory(prefix="vedette-task-")
        self.tenant_id = task.tenant_id
        self._limit = timedelta(seconds=task.max_cpu_seconds)
        self.until = task.now + self._limit
        self._percent = 0
        task.folder = self.folder.name
        # A file without a name: the URL may have a password, and a pipe would let this wait.
        with TemporaryFile() as stdin:
            stdin.write(msgspec.json.encode(task))
            stdin.seek(0)
            self.process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", module],
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Return whether it has not ended."""
        return self.process.poll() is None

    def follow(
        self, now: datetime, store: Callable[[int], object], *, if_late: str = "", if_killed: str
    ) -> Outcome | None:
        """Return how the task ended, and end the process; None while it runs in time.

        Args:
            now: the time.
            store: is called with the percent that is done, when that has changed.
            if_late: what to do if it took too long, for users.
            if_killed: what to show users if it was killed at one of its bounds.
        """
        is_late = self.is_running
        if is_late and now < self.until:
            percent = int(self._read(_PROGRESS) or 0)
            if percent != self._percent:
                self._percent = percent
                store(percent)
            return None
        results, error = self._read(_RESULTS).decode(), self._read(_ERROR).decode()
        self.stop()
        if results and not is_late:
            return Outcome(results=results)
        late = f"It took more than {self._limit // timedelta(minutes=1)} minutes.{if_late}"
        return Outcome(error=error or (late if is_late else if_killed))

    def stop(self) -> None:
        """End the process, and delete its folder."""
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def _read(self, name: str) -> bytes:
        path = Path(self.folder.name) / name
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size <= MAX_RESULT_BYTES:
                return path.read_bytes()
            log.warning("a task has %d bytes of results", path.stat().st_size)
        return b""


def run_task(
    kind: type[TaskType], compute: Callable[[TaskType, Report], object], *, name: str
) -> None:
    """Run the task of the standard input within its bounds.

    Args:
        kind: the type of the task.
        compute: returns the results, and reports the part that is done, from 0 to 1.
        name: what it is called in an error, such as "simulation".
    """
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=kind)
    resource.setrlimit(resource.RLIMIT_DATA, (task.max_memory_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (task.max_cpu_seconds,) * 2)
    os.nice(_NICENESS)
    folder = Path(task.folder)
    try:
        results = msgspec.json.encode(compute(task, _reporter(folder, name)))
    except MemoryError:
        error = f"The {name} needs too much memory. Choose a shorter period."
        replace_file(folder / _ERROR, error.encode())
    except VedetteError as error:
        replace_file(folder / _ERROR, error.message.encode())
    else:
        replace_file(folder / _RESULTS, results)


def _reporter(folder: Path, name: str) -> Report:
    parent, reported = os.getppid(), -1

    def report(part: float) -> None:
        nonlocal reported
        if os.getppid() != parent:
            sys.exit(f"The process that started the {name} is gone.")
        percent = int(100 * part)
        if percent != reported:
            reported = percent
            replace_file(folder / _PROGRESS, str(percent).encode(), is_durable=False)

    return report
