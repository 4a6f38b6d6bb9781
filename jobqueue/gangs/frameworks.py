"""What frameworks expect in the environment of a gang's members."""

from collections.abc import Mapping

from jobqueue.models import Job
from protocol.gangs import Gang


def framework_env(job: Job, gang: Gang | None) -> Mapping[str, str]:
    """Return the variables that a job's framework expects; those of the job itself go first."""
    return {}
