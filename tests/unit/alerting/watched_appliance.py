"""An appliance whose samples rules watch, and a receiver."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.evaluation.evaluator import EvaluationSummary, Evaluator
from alerting.models import Alert, AlertTransition, Receiver, Rule
from alerting.notification.messages import Message
from alerting.notification.models import Notification
from alerting.rule_request import RuleRequest
from alerting.rules.service import create_rule
from alerting.states import ReceiverKind
from core.db import SessionFactory, transaction
from tenants.models import Appliance, Tenant, User
from tests.cast import NOON, Cast, FrozenClock, make_appliance, scope_of
from tests.unit.alerting.helpers import add_mail, drain_outbox, evaluate_rules, heat, hot
from timeseries.store import RangeQuery, Series, Store, StoreUnavailableError

URL = "https://portal.example"
T = TypeVar("T")


@dataclass
class Watch:
    """Acme's appliance gpu-01 and a receiver."""

    sessions: SessionFactory
    store: Store
    clock: FrozenClock
    cast: Cast
    appliance: Appliance
    receiver_id: str

    def rule(self, request: RuleRequest, *, by: User | None = None) -> Rule:
        with transaction(self.sessions) as session:
            return create_rule(session, scope_of(by or self.cast.bob), request, now=NOON)

    def notifying_rule(self, **changes: object) -> Rule:
        return self.rule(hot(receiver_ids=[self.receiver_id], **changes))

    def heat(self, celsius: float, *, gpu: str = "0") -> None:
        heat(
            self.store,
            tenant=self.cast.acme.id,
            appliance=self.appliance.id,
            celsius=celsius,
            at=self.clock.now - timedelta(seconds=1),
            gpu=gpu,
        )

    def evaluate(self, *, after: float = 0.0) -> EvaluationSummary:
        self.clock.advance(after)
        evaluator = Evaluator(sessions=self.sessions, store=self.store, public_url=URL)
        summary = evaluate_rules(evaluator, now=self.clock.now)
        drain_outbox(self.sessions, {ReceiverKind.EMAIL: self}, now=self.clock.now)
        return summary

    def send(self, receiver: Receiver, message: Message) -> None:
        """Deliver a message, which is read from the database."""

    def go(self, celsius: float, *, after: float = 61.0) -> EvaluationSummary:
        """Let the window pass, write one temperature and evaluate."""
        self.clock.advance(after)
        self.heat(celsius)
        return self.evaluate()

    def read(self, question: Callable[[Session], T]) -> T:
        with transaction(self.sessions) as session:
            return question(session)

    def alerts(self) -> list[Alert]:
        return self.read(lambda s: list(s.scalars(select(Alert).order_by(Alert.id))))

    def moves(self) -> list[tuple[str, str, str]]:
        order = select(AlertTransition).order_by(AlertTransition.at, AlertTransition.id)
        rows = self.read(lambda s: list(s.scalars(order)))
        return [(r.from_state.value, r.to_state.value, r.severity.value) for r in rows]

    def messages(self) -> list[Notification]:
        return self.read(lambda s: list(s.scalars(select(Notification).order_by(Notification.id))))


@pytest.fixture
def watch(sessions: SessionFactory, store: Store, clock: FrozenClock, cast: Cast) -> Watch:
    """Everything an evaluation needs, and no rule yet."""
    with transaction(sessions) as session:
        appliance = make_appliance(session, session.get_one(Tenant, cast.acme.id), "gpu-01")
        receiver = add_mail(session, scope_of(cast.bob))
    return Watch(sessions, store, clock, cast, appliance, receiver.id)


class PickyStore:
    """The store it is given, but down for questions about one measurement."""

    def __init__(self, store: Store, down_for: str) -> None:
        self._store = store
        self._down_for = down_for

    def query_range(self, query: RangeQuery) -> list[Series]:
        if query.measurement == self._down_for:
            raise StoreUnavailableError("The store does not answer. Try again later.")
        return self._store.query_range(query)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)
