"""The framework of a requested job: what fits together."""

from collections.abc import Iterator

from protocol.gangs import LED_BY_FIRST, Framework
from protocol.job_spec import JobKind, JobRequest, OnMemberLoss


def framework_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    """Yield the errors of a request's framework, by field."""
    framework = request.framework
    if framework not in tuple(Framework):
        yield "framework", f"{framework!r} is not one of: {', '.join(Framework)}."
    if framework == Framework.NONE:
        return
    if request.kind is JobKind.SERVICE or request.array:
        kind = "a service" if request.kind is JobKind.SERVICE else "an array"
        yield "framework", f"A framework is for gangs and single jobs, not for {kind}; remove it."
    if request.nodes == 1 or framework not in LED_BY_FIRST:
        return
    if request.on_member_loss == OnMemberLoss.CONTINUE:
        problem = f"A gang of {framework} does not go on without a member"
        yield "on_member_loss", f"{problem}; choose stop or restart."
    if not request.command:
        problem = f"A gang of {framework} needs the command that its first member runs"
        yield "command", f"{problem}; enter one."
