"""The gangs of attempts as their appliances get them."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from jobqueue.models import Attempt, Job
from protocol.gangs import Gang, JobNetwork, chosen_network


def network_of(job: Job) -> JobNetwork:
    """Return the network of a job: the one that it names, or the usual one."""
    return chosen_network(job.network, job.framework, job.nodes)


def gangs_of(session: Session, attempts: Sequence[Attempt]) -> dict[str, Gang]:
    """Return the gangs of attempts that are members of one, by the attempt's id."""
    return {}
