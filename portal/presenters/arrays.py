"""Arrays in lists: one row for all tasks, with how many are in each state."""

from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from jobqueue.jobs.relations import array_states
from jobqueue.models import Job
from tenants.scope import Scope


class ListedJob:
    """A job in a list: everything that the job has, and the states of its array's tasks."""

    def __init__(self, job: Job, states: Mapping[str, int]) -> None:
        self._job = job
        self.array_states = states

    def __getattr__(self, name: str) -> object:
        return getattr(self._job, name)


def listed(session: Session, scope: Scope, jobs: Sequence[Job]) -> list[ListedJob]:
    """Return jobs of a list in which arrays are collapsed."""
    arrays = [job.id for job in jobs if job.array_id == job.id]
    states = array_states(session, scope, arrays)
    return [ListedJob(job, states.get(job.id, {})) for job in jobs]
