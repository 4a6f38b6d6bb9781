"""Who the audit log says is asking at the agents' door."""

from starlette.requests import Request

from tenants.audit import Actor


def agent_actor(request: Request, name: str) -> Actor:
    """Return the agent of an appliance of this name as the actor of a request."""
    return Actor(
        name=f"agent {name}",
        via="agents' door",
        address=request.client.host if request.client else "",
        user_agent=request.headers.get("User-Agent", ""),
    )
