"""Who pushes: an agent's secret becomes its appliance and tenant.

InfluxDB 2 clients send it as `Token SECRET`, others as `Bearer SECRET`. InfluxDB 1 clients send it
as a password, in Basic authentication, in the query or as `Token USER:SECRET`.

The *roll* holds every agent that may come in, by its secret's hash. It is read anew every few
seconds by one query, so that a thousand pushes a second of ten thousand agents cost no query each.
A revoked appliance is therefore shut out within `REMEMBER_FOR`.
"""

import asyncio
import binascii
from base64 import b64decode
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.requests import Request

from access.database import Database
from core.clock import Clock
from core.errors import UnauthenticatedError
from core.ids import hash_secret
from tenants.appliances import authenticate_agent
from tenants.models import Appliance, Tenant, TenantState
from timeseries.store import APPLIANCE_TAG, TENANT_TAG

REMEMBER_FOR = timedelta(seconds=5)
_SCHEMES = frozenset({"token", "bearer"})


@dataclass(frozen=True, slots=True)
class Agent:
    """An appliance whose agent has proved who it is."""

    appliance_id: str
    tenant_id: str
    name: str

    @property
    def tags(self) -> dict[str, str]:
        """The identity that is stamped on every sample it sends."""
        return {TENANT_TAG: self.tenant_id, APPLIANCE_TAG: self.appliance_id}


class Authenticator:
    """Finds the agent behind a request. For the tasks of one event loop."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._roll: dict[str, Agent] = {}
        self._as_of: datetime | None = None
        self._reading: asyncio.Task[None] | None = None

    async def agent(self, request: Request) -> Agent:
        """Return who sent the request.

        Raises:
            UnauthenticatedError: no secret, or one that is unknown or revoked.
        """
        return await self._agent(_token(request))

    async def agent_of_influx_v1(self, request: Request) -> Agent:
        """Return who sent a request in the manner of InfluxDB 1.

        Raises:
            UnauthenticatedError: no secret, or one that is unknown or revoked.
        """
        return await self._agent(_password(request))

    async def _agent(self, secret: str) -> Agent:
        key, roll = hash_secret(secret), await self._current_roll()
        agent = roll.get(key)
        if agent is None:
            # It enrolled since the roll was read, or is told why it may not come in. What was
            # found goes into the roll of before the query: a newer one may know of a revocation.
            agent = roll[key] = await self._database.run(lambda session: _find(session, secret))
        return agent

    async def _current_roll(self) -> dict[str, Agent]:
        now = self._clock()
        if self._as_of is None or not timedelta(0) <= now - self._as_of < REMEMBER_FOR:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read(now))
            # Shielded: many wait for the one reading, and any of them may be cancelled.
            await asyncio.shield(self._reading)
        return self._roll

    async def _read(self, now: datetime) -> None:
        self._roll = await self._database.run(_read_roll)
        # As of before the query: what was revoked since then must not be remembered longer.
        self._as_of = now


def _token(request: Request) -> str:
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() not in _SCHEMES or not secret.strip():
        raise UnauthenticatedError(
            "This address is for agents. Send 'Authorization: Bearer <agent token>' "
            "or 'Authorization: Token <agent token>'."
        )
    return secret.strip()


def _password(request: Request) -> str:
    """Return the secret from where InfluxDB 1 looks: the query first, then the header."""
    secret = request.query_params.get("p", "")
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if not secret and scheme.lower() == "basic":
        secret = _basic_password(credentials)
    elif not secret and scheme.lower() in _SCHEMES:
        secret = credentials.strip().rpartition(":")[2]
    if not secret:
        raise UnauthenticatedError(
            "This address is for agents. Give the agent token as the password (any user name), "
            "or send 'Authorization: Token <agent token>'."
        )
    return secret


def _basic_password(credentials: str) -> str:
    try:
        return b64decode(credentials, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _read_roll(session: Session) -> dict[str, Agent]:
    rows = session.execute(
        select(Appliance.secret_hash, Appliance.id, Appliance.tenant_id, Appliance.name)
        .join(Tenant, Tenant.id == Appliance.tenant_id)
        .where(Appliance.revoked_at.is_(None), Tenant.state == TenantState.ACTIVE)
    )
    return {key: Agent(*identity) for key, *identity in rows}


def _find(session: Session, secret: str) -> Agent:
    appliance = authenticate_agent(session, secret)
    return Agent(appliance.id, appliance.tenant_id, appliance.name)
