"""Jobs that belong together: arrays, the instances of services, and dependencies.

An *array* is the jobs of one request that differ in their index; so are the instances of a service.
Each task is a job. The id of the array is that of its first task, so it stands for both.

A job may wait for others *to succeed* (`ok`) or *to end* (`any`). What it still waits for are rows
of `job_dependencies`; placement leaves it out while there are any. A job whose dependency can never
be met is stopped with the reason, and so are those that depend on it in turn.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from sqlalchemy import (
    Column,
    ColumnElement,
    Integer,
    MetaData,
    String,
    Table,
    and_,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
)
from sqlalchemy.orm import Session, aliased
from sqlalchemy.schema import CreateTable

from core.db import chunked
from core.errors import InvalidInputError
from core.ids import ID_LENGTH, new_id
from core.quantities import format_size
from jobqueue.jobs.transitions import move_all, record_events, shorten
from jobqueue.models import Job, JobDependency, JobEvent
from jobqueue.states import WAITING, DependencyCondition, JobState, Reason
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

# Dependencies that one placement cycle resolves for a tenant; the next one goes on.
MAX_RESOLVED = 100
_FINAL = [state for state in JobState if state.is_final]
_FIELDS = {"after_ok": DependencyCondition.OK, "after_any": DependencyCondition.ANY}

Dependencies = list[tuple[Job, DependencyCondition]]


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


def find_dependencies(
    session: Session, scope: Scope, wanted: dict[str, Sequence[str]]
) -> tuple[Dependencies, list[tuple[str, str]]]:
    """Return the jobs that a new one waits for, and the errors by field.

    Args:
        session: the session.
        scope: of the user.
        wanted: names or ids by the field `after_ok` or `after_any`. A name stands for the newest
            job with it; the name or id of an array for all of its tasks.
    """
    dependencies: Dependencies = []
    errors: list[tuple[str, str]] = []
    for field, condition in _FIELDS.items():
        for name in dict.fromkeys(wanted[field]):
            job, error = _find(session, scope, name, condition)
            if error or job is None:
                errors.append((field, error))
            elif job.id not in {other.id for other, _ in dependencies}:
                dependencies.append((job, condition))
    return dependencies, errors


def stored_dependencies(dependencies: Dependencies) -> list[dict[str, str]]:
    """Return dependencies as a job shows them."""
    return [
        {"job_id": job.id, "name": job.name, "condition": condition.value}
        for job, condition in dependencies
    ]


def waiting_message(dependencies: Dependencies) -> str:
    """Return for what a job waits."""
    parts = [
        f"{job.name!r} {'succeeds' if condition is DependencyCondition.OK else 'ends'}"
        for job, condition in dependencies
    ]
    return shorten(f"Waiting until {' and '.join(parts)}.")


def add_dependencies(session: Session, job: Job, dependencies: Dependencies) -> None:
    """Let a new job, or the array with this first task, wait for others."""
    session.add_all(
        JobDependency(job_id=job.id, on_job_id=on.id, tenant_id=job.tenant_id, condition=condition)
        for on, condition in dependencies
    )


def is_blocked() -> ColumnElement[bool]:
    """Return the condition that a job still waits for others."""
    own = exists().where(JobDependency.job_id == Job.id)
    return or_(own, exists().where(JobDependency.job_id == Job.array_id))


def resolve_dependencies(session: Session, tenant_id: str, *, now: datetime) -> int:
    """Release the jobs whose dependencies are met, and stop those whose never will be.

    Returns:
        How many dependencies were resolved.
    """
    resolved = 0
    for dependency, on, is_met in _decided(session, tenant_id):
        if not is_met:
            _stop(session, dependency.job_id, on, now=now)
        row = delete(JobDependency).where(
            JobDependency.job_id == dependency.job_id,
            JobDependency.on_job_id == dependency.on_job_id,
        )
        session.execute(row, execution_options={"synchronize_session": False})
        resolved += 1
    session.expire_all()
    return resolved


def _decided(session: Session, tenant_id: str) -> Iterator[tuple[Any, Job, bool]]:
    task = aliased(Job)

    def has_task(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
        # The job itself, or a task of its array: two conditions, so that both use an index.
        itself = exists().where(task.id == JobDependency.on_job_id, *conditions)
        return or_(itself, exists().where(task.array_id == JobDependency.on_job_id, *conditions))

    is_open = has_task(task.state.not_in(_FINAL))
    missed = has_task(task.state.in_(_FINAL), task.state != JobState.SUCCEEDED)
    never = and_(JobDependency.condition == DependencyCondition.OK, missed)
    statement = (
        select(JobDependency.job_id, JobDependency.on_job_id, Job, never.label("is_missed"))
        .join(Job, Job.id == JobDependency.on_job_id)
        .where(JobDependency.tenant_id == tenant_id, or_(~is_open, never))
        .limit(MAX_RESOLVED)
    )
    for row in session.execute(statement).unique().all():
        yield row, row[2], not row.is_missed


def _stop(session: Session, job_id: str, on: Job, *, now: datetime) -> None:
    message = f"{on.name!r} did not succeed ({_outcome(on)}), so this job can't start."
    is_task = or_(Job.id == job_id, Job.array_id == job_id)
    waiting = select(Job.id, Job.tenant_id).where(is_task, Job.state.in_(WAITING))
    jobs = session.execute(waiting.with_for_update()).all()
    values = {"reason": Reason.DEPENDENCY_FAILED, "message": shorten(message)}
    for chunk in chunked(jobs):
        stopped = Job.id.in_([job.id for job in chunk])
        move_all(session, Job, stopped, JobState.STOPPED, finished_at=now, **values)
    event = {"state": JobState.STOPPED, **values}
    record_events(
        session, [{"job_id": job.id, "tenant_id": job.tenant_id, **event} for job in jobs], now=now
    )


def _outcome(on: Job) -> str:
    return "in a task" if on.array_id and on.state is JobState.SUCCEEDED else on.state.value


def _find(
    session: Session, scope: Scope, name: str, condition: DependencyCondition
) -> tuple[Job | None, str]:
    statement = scope.select(select(Job), Job).where(or_(Job.id == name, Job.name == name))
    job = session.scalars(statement.order_by(Job.id.desc()).limit(1)).unique().first()
    if job is None:
        return None, f"There is no job {name!r}. Enter the name or the ID of a job."
    if job.array_id and job.name == name:
        job = session.get_one(Job, job.array_id)
    is_over = job.state.is_final and job.state is not JobState.SUCCEEDED
    if is_over and condition is DependencyCondition.OK:
        return None, f"The job {name!r} has already ended ({job.state.value}); it can't succeed."
    return job, ""
