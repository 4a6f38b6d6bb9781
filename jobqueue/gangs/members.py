"""The gangs of attempts as their appliances get them."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from jobqueue.models import Attempt, Job
from protocol.gangs import Framework, Gang, JobNetwork


def network_of(job: Job) -> JobNetwork:
    """Return the network of a job: the one that it names, or the usual one."""
    if job.network:
        return JobNetwork(job.network)
    has_framework = job.framework != Framework.NONE
    return JobNetwork.GANG if has_framework and job.nodes > 1 else JobNetwork.BRIDGE


def gangs_of(session: Session, attempts: Sequence[Attempt]) -> dict[str, Gang]:
    """Return the gangs of attempts that are members of one, by the attempt's id."""
    return {}
