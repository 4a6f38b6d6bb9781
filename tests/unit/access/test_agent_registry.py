"""The registry of agents while the database is away."""

import asyncio
import gc
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from access.database import Database, T
from access.identity.agent_registry import REFRESH_AFTER, AgentRegistryCache
from core.db import SessionFactory
from core.errors import DatabaseUnavailableError
from tenants.auditing.drafts import Actor
from tests.cast import FrozenClock


class LeavingDatabase(Database):
    """Answers until it is away."""

    is_away = False

    async def run(self, work: Callable[[Session], T], *, actor: Actor | None = None) -> T:
        if self.is_away:
            raise DatabaseUnavailableError("It is away.")
        return await super().run(work, actor=actor)


def test_a_refresh_that_no_request_waits_for_fails_without_a_traceback(
    sessions: SessionFactory, clock: FrozenClock, caplog: pytest.LogCaptureFixture
) -> None:
    database = LeavingDatabase(sessions, clock=clock)

    async def use() -> None:
        registry = AgentRegistryCache(database, clock=clock)
        loaded = await registry.current()
        database.is_away = True
        clock.advance(REFRESH_AFTER / timedelta(seconds=1))
        assert await registry.current() is loaded
        await asyncio.sleep(0)

    asyncio.run(use())
    gc.collect()
    assert [record.name for record in caplog.records] == []
