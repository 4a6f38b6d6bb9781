"""What is read with jobs that are shown: their users, their attempts, and where these run.

Relations are read when they are used, one by one. Pages and answers are made after their session
has ended, and lists have many rows: what they show is read before, for all rows at once.
"""

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload, selectinload
from sqlalchemy.orm.interfaces import ORMOption

from core.db import chunked
from jobqueue.models import Attempt, Job


def with_attempts() -> list[ORMOption]:
    """Return the options of a query of jobs that are shown."""
    attempts = selectinload(Job.attempts).options(
        selectinload(Attempt.appliance), selectinload(Attempt.node), selectinload(Attempt.grant)
    )
    return [joinedload(Job.user), attempts]


def with_users() -> list[ORMOption]:
    """Return the options of a query of attempts that shows whose jobs they are of."""
    return [joinedload(Attempt.job).joinedload(Job.user)]


def read_shown(session: Session, jobs: Iterable[Job]) -> None:
    """Read what is shown of jobs that were read without it, or changed since."""
    for chunk in chunked({job.id for job in jobs}):
        session.scalars(select(Job).where(Job.id.in_(chunk)).options(*with_attempts())).all()


def shown_job(session: Session, job: Job) -> Job:
    """Return a job that was added or changed, to be shown."""
    read_shown(session, [job])
    return job
