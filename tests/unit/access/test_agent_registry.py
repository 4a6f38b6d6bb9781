"""The registry of agents: when it is read again, and while the database is away."""

import asyncio
import gc
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from access.database import Database, T
from access.identity.agent_registry import (
    LACKING_REFRESH_AFTER,
    MAX_UNCHECKED_AGE,
    REFRESH_AFTER,
    AgentRegistry,
    AgentRegistryCache,
)
from core.changes import ANY, Topic
from core.db import SessionFactory, changes_of
from core.errors import DatabaseUnavailableError
from tenants.auditing.drafts import Actor
from tenants.fleet.appliance_service import revoke_appliance
from tests.cast import NOON, Cast, FrozenClock, make_appliance, scope_of


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
        registry.note_lacking()
        clock.advance(LACKING_REFRESH_AFTER / timedelta(seconds=1))
        assert await registry.current() is loaded
        await asyncio.sleep(0)

    asyncio.run(use())
    gc.collect()
    assert [record.name for record in caplog.records] == []


class CountingDatabase(Database):
    """Counts what is asked of it."""

    count = 0

    async def run(self, work: Callable[[Session], T], *, actor: Actor | None = None) -> T:
        self.count += 1
        return await super().run(work, actor=actor)


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_revoked_agent_is_refused_by_the_next_request(
    sessions: SessionFactory, clock: FrozenClock, cast: Cast, *, is_complete: bool
) -> None:
    with sessions.begin() as session:
        appliance = make_appliance(session, cast.acme, "dgx-01")
    changes_of(sessions).set_complete(is_complete)

    async def use() -> None:
        registry = AgentRegistryCache(Database(sessions, clock=clock), clock=clock)
        assert appliance.secret_hash in (await registry.current()).secrets
        with sessions.begin() as session:
            revoke_appliance(session, scope_of(cast.alice), appliance.id, now=NOON)
        assert appliance.secret_hash not in (await registry.current()).secrets

    asyncio.run(use())


def test_a_change_during_a_check_is_not_overlooked(
    sessions: SessionFactory, clock: FrozenClock, cast: Cast
) -> None:
    with sessions.begin() as session:
        appliance = make_appliance(session, cast.acme, "dgx-01")
    changes_of(sessions).set_complete(True)

    async def use() -> None:
        registry = AgentRegistryCache(Database(sessions, clock=clock), clock=clock)
        await registry.current()
        changes_of(sessions).publish(Topic.REGISTRY, [ANY])
        checking = asyncio.ensure_future(registry.current())
        await asyncio.sleep(0)
        with sessions.begin() as session:
            revoke_appliance(session, scope_of(cast.alice), appliance.id, now=NOON)
        assert appliance.secret_hash not in (await registry.current()).secrets
        await checking

    asyncio.run(use())


@pytest.mark.parametrize(("is_complete", "max_queries"), [(True, 4), (False, 30)])
def test_the_revision_is_polled_rarely_while_all_changes_are_told(
    sessions: SessionFactory, clock: FrozenClock, *, is_complete: bool, max_queries: int
) -> None:
    database = CountingDatabase(sessions, clock=clock)
    changes_of(sessions).set_complete(is_complete)

    async def use() -> None:
        registry = AgentRegistryCache(database, clock=clock)
        for _ in range(29):  # less than three seconds
            await registry.current()
            await asyncio.sleep(0.01)
            clock.advance(0.1)

    asyncio.run(use())
    assert max_queries / 2 <= database.count <= max_queries


def test_cached_agents_are_accepted_while_the_database_is_away_after_a_change(
    sessions: SessionFactory, clock: FrozenClock
) -> None:
    database = LeavingDatabase(sessions, clock=clock)

    async def use() -> None:
        registry = AgentRegistryCache(database, clock=clock)
        loaded = await registry.current()
        changes_of(sessions).publish(Topic.REGISTRY, [ANY])
        database.is_away = True
        assert await registry.current() is loaded

    asyncio.run(use())


def test_all_agents_are_read_again_rarely_but_soon_after_a_lacking_one(
    sessions: SessionFactory, clock: FrozenClock
) -> None:
    changes_of(sessions).set_complete(True)

    async def use() -> None:
        registry = AgentRegistryCache(Database(sessions, clock=clock), clock=clock)
        loaded = await registry.current()
        for _ in range(int(REFRESH_AFTER / timedelta(seconds=1)) - 1):
            clock.advance(1)
            assert await registry.current() is loaded
            await asyncio.sleep(0.005)
        clock.advance(1)
        loaded = await _read_again(registry)
        registry.note_lacking()
        clock.advance(LACKING_REFRESH_AFTER / timedelta(seconds=1))
        assert await _read_again(registry) is not loaded

    async def _read_again(registry: AgentRegistryCache) -> AgentRegistry:
        before = await registry.current()
        for _ in range(1_000):
            if (loaded := await registry.current()) is not before:
                break
            await asyncio.sleep(0.005)
        return loaded

    asyncio.run(use())


def test_agents_are_refused_when_the_revision_can_not_be_read_for_long(
    sessions: SessionFactory, clock: FrozenClock
) -> None:
    database = LeavingDatabase(sessions, clock=clock)

    async def use() -> None:
        registry = AgentRegistryCache(database, clock=clock)
        loaded = await registry.current()
        database.is_away = True
        clock.advance(MAX_UNCHECKED_AGE / timedelta(seconds=1) - 1)
        assert await registry.current() is loaded
        clock.advance(1)
        with pytest.raises(DatabaseUnavailableError):
            await registry.current()

    asyncio.run(use())
