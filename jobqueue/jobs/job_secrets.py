"""Secret environment variables of jobs: stored encrypted, passed to the container, never shown.

A job stores its secrets as one encrypted text, and their names in the clear.
"""

import json
from collections.abc import Iterable, Mapping

from sqlalchemy import update
from sqlalchemy.orm import Session

from core.db import erase_on_commit
from core.errors import ForbiddenError, InvalidInputError
from core.secretbox import SecretBox
from jobqueue.models import Job
from protocol.job_spec import JobRequest
from tenants.permissions import Permission
from tenants.scope import Scope


def encrypt_secrets(box: SecretBox, secrets: Mapping[str, str]) -> str | None:
    """Return the secrets as a job stores them; None if there are none."""
    return box.encrypt(json.dumps(dict(secrets))) if secrets else None


def decrypt_secrets(box: SecretBox, stored: str | None) -> dict[str, str]:
    """Return the secrets of a job by name.

    Raises:
        UnavailableError: their key is missing.
    """
    return dict(json.loads(box.decrypt(stored))) if stored else {}


def secrets_of_request(
    session: Session, scope: Scope, request: JobRequest, *, box: SecretBox
) -> dict[str, str]:
    """Return the secrets of a new job: those of the job that it copies, and its own.

    Raises:
        InvalidInputError: the job to copy from does not exist.
        ForbiddenError: another user submitted it: a command of one's own could print its secrets.
    """
    if request.secrets_from is None:
        return request.secrets
    source = session.get(Job, request.secrets_from)
    if source is None or not scope.owns(source):
        error = f"There is no job {request.secrets_from!r}."
        raise InvalidInputError(error, errors={"secrets_from": [error]})
    if source.user_id != scope.user_id:
        raise ForbiddenError(
            f"Only the user who submitted the job {source.name!r} can copy its secrets. Enter them "
            "again."
        )
    copied = decrypt_secrets(box, source.secret_env)
    return {name: copied[name] for name in copied.keys() - request.env.keys()} | request.secrets


def make_secret(
    session: Session, scope: Scope, job_id: str, names: Iterable[str], *, box: SecretBox
) -> Job:
    """Turn plain variables of a job into secrets, in whatever state the job is.

    Its container, if it runs, has the same value as before. Names that are secret already are
    ignored.

    Raises:
        InvalidInputError: the job has no such variable.
        ForbiddenError: it is another user's job, and the role may not stop those.
    """
    scope.require(Permission.SUBMIT_JOBS)
    job = scope.get(session, Job, job_id, kind="job")
    if job.user_id != scope.user_id:
        scope.require(Permission.STOP_ANY_JOB)
    # An UPDATE that changes nothing locks the row, on SQLite too.
    lock = update(Job).where(Job.id == job.id).values(id=job.id)
    session.execute(lock, execution_options={"synchronize_session": False})
    session.refresh(job)
    wanted = dict.fromkeys(names)
    missing = [name for name in wanted if name not in job.env and name not in job.secret_names]
    if missing:
        error = f"The job has no variable {', '.join(missing)}."
        raise InvalidInputError(error, errors={"names": [error]})
    moved = {name: job.env[name] for name in wanted if name in job.env}
    secrets = decrypt_secrets(box, job.secret_env) | moved
    job.env = {name: value for name, value in job.env.items() if name not in moved}
    job.secret_env, job.secret_names = encrypt_secrets(box, secrets), sorted(secrets)
    session.flush()
    erase_on_commit(session)
    return job
