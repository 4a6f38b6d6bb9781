"""Who the audit log says is asking: a visitor as the actor of a request."""

from flask import has_request_context, request

from tenants.audit import Actor
from tenants.models import User
from tenants.visitors import Visitor

STRANGER = "nobody signed in"


def actor_of(visitor: Visitor | None) -> Actor:
    """Return who acts in this request; an operator on a support visit stays the operator."""
    if visitor is None:
        return _actor(None, via="browser")
    if visitor.visit is not None:
        return _actor(visitor.visit.operator, via=f"support visit as {visitor.user.email}")
    via = visitor.via.value
    if visitor.credential_name:
        via = f"{via} {visitor.credential_name}"
    return _actor(visitor.user, via=via)


def signing_in(user: User, *, via: str = "browser") -> Actor:
    """Return somebody as the actor of the request that signs them in."""
    return _actor(user, via=via)


def _actor(user: User | None, *, via: str) -> Actor:
    is_request = has_request_context()
    return Actor(
        user_id=None if user is None else user.id,
        name=STRANGER if user is None else user.email,
        via=via,
        address=(request.remote_addr or "") if is_request else "",
        user_agent=request.user_agent.string if is_request else "",
    )
