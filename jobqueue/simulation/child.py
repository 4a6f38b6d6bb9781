"""A process that runs one simulation, with bounds on its time and memory.

`python -m jobqueue.simulation.child` reads a `Task` from its standard input. It writes the percent
that is done, and at the end the results or an error that users understand, to files in a folder,
where `jobqueue.simulation.runner` reads them. It ends when its parent is gone.
"""

import os
import resource
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec
from sqlalchemy.orm import Session

from core.atomic_files import replace_file
from core.db import create_database_engine
from core.errors import VedetteError
from jobqueue.simulation.export import record
from jobqueue.simulation.scenarios import Changes, replay, scenarios
from jobqueue.simulation.service import Comparison
from jobqueue.usage.measuring import Period

PROGRESS, RESULTS, ERROR = "progress", "results.json", "error"
# Reading the jobs is the first part of the work.
READ_PERCENT = 5
_NICENESS = 10


class Task(msgspec.Struct, kw_only=True):
    """What to simulate, and the bounds."""

    database_url: str
    tenant_id: str
    since: datetime
    until: datetime
    changes: Changes
    now: datetime
    folder: str
    max_memory_bytes: int
    max_cpu_seconds: int


def main() -> None:
    """Run the task of the standard input."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    resource.setrlimit(resource.RLIMIT_DATA, (task.max_memory_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (task.max_cpu_seconds,) * 2)
    os.nice(_NICENESS)
    folder = Path(task.folder)
    try:
        results = msgspec.json.encode(_compare(task, _reporter(folder)))
    except MemoryError:
        _fail(folder, "The simulation needs too much memory. Choose a shorter period.")
    except VedetteError as error:
        _fail(folder, error.message)
    else:
        replace_file(folder / RESULTS, results)


def _compare(task: Task, report: Callable[[float], None]) -> Comparison:
    engine = create_database_engine(task.database_url, answer_seconds=None)
    period = Period(task.since, task.until)
    with Session(engine) as session:
        recording, numbers = record(session, task.tenant_id, period, now=task.now)
    engine.dispose()
    listed = scenarios(recording, task.changes, names=numbers)
    results = []
    for done, scenario in enumerate(listed):
        report(done / len(listed))
        outcome = replay(scenario, lambda part: report((done + part) / len(listed)))  # noqa: B023 - called at once
        results.append((scenario.name, outcome))
    shown = {project.project for _, outcome in results for project in outcome.projects}
    names = {number: name for name, number in numbers.items() if number in shown}
    return Comparison(projects=names, scenarios=results)


def _reporter(folder: Path) -> Callable[[float], None]:
    parent, reported = os.getppid(), -1

    def report(part: float) -> None:
        nonlocal reported
        if os.getppid() != parent:
            sys.exit("The process that started the simulation is gone.")
        percent = READ_PERCENT + int((100 - READ_PERCENT) * part)
        if percent != reported:
            reported = percent
            replace_file(folder / PROGRESS, str(percent).encode(), is_durable=False)

    return report


def _fail(folder: Path, message: str) -> None:
    replace_file(folder / ERROR, message.encode())


if __name__ == "__main__":
    main()
