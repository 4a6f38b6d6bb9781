"""Events of appliances about samples that were rejected, such as those with a wrong time.

The first rejection makes an event, then one an hour at most says how many there were since.
"""

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from access.database import Database
from access.identity.agent_registry import Agent
from core.clock import Clock
from core.errors import DatabaseUnavailableError
from tenants.fleet.events import EventKind, add_event
from tenants.models import Appliance

log = logging.getLogger(__name__)

INTERVAL = timedelta(hours=1)
MAX_APPLIANCES = 10_000


@dataclass(slots=True)
class _Rejections:
    """Rejected samples of an appliance since its last event."""

    count: int = 0
    noted_at: datetime | None = None


class RejectionNotes:
    """Adds the events. For the tasks of one event loop."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._rejections: dict[str, _Rejections] = {}
        self._storing: set[asyncio.Task[None]] = set()

    def note(self, agent: Agent, count: int, reason: str) -> None:
        """Note the rejected samples of a request; the sender does not wait for the event."""
        now = self._clock()
        if len(self._rejections) >= MAX_APPLIANCES:
            self._rejections.clear()
        rejections = self._rejections.setdefault(agent.appliance_id, _Rejections())
        rejections.count += count
        if rejections.noted_at is not None and now - rejections.noted_at < INTERVAL:
            return
        text = f"{rejections.count:,} samples were" if rejections.count > 1 else "A sample was"
        message = f"{text} rejected: {reason}."
        rejections.count, rejections.noted_at = 0, now
        task = asyncio.create_task(self._store(agent.appliance_id, message, now=now))
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def _store(self, appliance_id: str, message: str, *, now: datetime) -> None:
        try:
            await self._database.run(lambda session: _add(session, appliance_id, message, now=now))
        except DatabaseUnavailableError as error:
            log.debug("rejected samples of %s are not noted: %s", appliance_id, error.message)


def _add(session: Session, appliance_id: str, message: str, *, now: datetime) -> None:
    appliance = session.get(Appliance, appliance_id)
    if appliance is not None:
        add_event(session, appliance, EventKind.SAMPLES_REJECTED, message, now=now)
