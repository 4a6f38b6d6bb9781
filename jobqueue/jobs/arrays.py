"""Arrays: jobs of one request, which differ in their index; and the instances of services.

Each task is a job. The id of the array is that of its first task, so it stands for both.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import (
    Column,
    ColumnElement,
    Integer,
    MetaData,
    String,
    Table,
    delete,
    func,
    insert,
    literal,
    select,
)
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateTable

from core.errors import InvalidInputError
from core.ids import ID_LENGTH, new_id
from core.quantities import format_size
from jobqueue.models import Job, JobEvent
from jobqueue.states import JobState
from tenants.scope import Scope

MAX_TASKS = 1000
MAX_INDEX = 1_000_000
# That of as many indexes.
MAX_LENGTH = 8 * MAX_TASKS
# All tasks are stored by one transaction, and nobody else can write to SQLite meanwhile.
MAX_ARRAY_BYTES = 8 * 2**20
INDEX_VARIABLE = "VEDETTE_ARRAY_INDEX"
_SPEC = re.compile(r"([0-9,-]+)(?:%([0-9]{1,9}))?")
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")
_JOBS = cast("Table", Job.__table__)
_NEW_TASKS = Table(
    "new_tasks",
    MetaData(),
    Column("id", String(ID_LENGTH), primary_key=True),
    Column("array_index", Integer),
    Column("event_id", String(ID_LENGTH)),
    prefixes=["TEMPORARY"],
)
_EXPECTED = "enter indexes such as '0-99', '1,3,5-7' or, with at most 10 running at once, '0-99%10'"


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The indexes of an array, and how many of its tasks may run at once; 0 is any number."""

    indexes: Sequence[int]
    limit: int = 0


def parse_array(text: str) -> ArraySpec:
    """Parse `0-99%10`.

    Raises:
        ValueError: says what is expected; or there are too many tasks.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"The array has {len(text)} characters; use at most {MAX_LENGTH}.")
    match = _SPEC.fullmatch(text.replace(" ", ""))
    parts = [_RANGE.fullmatch(part) for part in match[1].split(",")] if match else [None]
    if match is None or match[2] in {"0", "00"}:
        raise ValueError(f"{text!r} is not an array; {_EXPECTED}.")
    indexes: set[int] = set()
    for part in parts:
        first, last = (int(part[1]), int(part[2] or part[1])) if part else (1, 0)
        if first > last or last > MAX_INDEX:
            raise ValueError(f"{text!r} is not an array; {_EXPECTED}.")
        if last - first >= MAX_TASKS or len(indexes) > MAX_TASKS:
            raise ValueError(f"The array {text!r} has more than {MAX_TASKS} tasks; use fewer.")
        indexes.update(range(first, last + 1))
    if len(indexes) > MAX_TASKS:
        raise ValueError(f"The array {text!r} has more than {MAX_TASKS} tasks; use fewer.")
    return ArraySpec(sorted(indexes), int(match[2] or 0))


def check_array_size(job: Job, count: int) -> None:
    """Refuse an array whose tasks are stored in more than `MAX_ARRAY_BYTES`.

    Raises:
        InvalidInputError: names the size, and what makes it smaller.
    """
    texts = [job.command, job.env, job.labels, job.mounts, job.ports, job.secret_env or ""]
    size = count * len(json.dumps(texts))
    if count > 1 and size > MAX_ARRAY_BYTES:
        problem = (
            f"The {count} tasks have {format_size(size)} of command, variables and mounts; at most "
            f"{format_size(MAX_ARRAY_BYTES)} fit. Use fewer tasks, or put large values into a file."
        )
        raise InvalidInputError(problem, errors={"array": [problem]})


def add_other_tasks(
    session: Session, first: Job, indexes: Sequence[int], **changes: object
) -> None:
    """Add further tasks of an array, like one that is in the database but for some columns.

    The database copies the first: to send it each task would take ten times as long, while nobody
    else can write to SQLite. The audit log has an entry of the first.
    """
    if not indexes:
        return
    session.execute(CreateTable(_NEW_TASKS, if_not_exists=True))
    rows = [{"id": new_id(), "array_index": index, "event_id": new_id()} for index in indexes]
    session.execute(insert(_NEW_TASKS), rows)
    new = _NEW_TASKS.c
    given: dict[str, ColumnElement[Any]] = {
        "id": _NEW_TASKS.c.id,
        "array_index": _NEW_TASKS.c.array_index,
    }
    given |= {name: literal(value, _JOBS.c[name].type) for name, value in changes.items()}
    values = {column.name: given.get(column.name, column) for column in _JOBS.c}
    tasks = select(*values.values()).select_from(_JOBS.join(_NEW_TASKS, _JOBS.c.id == first.id))
    session.execute(insert(_JOBS).from_select(list(values), tasks))
    copied = ("tenant_id", "state", "reason", "message")
    events = select(new.event_id, new.id, *(_JOBS.c[name] for name in copied), _JOBS.c.submitted_at)
    events = events.select_from(_JOBS.join(_NEW_TASKS, _JOBS.c.id == new.id))
    session.execute(
        insert(JobEvent).from_select(
            ["id", "job_id", *copied, "at"], events, include_defaults=False
        )
    )
    session.execute(delete(_NEW_TASKS))


def array_states(
    session: Session, scope: Scope, array_ids: Collection[str]
) -> dict[str, dict[str, int]]:
    """Return how many tasks of arrays are in each state, by the id of the array."""
    if not array_ids:
        return {}
    counted: Any = select(Job.array_id, Job.state, func.count()).group_by(Job.array_id, Job.state)
    rows = session.execute(scope.select(counted, Job).where(Job.array_id.in_(array_ids)))
    states: dict[str, dict[JobState, int]] = {}
    for array_id, state, count in rows:
        states.setdefault(array_id, {})[JobState(state)] = count
    return {
        ident: {state.value: counts[state] for state in JobState if state in counts}
        for ident, counts in states.items()
    }


def array_env(job: Job) -> Mapping[str, str]:
    """Return the variables that a task of an array gets besides its own."""
    return {} if job.array_index is None else {INDEX_VARIABLE: str(job.array_index)}
