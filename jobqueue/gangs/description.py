"""What a member of a gang gets to find the others, as pages and programs show it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from jobqueue.gangs.frameworks import abilities_of, framework_variables
from jobqueue.gangs.members import gangs_of, network_of
from jobqueue.gangs.variables import Variable
from jobqueue.models import Job
from protocol.gangs import Framework, GangMember, JobNetwork

_OWN = "The job sets it."
_HIDDEN = "The job sets it as a secret."


@dataclass(frozen=True, slots=True)
class FrameworkDescription:
    """The framework of a job.

    Attributes:
        framework: that it has.
        network: which its containers have.
        rank: of this member.
        size: the number of members.
        members: as others reach them; none before the job is placed.
        variables: which the member gets; none before the job is placed.
    """

    framework: Framework
    network: JobNetwork
    rank: int
    size: int
    members: Sequence[GangMember] = field(default_factory=tuple)
    variables: Sequence[Variable] = field(default_factory=tuple)


def framework_description(session: Session, job: Job) -> FrameworkDescription:
    """Return what a job's latest attempt gets for its framework."""
    attempt = job.attempt
    gang = gangs_of(session, [attempt]).get(attempt.id) if attempt else None
    variables = framework_variables(job, gang, abilities_of(attempt)) if attempt else []
    return FrameworkDescription(
        framework=Framework(job.framework),
        network=network_of(job),
        rank=job.array_index or 0 if job.nodes > 1 else 0,
        size=job.nodes,
        members=gang.members if gang else (),
        variables=[_as_set(job, variable) for variable in variables],
    )


def _as_set(job: Job, variable: Variable) -> Variable:
    """Return a variable as the container gets it: those of the job go first."""
    if variable.name in job.secret_names:
        return Variable(variable.name, "", _HIDDEN)
    if variable.name in job.env:
        return Variable(variable.name, job.env[variable.name], _OWN)
    return variable
