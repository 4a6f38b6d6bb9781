"""The network of a requested job: what fits together, and what the tenant has to allow."""

from collections.abc import Iterator

from jobqueue.jobs.queue_settings import QueueSettings
from protocol.gangs import Framework, JobNetwork, job_network
from protocol.job_spec import JobKind, JobRequest

_ASK = "An admin can allow it in the queue settings."


def network_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    """Yield the errors of a request's network, by field."""
    names = tuple(JobNetwork)
    if request.network and request.network not in names:
        yield "network", f"{request.network!r} is not one of: {', '.join(names)}."
    is_gang = request.nodes > 1
    if request.network == JobNetwork.GANG and not is_gang:
        instead = "set nodes to 2 or more, or remove the network"
        if request.kind is JobKind.SERVICE:
            instead = "a service has none; remove the network"
        yield "network", f"A private network connects the members of a gang: {instead}."
    has_framework = request.framework not in {"", Framework.NONE}
    if request.network == JobNetwork.BRIDGE and is_gang and has_framework:
        why = f"members on other appliances can't reach each other, which {request.framework} needs"
        instead = "Choose gang, or host if the tenant allows it."
        yield "network", f"On the engine's bridge, {why}. {instead}"


def permission_errors(request: JobRequest, settings: QueueSettings) -> Iterator[tuple[str, str]]:
    """Yield what a request's network and devices would need that the tenant does not allow."""
    if settings.allows_host_network:
        return
    if job_network(request.network, request.framework, request.nodes) is JobNetwork.HOST:
        yield "network", f"This tenant's jobs may not use the appliance's network. {_ASK}"
    if request.uses_rdma:
        yield "uses_rdma", f"This tenant's jobs may not use the appliance's RDMA devices. {_ASK}"
