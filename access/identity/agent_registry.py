"""Registry of the agents that may authenticate, by token hash and certificate fingerprint.

It has the write tokens of other programs and the tokens of relays, too.

The registry is cached, so that a thousand writes a second need no query each. Revoking or blocking
an agent increments the registry's revision in the database. That is told to all processes; where it
may not arrive, the revision is polled several times a second: that bounds how long a revoked agent
is accepted. Reading ten thousand agents takes long: they are read again when the revision has
changed, a few seconds after a query admitted an agent that the registry lacks, and otherwise twice
a minute.
"""

import asyncio
import logging
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session

from access.database import Database
from core.changes import Topic
from core.clock import Clock
from core.errors import DatabaseUnavailableError
from tenants.fleet.agents import registry_revision
from tenants.fleet.states import has_no_connector
from tenants.models import (
    AccessPoint,
    Appliance,
    ApplianceCertificate,
    Tenant,
    TenantState,
    WriteToken,
)
from tenants.pki.admission import GRACE, valid_until
from timeseries.store import APPLIANCE_TAG, TENANT_TAG

logger = logging.getLogger(__name__)

MAX_AGE = timedelta(minutes=1)
# From this age it is read again in the background, so that no request waits for it.
REFRESH_AFTER = timedelta(seconds=30)
# From this age if a query has admitted an agent that it lacks.
LACKING_REFRESH_AFTER = timedelta(seconds=3)
# How long cached agents are accepted while its revision can't be read.
MAX_UNCHECKED_AGE = timedelta(seconds=5)
# Ages of its revision; and while all changes are told, in case a change is told to nobody.
REVISION_MAX_AGE = timedelta(milliseconds=250)
REVISION_REFRESH_AFTER = timedelta(milliseconds=150)
TOLD_REVISION_MAX_AGE = timedelta(seconds=2)
TOLD_REVISION_REFRESH_AFTER = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Agent:
    """An authenticated agent, by its appliance."""

    appliance_id: str
    tenant_id: str
    name: str

    @property
    def place(self) -> tuple[str, str]:
        """Its tenant and its appliance."""
        return self.tenant_id, self.appliance_id

    @property
    def tags(self) -> dict[str, str]:
        """The identity tags of every sample it sends."""
        return {TENANT_TAG: self.tenant_id, APPLIANCE_TAG: self.appliance_id}


@dataclass(frozen=True, slots=True)
class WriteGrant:
    """A write token: which appliances of its tenant its bearer may write samples of."""

    token_id: str
    tenant_id: str
    appliance_pattern: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Relay:
    """An authenticated relay; it acts for the appliances of a tenant, or of all if that is None.

    `key` is the hash of its token.
    """

    key: str
    relay_id: str
    tenant_id: str | None

    def may_act_for(self, tenant_id: str) -> bool:
        """Return whether it may act for a tenant's appliances."""
        return self.tenant_id in {None, tenant_id}


@dataclass(frozen=True, slots=True)
class Certificate:
    """The agent of a certificate, and until when it is accepted without another query."""

    agent: Agent
    valid_until: datetime


@dataclass(frozen=True, slots=True)
class AgentRegistry:
    """The agents that may authenticate."""

    secrets: dict[str, Agent] = field(default_factory=dict)
    certificates: dict[str, Certificate] = field(default_factory=dict)
    write_tokens: dict[str, WriteGrant] = field(default_factory=dict)
    relays: dict[str, Relay] = field(default_factory=dict)
    appliances: dict[str, Agent] = field(default_factory=dict)
    revision: int = -1


class AgentRegistryCache:
    """Refreshes the registry. For the tasks of one event loop."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._registry = AgentRegistry()
        self._loaded = _Age()
        self._checked = _Age()
        self._load_task: asyncio.Task[None] | None = None
        self._check_task: asyncio.Task[None] | None = None
        self._is_lacking = False
        # How many changes were told, and how many of them before the last query.
        self._told = self._seen = 0
        database.changes.listen(Topic.REGISTRY, self._hear)

    async def current(self) -> AgentRegistry:
        """Return the current registry."""
        registry = self.at_once()
        if registry is not None:
            return registry
        now = self._clock()
        if self._loaded.exceeds(MAX_AGE, now):
            if self._load_task is None or self._load_task.done():
                self._load_task = _begun(self._load(now))
            # Shielded: many requests await the same task, and any of them may be cancelled.
            await asyncio.shield(self._load_task)
            return self._registry
        _, expired = self._revision_ages()
        # Twice, as the first one may have begun before what was told.
        for _ in range(2):
            if self._told == self._seen and not self._checked.exceeds(expired, now):
                break
            if self._check_task is None or self._check_task.done():
                self._check_task = _begun(self._check_revision(now))
            await asyncio.shield(self._check_task)
        return self._registry

    def at_once(self) -> AgentRegistry | None:
        """Return the current registry; None if it must be awaited, as `current` does."""
        now, (due, expired) = self._clock(), self._revision_ages()
        if (
            self._told != self._seen
            or self._loaded.exceeds(MAX_AGE, now)
            or self._checked.exceeds(expired, now)
        ):
            return None
        refresh_after = LACKING_REFRESH_AFTER if self._is_lacking else REFRESH_AFTER
        if self._loaded.exceeds(refresh_after, now) and _is_over(self._load_task):
            self._load_task = _begun(self._load(now))
        elif self._checked.exceeds(due, now) and _is_over(self._check_task):
            self._check_task = _begun(self._check_revision(now))
        return self._registry

    def note_lacking(self) -> None:
        """Read it again soon: it lacks what a query has admitted."""
        self._is_lacking = True

    def _revision_ages(self) -> tuple[timedelta, timedelta]:
        """Return from when the revision is read in the background, and until when it is good."""
        if self._database.changes.is_complete:
            return TOLD_REVISION_REFRESH_AFTER, TOLD_REVISION_MAX_AGE
        return REVISION_REFRESH_AFTER, REVISION_MAX_AGE

    def _hear(self, _idents: Collection[str]) -> None:
        """Note that the revision was changed; called by any thread."""
        self._told += 1

    async def _load(self, now: datetime) -> None:
        told, self._is_lacking = self._told, False
        self._registry = await self._database.run(lambda session: read_registry(session, now=now))
        # The time before the query: later revocations must not be cached longer.
        self._loaded.since = self._checked.since = now
        self._seen = told

    async def _check_revision(self, now: datetime) -> None:
        told = self._told
        try:
            revision = await self._database.run(registry_revision)
        except DatabaseUnavailableError as error:
            if self._checked.exceeds(MAX_UNCHECKED_AGE, now):
                raise
            logger.debug("can't read the registry's revision: %s", error)
            return
        if revision == self._registry.revision:
            self._checked.since, self._seen = now, told
        else:
            await self._load(now)


def _begun(refresh: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Begin a refresh; requests that don't wait for it never see its error."""
    task = asyncio.create_task(refresh)
    task.add_done_callback(_note_failure)
    return task


def _is_over(task: asyncio.Task[None] | None) -> bool:
    return task is None or task.done()


def _note_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    # `core.db.transaction` logs that the database is away.
    if error is not None and not isinstance(error, DatabaseUnavailableError):
        logger.error("can't refresh the registry of agents", exc_info=error)


class _Age:
    """The age of cached data."""

    def __init__(self) -> None:
        self.since: datetime | None = None

    def exceeds(self, age: timedelta, now: datetime) -> bool:
        return self.since is None or not timedelta(0) <= now - self.since < age


def read_registry(session: Session, *, now: datetime) -> AgentRegistry:
    """Load the agents that may authenticate."""
    # First: the queries below may miss concurrent changes, which increment it.
    revision = registry_revision(session)
    rows = session.execute(_admitted())
    secrets = {key: Agent(*identity) for key, *identity in rows}
    agents = {agent.appliance_id: agent for agent in secrets.values()}
    return AgentRegistry(
        secrets,
        _certificates(session, agents, now=now),
        _write_tokens(session, now=now),
        _relays(session),
        agents,
        revision,
    )


def new_relay(key: str, session: Session) -> Relay | None:
    """Return the relay of a token that the registry may be too old to have, by its hash."""
    return _relays(session, AccessPoint.secret_hash == key).get(key)


def new_agents(appliance_ids: Collection[str], session: Session) -> dict[str, Agent]:
    """Return the agents, by appliance, that the registry may be too old to have."""
    statement = _admitted().where(Appliance.id.in_(appliance_ids))
    agents = [Agent(*identity) for _, *identity in session.execute(statement)]
    return {agent.appliance_id: agent for agent in agents}


def _relays(session: Session, *conditions: ColumnElement[bool]) -> dict[str, Relay]:
    rows = session.execute(
        select(AccessPoint.secret_hash, AccessPoint.id, AccessPoint.tenant_id)
        .outerjoin(Tenant, Tenant.id == AccessPoint.tenant_id)
        .where(
            AccessPoint.secret_hash.is_not(None),
            AccessPoint.tenant_id.is_(None) | (Tenant.state == TenantState.ACTIVE),
            *conditions,
        )
    )
    return {key: Relay(key, relay_id, tenant_id) for key, relay_id, tenant_id in rows if key}


def _admitted() -> Select[str, str, str, str]:
    """Return the statement for the agents that may authenticate, with the hashes of tokens."""
    return (
        select(Appliance.secret_hash, Appliance.id, Appliance.tenant_id, Appliance.name)
        .join(Tenant, Tenant.id == Appliance.tenant_id)
        .where(
            Appliance.revoked_at.is_(None),
            Appliance.retired_at.is_(None),
            Appliance.fenced_at.is_(None),
            has_no_connector(),
            Tenant.state == TenantState.ACTIVE,
        )
    )


def new_write_grant(session: Session, key: str, *, now: datetime) -> WriteGrant | None:
    """Return the grant of a token that the registry may be too old to have, by its hash."""
    return _write_tokens(session, WriteToken.secret_hash == key, now=now).get(key)


def _write_tokens(
    session: Session, *conditions: ColumnElement[bool], now: datetime
) -> dict[str, WriteGrant]:
    rows = session.execute(
        select(
            WriteToken.secret_hash,
            WriteToken.id,
            WriteToken.tenant_id,
            WriteToken.appliance_pattern,
            WriteToken.expires_at,
        )
        .join(Tenant, Tenant.id == WriteToken.tenant_id)
        .where(
            WriteToken.expires_at > now,
            WriteToken.revoked_at.is_(None),
            Tenant.state == TenantState.ACTIVE,
            *conditions,
        )
    )
    return {
        key: WriteGrant(token_id, tenant_id, pattern, expires_at)
        for key, token_id, tenant_id, pattern, expires_at in rows
    }


def _certificates(
    session: Session, agents: dict[str, Agent], *, now: datetime
) -> dict[str, Certificate]:
    """Return the certificates in use; the first use of a new one takes a query of its own."""
    certificates = ApplianceCertificate
    rows = session.execute(
        select(
            certificates.fingerprint,
            certificates.appliance_id,
            certificates.not_after,
            certificates.replaced_at,
        ).where(
            certificates.not_after > now,
            certificates.revoked_at.is_(None),
            certificates.first_used_at.is_not(None),
            certificates.replaced_at.is_(None) | (certificates.replaced_at > now - GRACE),
        )
    )
    return {
        fingerprint: Certificate(agents[ident], valid_until(not_after, replaced_at))
        for fingerprint, ident, not_after, replaced_at in rows
        if ident in agents
    }
