"""The process of one simulation: `python -m jobqueue.simulation.child`, see `bounded`."""

from sqlalchemy.orm import Session

from core.db import create_database_engine
from jobqueue.simulation.bounded import BoundedTask, Report, run_task
from jobqueue.simulation.export import record
from jobqueue.simulation.scenarios import Changes, replay, scenarios
from jobqueue.simulation.service import Comparison
from jobqueue.usage.measuring import Period

# Reading the jobs is the first part of the work.
READ_RATIO = 0.05


class Task(BoundedTask, kw_only=True):
    """What to simulate."""

    changes: Changes


def compare(task: Task, report: Report) -> Comparison:
    """Replay the scenarios of a task."""
    engine = create_database_engine(task.database_url, answer_seconds=None)
    period = Period(task.since, task.until)
    with Session(engine) as session:
        recording, numbers = record(session, task.tenant_id, period, now=task.now)
    engine.dispose()
    listed = scenarios(recording, task.changes, names=numbers)
    results = []
    for done, scenario in enumerate(listed):

        def report_part(part: float, done: int = done) -> None:
            report(READ_RATIO + (1 - READ_RATIO) * (done + part) / len(listed))

        report_part(0)
        results.append((scenario.name, replay(scenario, report_part)))
    shown = {project.project for _, outcome in results for project in outcome.projects}
    names = {number: name for name, number in numbers.items() if number in shown}
    return Comparison(projects=names, scenarios=results)


if __name__ == "__main__":
    run_task(Task, compare, name="simulation")
