"""The roll: every agent that may come in, by its secret's hash and its certificate's fingerprint.

It is read anew every few seconds by two queries, so that a thousand pushes a second of ten thousand
agents cost no query each. Who is shut out in between moves the roll's revision, which is looked at
several times a second; that alone bounds how long somebody who was shut out is still let in.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from access.database import Database
from core.clock import Clock
from tenants.entry.admission import GRACE, good_until
from tenants.entry.roll import roll_revision
from tenants.models import Appliance, ApplianceCertificate, Tenant, TenantState
from timeseries.store import APPLIANCE_TAG, TENANT_TAG

logger = logging.getLogger(__name__)

REMEMBER_FOR = timedelta(seconds=5)
# From then on it is read in the background, so that nobody has to wait for it.
REFRESH_AFTER = timedelta(seconds=3)
# The same two for a look at the revision.
REVISION_FOR = timedelta(milliseconds=250)
LOOK_AFTER = timedelta(milliseconds=150)


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


@dataclass(frozen=True, slots=True)
class Holder:
    """The agent that a certificate is of, and until when that goes without another look."""

    agent: Agent
    until: datetime


@dataclass(frozen=True, slots=True)
class Roll:
    """Who may come in."""

    secrets: dict[str, Agent] = field(default_factory=dict)
    certificates: dict[str, Holder] = field(default_factory=dict)
    revision: int = -1


class RollKeeper:
    """Keeps the roll up to date. For the tasks of one event loop."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._roll = Roll()
        self._read_at = _Instant(REFRESH_AFTER, REMEMBER_FOR)
        self._looked_at = _Instant(LOOK_AFTER, REVISION_FOR)
        self._reading: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    async def current(self) -> Roll:
        """Return the roll of this moment."""
        now = self._clock()
        if self._read_at.is_due(now):
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read(now))
            if self._read_at.is_over(now):
                # Shielded: many wait for the one reading, and any of them may be cancelled.
                await asyncio.shield(self._reading)
                return self._roll
        if self._looked_at.is_due(now):
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look(now))
            if self._looked_at.is_over(now):
                await asyncio.shield(self._looking)
        return self._roll

    async def _read(self, now: datetime) -> None:
        self._roll = await self._database.run(lambda session: read_roll(session, now=now))
        # As of before the query: what was revoked since then must not be remembered longer.
        self._read_at.value = self._looked_at.value = now

    async def _look(self, now: datetime) -> None:
        try:
            revision = await self._database.run(roll_revision)
        except SQLAlchemyError as error:
            # Whoever is known goes on for as long as the roll is remembered.
            logger.warning("the roll's revision can't be read: %s", error)
            return
        if revision == self._roll.revision:
            self._looked_at.value = now
        else:
            await self._read(now)


class _Instant:
    """When something was done last; it is due after a while, and over some time later."""

    def __init__(self, due_after: timedelta, over_after: timedelta) -> None:
        self.value: datetime | None = None
        self._due_after = due_after
        self._over_after = over_after

    def is_due(self, now: datetime) -> bool:
        return self.value is None or not timedelta(0) <= now - self.value < self._due_after

    def is_over(self, now: datetime) -> bool:
        return self.value is None or not timedelta(0) <= now - self.value < self._over_after


def read_roll(session: Session, *, now: datetime) -> Roll:
    """Read who may come in."""
    # First of all: what moves it meanwhile may be missing in the rest.
    revision = roll_revision(session)
    rows = session.execute(
        select(Appliance.secret_hash, Appliance.id, Appliance.tenant_id, Appliance.name)
        .join(Tenant, Tenant.id == Appliance.tenant_id)
        .where(
            Appliance.revoked_at.is_(None),
            Appliance.retired_at.is_(None),
            Appliance.fenced_at.is_(None),
            Tenant.state == TenantState.ACTIVE,
        )
    )
    secrets = {key: Agent(*identity) for key, *identity in rows}
    agents = {agent.appliance_id: agent for agent in secrets.values()}
    return Roll(secrets, _certificates(session, agents, now=now), revision)


def _certificates(
    session: Session, agents: dict[str, Agent], *, now: datetime
) -> dict[str, Holder]:
    """Return the certificates in use; the first use of a new one is looked at on its own."""
    one = ApplianceCertificate
    rows = session.execute(
        select(one.fingerprint, one.appliance_id, one.not_after, one.replaced_at).where(
            one.not_after > now,
            one.revoked_at.is_(None),
            one.first_used_at.is_not(None),
            one.replaced_at.is_(None) | (one.replaced_at > now - GRACE),
        )
    )
    return {
        fingerprint: Holder(agents[ident], good_until(not_after, replaced_at))
        for fingerprint, ident, not_after, replaced_at in rows
        if ident in agents
    }
