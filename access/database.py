"""Database access for asynchronous code: short transactions in a few threads."""

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from sqlalchemy.orm import Session
from starlette.requests import HTTPConnection, Request

from core.changes import ChangeBus
from core.clock import Clock, utc_now
from core.db import SessionFactory, changes_of, transaction
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import acting, set_actor
from tenants.principals import Principal

T = TypeVar("T")

# Fewer than the pool has connections, so that agents never starve the portal.
MAX_THREADS = 8
_VIA = "agent API"
# The audit log's actor where a request does not name its agent.
AGENTS = Actor(name="an agent", via=_VIA)


class Database:
    """Runs functions on a session in a thread; those that wait for a thread block none."""

    def __init__(self, sessions: SessionFactory, *, clock: Clock = utc_now) -> None:
        self._sessions = acting(sessions, AGENTS, clock=clock)
        self._clock = clock
        self._limiter = CapacityLimiter(MAX_THREADS)

    @property
    def changes(self) -> ChangeBus:
        """Tells of what is changed."""
        return changes_of(self._sessions)

    async def run(self, work: Callable[[Session], T], *, actor: Actor | None = None) -> T:
        """Run `work` in a transaction and return its result; `actor` goes to the audit log."""
        return await to_thread.run_sync(self._in_transaction, work, actor, limiter=self._limiter)

    def _in_transaction(self, work: Callable[[Session], T], actor: Actor | None) -> T:
        with transaction(self._sessions) as session:
            if actor is not None:
                set_actor(session, actor, clock=self._clock)
            return work(session)


def agent_actor(request: Request, name: str) -> Actor:
    """Return the agent of the appliance with this name as the actor of a request."""
    return Actor(
        name=f"agent {name}",
        via=_VIA,
        address=request.client.host if request.client else "",
        user_agent=request.headers.get("User-Agent", ""),
    )


def user_actor(connection: HTTPConnection, principal: Principal) -> Actor:
    """Return a user as the actor of a request."""
    return Actor(
        user_id=principal.user.id,
        name=principal.user.email,
        via=f"{principal.via.value} {principal.credential_name}".strip(),
        address=connection.client.host if connection.client else "",
        user_agent=connection.headers.get("User-Agent", ""),
    )
