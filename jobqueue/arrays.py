"""Arrays: jobs of one request, which differ in their index; and the instances of services.

Each task is a job. The id of the array is that of its first task, so it stands for both.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, insert, inspect, select
from sqlalchemy.orm import Session

from core.ids import new_id
from jobqueue.models import Job, JobEvent
from jobqueue.states import JobState
from tenants.scope import Scope

MAX_TASKS = 1000
MAX_INDEX = 1_000_000
# That of as many indexes.
MAX_LENGTH = 8 * MAX_TASKS
INDEX_VARIABLE = "VEDETTE_ARRAY_INDEX"
_SPEC = re.compile(r"([0-9,-]+)(?:%([0-9]{1,9}))?")
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")
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


def add_other_tasks(
    session: Session, first: Job, indexes: Sequence[int], **changes: object
) -> None:
    """Add further tasks of an array, like one that is in the database but for some columns.

    They are written in bulk; the audit log has an entry of the first.
    """
    columns = [column.key for column in inspect(Job).column_attrs]
    like = {name: getattr(first, name) for name in columns} | changes
    rows = [like | {"id": new_id(), "array_index": index} for index in indexes]
    if not rows:
        return
    session.execute(insert(Job), rows)
    event = {name: like[name] for name in ("tenant_id", "state", "reason", "message")}
    event["at"] = like["submitted_at"]
    session.execute(insert(JobEvent), [{"job_id": row["id"], **event} for row in rows])


def array_states(
    session: Session, scope: Scope, array_ids: Collection[str]
) -> dict[str, dict[str, int]]:
    """Return how many tasks of arrays are in each state, by the id of the array."""
    if not array_ids:
        return {}
    counted: Any = select(Job.array_id, Job.state, func.count()).group_by(Job.array_id, Job.state)
    rows = session.execute(scope.select(counted, Job).where(Job.array_id.in_(array_ids)))
    found: dict[str, dict[JobState, int]] = {}
    for array_id, state, count in rows:
        found.setdefault(array_id, {})[JobState(state)] = count
    return {
        ident: {state.value: counts[state] for state in JobState if state in counts}
        for ident, counts in found.items()
    }


def array_env(job: Job) -> Mapping[str, str]:
    """Return the variables that a task of an array gets besides its own."""
    return {} if job.array_index is None else {INDEX_VARIABLE: str(job.array_index)}
