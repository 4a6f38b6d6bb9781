"""Random histories of an alert: whoever was notified of it ends with its current state, in order.

Values, edits of the policy, silences, acknowledgements, receivers that are down or time out, and
schedulers that are killed while they send. At the end everything works again, and what arrived is
compared with what a receiver must know.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise

import pytest
from sqlalchemy import select

from alerting.deliveries import FLAPPING_INTERVAL
from alerting.evaluation import record_groups
from alerting.expression import Group
from alerting.messages import Message
from alerting.models import Alert, Receiver, Rule
from alerting.notification_models import DeliveredAlert
from alerting.notify import DeliveryError
from alerting.outbox import LEASE, LONGEST_RETRY, drain_outbox
from alerting.policies import save_policy
from alerting.receivers import create_receiver
from alerting.recipients import Routing
from alerting.recorder import Recorder
from alerting.reminders import send_reminders
from alerting.service import acknowledge_alert, create_rule, delete_rule, set_rule_enabled
from alerting.silences import SilenceRequest, create_silence, expire_silence
from alerting.states import AlertState, ReceiverKind
from core.db import SessionFactory, transaction
from core.errors import ConflictError
from tests.cast import BOX, NOON, Cast, FrozenClock, scope_of
from tests.unit.alerting.helpers import hot

STEPS = 25
RECEIVERS = ("Mail", "Pager", "Manager", "Late")
STATES = (AlertState.FIRING, AlertState.NO_DATA)
ROUTES: list[dict[str, object]] = [
    {"receivers": ["Mail"], "repeat_interval": "1h"},
    {"receivers": ["Mail", "Late"]},
    {
        "receivers": ["Mail"],
        "group_by": ["rule"],
        "group_wait": "30s",
        "group_interval": "2m",
        "routes": [{"matchers": ["severity=critical"], "receivers": ["Pager"], "continue": True}],
    },
    {"receivers": [], "routes": [{"matchers": ["severity=critical"], "receivers": ["Pager"]}]},
    {"receivers": ["Pager"], "escalate_after": "3m", "escalate_to": ["Manager"]},
    {},
]


class KilledError(BaseException):
    """The process ends here."""


@dataclass
class History:
    """One alert and its receivers."""

    sessions: SessionFactory
    clock: FrozenClock
    cast: Cast
    random: random.Random
    rule_id: str
    down: dict[str, str] = field(default_factory=dict)
    arrived: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    is_exact: bool = True
    """Whether each delivery was confirmed, so that nothing may arrive twice."""
    silences: list[str] = field(default_factory=list)

    def send(self, receiver: Receiver, message: Message) -> None:
        """Deliver, or fail as the receiver does."""
        fault = self.down.get(receiver.name, "")
        if fault == "refuses":
            raise DeliveryError("refused")
        if fault in {"kills before", "times out before"}:
            self._fail(fault)
        for payload in message.payload.get("alerts", [message.payload]):
            log = self.arrived.setdefault(receiver.name, [])
            if not log or log[-1] != payload:
                log.append(payload)
        if fault:
            self._fail(fault)

    def _fail(self, fault: str) -> None:
        self.is_exact = False
        if fault.startswith("kills"):
            raise KilledError
        raise DeliveryError("timed out", may_have_arrived=True)

    def drain(self) -> None:
        try:
            drain_outbox(self.sessions, {ReceiverKind.EMAIL: self}, now=self.clock.now)
        except KilledError:
            self.down.clear()

    def observe(self, value: float | None) -> None:
        with transaction(self.sessions) as session:
            rule = session.get(Rule, self.rule_id)
            if rule is not None and rule.is_enabled:
                recorder = Recorder(session, rule, self.clock.now)
                tags = {"appliance": "a1", "gpu": "0"}
                groups = [] if value is None else [Group(tags, value)]
                record_groups(recorder, groups, frozenset(), is_missing_known=True)
        send_reminders(self.sessions, now=self.clock.now)
        self.drain()

    def alert(self) -> Alert | None:
        with transaction(self.sessions) as session:
            return session.scalar(select(Alert).where(Alert.rule_id == self.rule_id))

    def policy(self) -> None:
        scope = scope_of(self.cast.bob)
        with transaction(self.sessions) as session:
            save_policy(session, scope, self.random.choice(ROUTES), now=self.clock.now)

    def silence(self) -> None:
        now = self.clock.now
        matchers = self.random.choice((["gpu=0"], ["gpu=0", "severity=warning"]))
        ends_at = now + timedelta(minutes=self.random.choice((1, 5, 20)))
        request = SilenceRequest(matchers=matchers, starts_at=now, ends_at=ends_at)
        with transaction(self.sessions) as session:
            made = create_silence(session, scope_of(self.cast.bob), request, now=now)
            self.silences.append(made.id)

    def end_silences(self) -> None:
        for silence_id in self.silences:
            with transaction(self.sessions) as session:
                try:
                    expire_silence(session, scope_of(self.cast.bob), silence_id, now=self.clock.now)
                except ConflictError:
                    continue
        self.silences.clear()

    def acknowledge(self) -> None:
        alert = self.alert()
        if alert is not None and alert.state in STATES:
            with transaction(self.sessions) as session:
                acknowledge_alert(session, scope_of(self.cast.bob), alert.id, now=self.clock.now)

    def fault(self) -> None:
        faults = ("refuses", "times out before", "times out after", "kills before", "kills after")
        self.down[self.random.choice(RECEIVERS)] = self.random.choice(faults)

    def switch(self) -> None:
        with transaction(self.sessions) as session:
            rule = session.get(Rule, self.rule_id)
            if rule is not None:
                set_rule_enabled(
                    session,
                    scope_of(self.cast.bob),
                    self.rule_id,
                    is_enabled=not rule.is_enabled,
                    now=self.clock.now,
                )

    def delete_rule(self) -> None:
        with transaction(self.sessions) as session:
            if session.get(Rule, self.rule_id) is not None:
                delete_rule(session, scope_of(self.cast.bob), self.rule_id, now=self.clock.now)

    def live(self) -> None:
        """Let random things happen."""
        rare: list[Callable[[], None]] = [self.acknowledge, self.silence, self.end_silences]
        often: list[Callable[[], None]] = [self.policy, self.fault, self.down.clear]
        for _ in range(STEPS):
            self.clock.advance(self.random.choice((5, 10, 30, 60, 400)))
            if self.random.random() < 0.5:
                self.random.choice([*rare, *often, *often])()
            if self.random.random() < 0.03:
                self.switch()
            self.observe(self.random.choice((20.0, 20.0, 85.0, 95.0, 95.0, None)))
        if self.random.random() < 0.2:
            self.delete_rule()

    def calm_down(self) -> None:
        """Everything works again, for as long as the longest wait."""
        self.down.clear()
        self.end_silences()
        last = self.random.choice((20.0, 85.0, 95.0))
        for wait in (timedelta(0), LEASE, FLAPPING_INTERVAL, LONGEST_RETRY, LEASE, LEASE):
            self.clock.advance(wait.total_seconds())
            self.observe(last)


def check(history: History) -> None:
    """Compare what arrived with what each receiver must know."""
    alert = history.alert()
    current = ("resolved", "")
    if alert is not None and alert.state in STATES:
        current = (alert.state.value, alert.severity.value)
    for name, log in history.arrived.items():
        states = [str(payload["state"]) for payload in log]
        if history.is_exact:
            assert states[0] != "resolved", f"{name} was first notified that it has resolved"
            times = [str(payload["at"]) for payload in log]
            assert times == sorted(times), f"{name}: {times}"
            assert ("resolved", "resolved") not in pairwise(states), f"{name}: {states}"
    for name in RECEIVERS:
        last = (history.arrived.get(name) or [{"state": "resolved"}])[-1]
        is_concerned = last["state"] != "resolved" or name in routed(history, alert)
        if is_concerned:
            assert last["state"] == current[0], name
            assert current[1] in {"", last["severity"]}, name
    with transaction(history.sessions) as session:
        rows = session.scalars(select(DeliveredAlert)).all()
        assert all((row.state, row.severity) == current for row in rows)


def routed(history: History, alert: Alert | None) -> set[str]:
    """Return the names of those who are notified when an alert fires."""
    if alert is None or alert.state not in STATES:
        return set()
    with transaction(history.sessions) as session:
        routing = Routing.of(session, alert.tenant_id)
        rule = session.get_one(Rule, alert.rule_id)
        found = routing.recipients(rule, alert.tags, alert.severity)
        return {name for name, ident in routing.receivers.items() if ident in found}


def play(sessions: SessionFactory, clock: FrozenClock, cast: Cast, seed: int) -> None:
    """Run one history and check it."""
    with transaction(sessions) as session:
        rule = create_rule(session, scope_of(cast.bob), hot(name=f"Hot {seed}"), now=NOON)
        # What earlier histories left.
        for other in session.scalars(select(Rule).where(Rule.id != rule.id)):
            session.delete(other)
        for row in session.scalars(select(DeliveredAlert)):
            session.delete(row)
    history = History(sessions, clock, cast, random.Random(seed), rule.id)  # noqa: S311 - histories to repeat
    history.policy()
    history.live()
    history.calm_down()
    try:
        check(history)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


@pytest.fixture
def receivers(sessions: SessionFactory, cast: Cast) -> None:
    """Receivers of acme."""
    with transaction(sessions) as session:
        for name in RECEIVERS:
            create_receiver(
                session,
                scope_of(cast.bob),
                name=name,
                kind=ReceiverKind.EMAIL,
                target=f"{name.lower()}@acme.example",
                box=BOX,
                now=NOON,
            )


@pytest.mark.usefixtures("receivers")
@pytest.mark.parametrize("first_seed", range(0, 24, 8))
def test_every_receiver_ends_with_the_current_state(
    sessions: SessionFactory, clock: FrozenClock, cast: Cast, first_seed: int
) -> None:
    for seed in range(first_seed, first_seed + 8):
        play(sessions, clock, cast, seed)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.usefixtures("receivers")
@pytest.mark.parametrize("first_seed", range(1_000, 2_000, 250))
def test_a_thousand_histories_end_with_the_current_state(
    sessions: SessionFactory, clock: FrozenClock, cast: Cast, first_seed: int
) -> None:
    for seed in range(first_seed, first_seed + 250):
        play(sessions, clock, cast, seed)
