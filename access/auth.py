"""Who pushes: an agent's secret becomes its appliance and tenant.

The answer is remembered for a few seconds by the secret's hash, so that ten pushes a second cost
no query each. A revoked appliance is therefore shut out within `REMEMBER_FOR`.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session
from starlette.requests import Request

from access.database import Database
from core.clock import Clock
from core.errors import UnauthenticatedError
from core.ids import hash_secret
from tenants.appliances import authenticate_agent
from timeseries.store import APPLIANCE_TAG, TENANT_TAG

REMEMBER_FOR = timedelta(seconds=5)
_SCHEMES = frozenset({"token", "bearer"})
_FORGET_ABOVE = 20_000


@dataclass(frozen=True, slots=True)
class Agent:
    """An appliance whose agent has proved who it is."""

    appliance_id: str
    tenant_id: str

    @property
    def tags(self) -> dict[str, str]:
        """The identity that is stamped on every sample it sends."""
        return {TENANT_TAG: self.tenant_id, APPLIANCE_TAG: self.appliance_id}


@dataclass(frozen=True, slots=True)
class _Known:
    agent: Agent
    since: datetime


class Authenticator:
    """Finds the agent behind a request. For the tasks of one event loop."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, _Known] = {}

    async def agent(self, request: Request) -> Agent:
        """Return who sent the request.

        Raises:
            UnauthenticatedError: no secret, or one that is unknown or revoked.
        """
        secret = _secret(request)
        key, now = hash_secret(secret), self._clock()
        known = self._known.get(key)
        if known and timedelta(0) <= now - known.since < REMEMBER_FOR:
            return known.agent
        self._known.pop(key, None)
        agent = await self._database.run(lambda session: _find(session, secret))
        if len(self._known) >= _FORGET_ABOVE:
            self._known.clear()
        # As of before the query: what was revoked since then must not be remembered longer.
        self._known[key] = _Known(agent, now)
        return agent


def _secret(request: Request) -> str:
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() not in _SCHEMES or not secret.strip():
        raise UnauthenticatedError(
            "This address is for agents. Send 'Authorization: Bearer <agent token>' "
            "or 'Authorization: Token <agent token>'."
        )
    return secret.strip()


def _find(session: Session, secret: str) -> Agent:
    appliance = authenticate_agent(session, secret)
    return Agent(appliance_id=appliance.id, tenant_id=appliance.tenant_id)
