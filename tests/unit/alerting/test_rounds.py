"""Rounds: a tenant with slow rules skips evaluations visibly, and delays no other tenant."""

import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import select

from alerting.evaluation import rounds as rounds_module
from alerting.evaluation.evaluator import Evaluator
from alerting.evaluation.rounds import Rounds
from alerting.models import Alert, Rule
from alerting.rule_request import RuleRequest
from alerting.rules.service import create_rule
from alerting.states import AlertState
from core.db import SessionFactory, transaction
from tenants.models import User
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.fixtures.polling import eventually
from tests.unit.alerting.helpers import heat, hot
from timeseries.store import RangeQuery, Series, Store, StoreUnavailableError


@dataclass
class SlowFor:
    """A store that answers one tenant once it is released."""

    store: Store
    tenant: str
    asked: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def query_range(self, query: RangeQuery) -> list[Series]:
        if query.tenants == (self.tenant,):
            self.asked.set()
            assert self.released.wait(10)
        return self.store.query_range(query)


@contextmanager
def running(sessions: SessionFactory, store: Any) -> Iterator[Rounds]:  # noqa: ANN401 - some store
    rounds = Rounds(Evaluator(sessions=sessions, store=store), tick_seconds=10.0)
    try:
        yield rounds
    finally:
        store.released.set()
        rounds.close()


def add(sessions: SessionFactory, user: User, request: RuleRequest) -> str:
    with transaction(sessions) as session:
        return create_rule(session, scope_of(user), request, now=NOON).id


def alerted(sessions: SessionFactory) -> set[str]:
    with transaction(sessions) as session:
        return set(session.scalars(select(Alert.rule_id)))


def test_a_slow_tenant_skips_evaluations_visibly_and_delays_no_other(
    sessions: SessionFactory,
    store: Store,
    cast: Cast,
    clock: FrozenClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = add(sessions, cast.bob, hot())
    hourly = add(sessions, cast.bob, hot(name="Hourly", interval_seconds=3600.0))
    quick = add(sessions, cast.charlie, hot())
    store_of_acme = SlowFor(store, cast.acme.id)
    with running(sessions, store_of_acme) as rounds, caplog.at_level(logging.WARNING):
        for tenant in (cast.acme.id, cast.globex.id):
            heat(store, tenant=tenant, celsius=95.0, at=clock.now)
        rounds.tick(now=clock.advance(1.0))
        assert store_of_acme.asked.wait(10)
        eventually(lambda: alerted(sessions) == {quick}, what="the alert of the quick tenant")
        for _ in range(2):
            rounds.tick(now=clock.advance(10.0))
        store_of_acme.released.set()
        eventually(lambda: len(alerted(sessions)) == 3, what="the alerts of the slow tenant")
    assert cast.acme.id in caplog.text
    with transaction(sessions) as session:
        skips = {
            rule.id: (rule.skipped_evaluations, rule.skipped_at)
            for rule in session.scalars(select(Rule).where(Rule.id.in_([slow, hourly])))
        }
    # The hourly rule was due once, and is evaluated for that time.
    assert skips == {slow: (2, clock.now), hourly: (0, None)}


def test_tenants_that_were_slow_leave_threads_for_the_others(
    sessions: SessionFactory,
    store: Store,
    cast: Cast,
    clock: FrozenClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds_module, "MAX_SLOW", 0)
    rule_id = add(sessions, cast.bob, hot())
    seconds = iter([0.0, 0.0, 0.0, 60.0])
    ready = SlowFor(store, "")
    evaluator = Evaluator(sessions=sessions, store=ready, seconds=lambda: next(seconds, 60.0))  # type: ignore[arg-type] # reads only
    rounds = Rounds(evaluator, tick_seconds=10.0)

    def skipped() -> int:
        with transaction(sessions) as session:
            return session.get_one(Rule, rule_id).skipped_evaluations

    def was_evaluated() -> bool:
        with transaction(sessions) as session:
            return session.get_one(Rule, rule_id).evaluated_at is not None

    rounds.tick(now=clock.advance(10.0))
    eventually(was_evaluated, what="the first round")

    def is_skipped() -> bool:
        rounds.tick(now=clock.advance(10.0))
        return skipped() > 0

    eventually(is_skipped, what="a skip of the tenant that was slow")
    rounds.close()


@dataclass
class SharedStore:
    """A store that notes whose samples are read, and can refuse those of several tenants."""

    store: Store
    refuses: bool
    read: list[tuple[str, ...] | None] = field(default_factory=list)
    reads_many_tenants: bool = True

    def query_range(self, query: RangeQuery) -> list[Series]:
        self.read.append(query.tenants)
        if self.refuses and query.tenants is not None and len(query.tenants) > 1:
            raise StoreUnavailableError("one at a time")
        return self.store.query_range(query)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_rule_of_several_tenants_is_read_at_once_and_alerts_each_of_its_own_samples(
    sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock, *, refuses: bool
) -> None:
    of_acme, of_globex = (add(sessions, user, hot()) for user in (cast.bob, cast.charlie))
    tenants = {cast.acme.id, cast.globex.id}
    shared = SharedStore(store, refuses)
    evaluator = Evaluator(sessions=sessions, store=shared, count_seconds=math.inf)  # type: ignore[arg-type] # reads only
    rounds = Rounds(evaluator, tick_seconds=10.0)

    def tick(**celsius: float) -> dict[str, AlertState]:
        at = clock.advance(59.0)
        for name, degrees in celsius.items():
            heat(store, tenant=getattr(cast, name).id, celsius=degrees, at=at, appliance=name)
        rounds.tick(now=(now := clock.advance(1.0)))
        eventually(lambda: set(evaluated()) == {now}, what="the end of both rounds")
        with transaction(sessions) as session:
            return {alert.rule_id: alert.state for alert in session.scalars(select(Alert))}

    def evaluated() -> list[datetime | None]:
        with transaction(sessions) as session:
            return list(session.scalars(select(Rule.evaluated_at)))

    # The first time, all groups are counted: each rule reads its own.
    assert tick(acme=50.0, globex=50.0) == {}
    assert {frozenset(tenant_ids or ()) for tenant_ids in shared.read} == {
        frozenset({tenant_id}) for tenant_id in tenants
    }
    shared.read.clear()
    assert tick(acme=95.0, globex=50.0) == {of_acme: AlertState.FIRING}
    assert set(shared.read[0] or ()) == tenants
    assert len(shared.read) == (3 if refuses else 1)
    states = tick(acme=50.0, globex=95.0)
    assert states == {of_acme: AlertState.RESOLVED, of_globex: AlertState.FIRING}
    rounds.close()
