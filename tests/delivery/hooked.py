"""Runs a `vedette` command that stops at one step until the test has killed its victim.

    python -m tests.delivery.hooked FOLDER server

The file `armed` in FOLDER names a step and a moment, such as `create before`. The first thread
that gets there renames it to `reached`, and waits for `done`. The victim may be this process.
"""

import functools
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])


def reach(step: str, moment: str) -> None:
    """Wait for the test if this step and moment are armed."""
    armed = FOLDER / "armed"
    try:
        if armed.read_text() != f"{step} {moment}":
            return
        armed.rename(FOLDER / "reached")
    except FileNotFoundError:
        return
    while not (FOLDER / "done").exists():
        time.sleep(0.01)


def around(
    owner: type[Any], name: str, step: str, *, when: Callable[..., bool] = lambda *_, **__: True
) -> None:
    """Stop before and after a method, if its arguments are the right ones."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def stopping(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - any method
        is_it = when(*arguments, **options)
        if is_it:
            reach(step, "before")
        answer = original(*arguments, **options)
        if is_it:
            reach(step, "after")
        return answer

    setattr(owner, name, stopping)


def hook_server() -> None:
    """Stop around the commits that add a job's event: each change of its state has one."""
    from sqlalchemy import event  # noqa: PLC0415 - the agent has no SQLAlchemy
    from sqlalchemy.orm import ORMExecuteState, Session  # noqa: PLC0415

    from jobqueue.models import JobEvent  # noqa: PLC0415

    steps = {"submitted": "submit", "starting": "place", "running": "record running"}

    def note(session: Session, states: Iterable[object]) -> None:
        for step in filter(None, (steps.get(str(state)) for state in states)):
            session.info["step"] = step
            reach(step, "before")

    def after_flush(session: Session, _context: object) -> None:
        note(session, [row.state for row in session.new if isinstance(row, JobEvent)])

    def do_orm_execute(executed: ORMExecuteState) -> None:
        """Look at events that are inserted together, as those of a pass over the queue are."""
        rows = executed.parameters
        table = getattr(executed.statement, "table", None)
        if isinstance(rows, list) and table is JobEvent.__table__:
            note(executed.session, [row["state"] for row in rows])

    def after_commit(session: Session) -> None:
        if step := session.info.pop("step", None):
            reach(step, "after")

    event.listen(Session, "after_flush", after_flush)
    event.listen(Session, "do_orm_execute", do_orm_execute)
    event.listen(Session, "after_commit", after_commit)


def hook_agent() -> None:
    """Stop around what the agent writes: to its disk, to the engine and to the portal."""
    from docker.models.containers import Container, ContainerCollection  # noqa: PLC0415

    from collector.jobs.attempts import AttemptRunner  # noqa: PLC0415
    from collector.sending.portal_connection import PortalConnection  # noqa: PLC0415

    around(
        AttemptRunner, "set_desired", "receive", when=lambda _self, desired: bool(desired.attempts)
    )
    around(ContainerCollection, "create", "create")
    around(Container, "start", "start")
    around(Container, "remove", "remove")
    around(
        PortalConnection,
        "report",
        "report end",
        when=lambda _self, report: any(seen.state.is_final for seen in report.attempts),
    )


if __name__ == "__main__":
    from cli.main import main

    (hook_server if sys.argv[2] == "server" else hook_agent)()
    del sys.argv[1]
    main()
