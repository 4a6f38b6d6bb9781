"""What the job page says about a job's way: its steps, and the GPUs that it was given."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from jobqueue.models import Attempt, Job, JobEvent
from jobqueue.states import JobState

WAY = (JobState.SUBMITTED, JobState.QUEUED, JobState.STARTING, JobState.RUNNING)


class Progress(StrEnum):
    """How far a step is."""

    DONE = "done"
    CURRENT = "current"
    AHEAD = "ahead"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a job's way; `at` is when it was reached."""

    state: JobState
    progress: Progress
    at: datetime | None


def stepper(job: Job, events: Sequence[JobEvent]) -> list[Step]:
    """Return the way of a job: the states before its end, then its end or the hoped-for one."""
    reached: dict[JobState, datetime] = {}
    for event in events:
        reached.setdefault(event.state, event.at)
    end = job.state if job.state.is_final else JobState.SUCCEEDED
    way = (*WAY, end)
    current = way.index(job.state)
    return [
        Step(state, _progress(index, current, state in reached), reached.get(state))
        for index, state in enumerate(way)
    ]


def gpu_names(attempt: Attempt | None) -> list[str]:
    """Return the attempt's GPUs by model, as `0, 1 (H100 80GB)`; unknown ones by their UUID."""
    if attempt is None:
        return []
    known = {gpu["uuid"]: gpu for gpu in attempt.appliance.inventory.get("gpus", [])}
    indices: dict[str, list[int]] = {}
    for uuid in attempt.gpu_uuids:
        if uuid in known:
            indices.setdefault(known[uuid]["model"], []).append(known[uuid]["index"])
    names = [f"{', '.join(map(str, sorted(at)))} ({model})" for model, at in indices.items()]
    return names + [uuid for uuid in attempt.gpu_uuids if uuid not in known]


def _progress(index: int, current: int, is_reached: bool) -> Progress:  # noqa: FBT001 - one caller
    if index == current:
        return Progress.CURRENT
    if index > current:
        return Progress.AHEAD
    return Progress.DONE if is_reached else Progress.SKIPPED
