"""Submit the jobs of a file together: all of them, or none."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from core.secretbox import SecretBox
from jobqueue.dispatch.rented_appliances import usable_views
from jobqueue.models import Job
from jobqueue.queue.service import submit_job
from protocol.job_spec import JobRequest
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_JOBS = 100


def apply_jobs(
    session: Session, scope: Scope, requests: Sequence[JobRequest], *, box: SecretBox, now: datetime
) -> list[Job]:
    """Submit up to `MAX_JOBS` jobs in their order; roll the transaction back on an error.

    Raises:
        InvalidInputError: with the errors of all jobs, by `jobs.NUMBER.FIELD`.
    """
    scope.require(Permission.SUBMIT_JOBS)
    views = usable_views(session, scope.require_tenant(), now=now)
    jobs: list[Job] = []
    errors: dict[str, list[str]] = {}
    for number, request in enumerate(requests):
        try:
            jobs.append(submit_job(session, scope, request, box=box, now=now, views=views))
        except InvalidInputError as error:
            job_errors = error.errors or {"name": [error.message]}
            errors |= {f"jobs.{number}.{name}": list(texts) for name, texts in job_errors.items()}
    if errors:
        count = sum(map(len, errors.values()))
        message = f"No job was submitted: {count} error{'' if count == 1 else 's'}."
        raise InvalidInputError(message, errors=errors)
    return jobs


def rehearse_jobs(
    session: Session, scope: Scope, requests: Sequence[JobRequest], *, box: SecretBox, now: datetime
) -> list[Job]:
    """Return the jobs that `apply_jobs` would submit, of arrays the first task; nothing is stored.

    Raises:
        InvalidInputError: as `apply_jobs` does.
    """
    savepoint = session.begin_nested()
    jobs = apply_jobs(session, scope, requests, box=box, now=now)
    session.expunge_all()
    savepoint.rollback()
    return jobs
