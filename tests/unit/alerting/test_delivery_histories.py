"""Random histories of an alert: whoever was notified of it ends with its current state, in order.

Samples of an appliance that is offline now and then, edits of the policy, silences,
acknowledgements, outages of the portal, of its database and of receivers, and schedulers that are
killed. At the end everything works again. What arrived is compared with what a receiver must know,
and each sample beyond a threshold with the times at which the alert fired.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from sqlalchemy import Engine, delete, event, select
from sqlalchemy.exc import OperationalError

from alerting.evaluation.evaluator import Evaluator
from alerting.evaluation.late_samples import LateEvaluation
from alerting.evaluation.reminders import send_reminders
from alerting.machine import LATE_HOLD
from alerting.models import Alert, AlertTransition, Receiver, Rule
from alerting.notification.deliveries import FLAPPING_INTERVAL
from alerting.notification.messages import Message
from alerting.notification.models import DeliveredAlert
from alerting.notification.outbox import LEASE, LONGEST_RETRY
from alerting.notification.policies import Routing, preview_policy, save_policy
from alerting.notification.senders.notify import DeliveryError
from alerting.notification.silences import SilenceRequest, create_silence, expire_silence
from alerting.rules.service import acknowledge_alert, create_rule, delete_rule, set_rule_enabled
from alerting.states import AlertState, ReceiverKind
from core.clock import to_ns
from core.db import SessionFactory, transaction
from core.errors import ConflictError, DatabaseUnavailableError
from core.ids import new_id
from tenants.models import LateSamples
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.unit.alerting.helpers import add_mail, drain_outbox, evaluate_rules, hot
from timeseries.points import Point
from timeseries.store import Store, write

STEPS = 25
WARNING = 80.0
# Two windows, and a step after which an evaluation that failed is repeated.
SLACK = timedelta(seconds=2 * 60 + 400)
RECEIVERS = ("Mail", "Pager", "Manager", "Late", "Once")
WITHOUT_RESOLVED = "Once"
STATES = (AlertState.FIRING, AlertState.NO_DATA)
MUTE = timedelta(minutes=30)
# At the 12 o'clock at which histories begin, and every other half hour.
ODD_HALVES = {
    "name": "odd halves",
    "time_intervals": [
        {
            "times": [
                {"start_time": f"{hour:02}:00", "end_time": f"{hour:02}:30"} for hour in range(24)
            ]
        }
    ],
}
ROUTES: list[dict[str, object]] = [
    {"receivers": ["Mail"], "repeat_interval": "1h"},
    {"receivers": ["Mail", "Late", "Once"]},
    {"receivers": ["Once"], "group_by": ["rule"], "group_wait": "20s", "repeat_interval": "1h"},
    {
        "receivers": ["Mail"],
        "group_by": ["rule"],
        "group_wait": "30s",
        "group_interval": "2m",
        "routes": [{"matchers": ["severity=critical"], "receivers": ["Pager"], "continue": True}],
    },
    {"receivers": [], "routes": [{"matchers": ["severity=critical"], "receivers": ["Pager"]}]},
    {"receivers": ["Mail", "Once"], "mute_time_intervals": ["odd halves"]},
    {
        "receivers": ["Late"],
        "routes": [
            {
                "matchers": ["severity=critical"],
                "receivers": ["Pager"],
                "active_time_intervals": ["odd halves"],
                "continue": True,
            },
            {"receivers": ["Mail"], "group_by": ["rule"], "mute_time_intervals": ["odd halves"]},
        ],
    },
    {"receivers": ["Pager"], "escalate_after": "3m", "escalate_to": ["Manager"]},
    {},
]


class KilledError(BaseException):
    """The process ends here."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A temperature, and when it arrived."""

    at: datetime
    celsius: float
    arrived_at: datetime


@dataclass
class Faults:
    """Lets statements of the database fail, from one of the next ones on."""

    statements_left: int | None = None
    error: type[BaseException] = KilledError

    def listen(self, engine: Engine) -> None:
        event.listen(engine, "before_cursor_execute", self._count)

    def _count(self, *arguments: object) -> None:
        if self.statements_left is None:
            return
        self.statements_left -= 1
        if self.statements_left < 0:
            if self.error is OperationalError:
                raise OperationalError(str(arguments[2]), {}, Exception("database is locked"))
            self.statements_left = None
            raise self.error


@dataclass
class History:
    """One alert and its receivers."""

    sessions: SessionFactory
    store: Store
    clock: FrozenClock
    cast: Cast
    random: random.Random
    rule_id: str
    faults: Faults
    down: dict[str, str] = field(default_factory=dict)
    arrived: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    is_exact: bool = True
    """Whether each delivery was confirmed, so that nothing may arrive twice."""
    silences: list[str] = field(default_factory=list)
    buffer: dict[datetime, float] = field(default_factory=dict)
    """What the agent has not sent yet; of two samples of one time, the store has the last."""
    samples: list[Sample] = field(default_factory=list)
    is_offline: bool = False
    is_portal_down: bool = False
    failing_statement: int | None = None
    has_mutes: bool = False
    switched_at: datetime = NOON
    appliance_id: str = field(default_factory=new_id)

    def __post_init__(self) -> None:
        self.evaluator = Evaluator(sessions=self.sessions, store=self.store)
        self.late = LateEvaluation(self.evaluator)

    def send(self, receiver: Receiver, message: Message) -> None:
        """Deliver, or fail as the receiver does."""
        fault = self.down.get(receiver.name, "")
        if fault == "refuses":
            raise DeliveryError("refused")
        if fault in {"kills before", "times out before"}:
            self._fail(fault)
        for payload in message.payload.get("alerts", [message.payload]):
            if self.has_mutes:
                self._check_mute(receiver.name, payload)
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

    def _check_mute(self, name: str, payload: dict[str, object]) -> None:
        """Require that the current policy does not mute what arrives."""
        with transaction(self.sessions) as session:
            rows = preview_policy(
                session,
                scope_of(self.cast.bob),
                {"rule": str(payload["rule"]), "severity": str(payload["severity"])},
                now=self.clock.now,
            )
        muted = {row.receiver_name for row in rows if row.muted_until is not None}
        assert name not in muted, f"{name} was notified in a mute time"

    def observe(self, celsius: float | None) -> None:
        """Take a sample, unless the sensor is gone, and do what agent and portal do then."""
        if celsius is not None:
            self.buffer[self.clock.now - timedelta(seconds=1)] = celsius
        if self.is_portal_down:
            return
        try:
            self.faults.statements_left, self.failing_statement = self.failing_statement, None
            if not self.is_offline:
                self._receive()
            evaluate_rules(self.evaluator, now=self.clock.now)
            self.late.run(now=self.clock.now)
            send_reminders(self.sessions, now=self.clock.now)
            drain_outbox(self.sessions, {ReceiverKind.EMAIL: self}, now=self.clock.now)
        except (KilledError, OperationalError, DatabaseUnavailableError):
            self.down.clear()
            self.is_exact = False
        finally:
            self.faults.statements_left = None
        with transaction(self.sessions) as session:
            rule = session.get(Rule, self.rule_id)
            if rule is not None and rule.evaluated_at is None:
                # A rule counts from its first evaluation, which has failed.
                self.switched_at = self.clock.now

    def _receive(self) -> None:
        """Store what the agent has buffered, and note what is late, as the gateway does."""
        identity = {"tenant": self.cast.acme.id, "appliance": self.appliance_id}
        points = [
            Point("gpu", {"gpu": "0"}, {"temperature_celsius": celsius}, to_ns(at))
            for at, celsius in self.buffer.items()
        ]
        assert write(self.store, points, identity=identity) == []
        late = [at for at in self.buffer if at < self.clock.now - timedelta(seconds=30)]
        if late:
            with transaction(self.sessions) as session:
                session.add(
                    LateSamples(
                        id=new_id(),
                        tenant_id=self.cast.acme.id,
                        appliance_id=self.appliance_id,
                        measurements=["gpu"],
                        first_at=min(late),
                        last_at=max(late),
                        arrived_at=self.clock.now,
                    )
                )
        self.samples += [Sample(*sample, self.clock.now) for sample in self.buffer.items()]
        self.buffer.clear()

    def alert(self) -> Alert | None:
        with transaction(self.sessions) as session:
            return session.scalar(select(Alert).where(Alert.rule_id == self.rule_id))

    def notified(self) -> set[str]:
        """Return the names of those who are notified of the alert's next change."""
        with transaction(self.sessions) as session:
            rows = select(Receiver.name).join(
                DeliveredAlert, DeliveredAlert.receiver_id == Receiver.id
            )
            return set(session.scalars(rows))

    def policy(self) -> None:
        scope = scope_of(self.cast.bob)
        with transaction(self.sessions) as session:
            route = self.random.choice(ROUTES)
            intervals = [ODD_HALVES]
            save_policy(session, scope, route, time_intervals=intervals, now=self.clock.now)
        self.has_mutes = "odd halves" in str(route)

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

    def go_offline(self) -> None:
        self.is_offline = not self.is_offline

    def stop_portal(self) -> None:
        self.is_portal_down = not self.is_portal_down

    def fail_statements(self) -> None:
        self.failing_statement = self.random.randrange(40)
        self.faults.error = self.random.choice((KilledError, OperationalError))

    def switch(self) -> None:
        self.switched_at = self.clock.now
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
        often: list[Callable[[], None]] = [
            *(self.policy, self.fault, self.down.clear),
            *(self.go_offline, self.stop_portal, self.fail_statements),
        ]
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
        self.is_offline = self.is_portal_down = False
        self.failing_statement = None
        self.end_silences()
        last = self.random.choice((20.0, 85.0, 95.0))
        for wait in (
            timedelta(0),
            LATE_HOLD,
            LEASE,
            FLAPPING_INTERVAL,
            LONGEST_RETRY,
            LEASE,
            LEASE,
            MUTE,
        ):
            self.clock.advance(wait.total_seconds())
            self.observe(last)


def check(history: History) -> None:
    """Compare what arrived with what each receiver must know."""
    alert = history.alert()
    current = ("resolved", "")
    if alert is not None and alert.state in STATES:
        current = (alert.state.value, alert.severity.value)
    assert all(
        payload["state"] != "resolved" for payload in history.arrived.get(WITHOUT_RESOLVED, [])
    )
    for name, log in history.arrived.items():
        states = [str(payload["state"]) for payload in log]
        if history.is_exact:
            assert states[0] != "resolved", f"{name} was first notified that it has resolved"
            times = [str(payload["at"]) for payload in log]
            assert times == sorted(times), f"{name}: {times}"
            assert ("resolved", "resolved") not in pairwise(states), f"{name}: {states}"
    for name in RECEIVERS:
        last = (history.arrived.get(name) or [{"state": "resolved"}])[-1]
        if name == WITHOUT_RESOLVED and name not in history.notified():
            # It believes nothing any more, whatever it was notified of last.
            last = {"state": "resolved"}
        is_concerned = last["state"] != "resolved" or name in routed(history, alert)
        if is_concerned:
            assert last["state"] == current[0], name
            assert current[1] in {"", last["severity"]}, name
        if name == WITHOUT_RESOLVED and is_concerned and alert and current[0] == "firing":
            assert last["fired_at"] == timestamp(alert.fired_at), "each firing is news"
    with transaction(history.sessions) as session:
        rows = session.scalars(select(DeliveredAlert)).all()
        assert all((row.state, row.severity) == current for row in rows)


def check_samples(history: History) -> None:
    """Check that the alert fired for each hot sample, or when it arrived."""
    with transaction(history.sessions) as session:
        rule = session.get(Rule, history.rule_id)
        if rule is None or not rule.is_enabled:
            return
        order = (AlertTransition.at, AlertTransition.id)
        moves = session.scalars(select(AlertTransition).order_by(*order)).all()
    begun_at: datetime | None = None
    periods: list[tuple[datetime, datetime]] = []
    for move in moves:
        if move.to_state is AlertState.FIRING:
            begun_at = begun_at or move.at
        elif begun_at is not None:
            periods.append((begun_at, move.at))
            begun_at = None
    if begun_at is not None:
        periods.append((begun_at, history.clock.now))
    for sample in history.samples:
        if sample.celsius > WARNING and sample.at > history.switched_at:
            since_at, until_at = sample.at - SLACK, sample.arrived_at + SLACK
            assert any(start <= until_at and end >= since_at for start, end in periods), (
                f"{sample} is in none of {periods}"
            )


def timestamp(at: datetime | None) -> str:
    return "" if at is None else at.isoformat().replace("+00:00", "Z")


def routed(history: History, alert: Alert | None) -> set[str]:
    """Return the names of those who are notified when an alert fires."""
    if alert is None or alert.state not in STATES:
        return set()
    with transaction(history.sessions) as session:
        routing = Routing.of(session, alert.tenant_id)
        rule = session.get_one(Rule, alert.rule_id)
        recipients = routing.recipients(rule, alert.tags, alert.severity)
        return {name for name, ident in routing.receivers.items() if ident in recipients}


@dataclass
class World:
    """The objects that histories share."""

    sessions: SessionFactory
    store: Store
    clock: FrozenClock
    cast: Cast
    faults: Faults = field(default_factory=Faults)


def play(world: World, seed: int) -> None:
    """Run one history and check it."""
    cast, clock = world.cast, world.clock
    clock.advance(3600.0)  # beyond the samples of the history before
    request = hot(name=f"Hot {seed}", aggregate="max", warning_threshold=WARNING)
    with transaction(world.sessions) as session:
        rule = create_rule(session, scope_of(cast.bob), request, now=clock.now)
        # What earlier histories left.
        for other in session.scalars(select(Rule).where(Rule.id != rule.id)):
            session.delete(other)
        for row in session.scalars(select(DeliveredAlert)):
            session.delete(row)
        session.execute(delete(AlertTransition))
    history = History(
        world.sessions,
        world.store,
        clock,
        cast,
        random.Random(seed),  # noqa: S311 - histories to repeat
        rule.id,
        world.faults,
        switched_at=clock.now,
    )
    history.policy()
    history.live()
    history.calm_down()
    try:
        check(history)
        check_samples(history)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


@pytest.fixture
def world(sessions: SessionFactory, store: Store, clock: FrozenClock, cast: Cast) -> World:
    """Acme with its receivers."""
    with transaction(sessions) as session:
        for name in RECEIVERS:
            add_mail(session, scope_of(cast.bob), name, sends_resolved=name != WITHOUT_RESOLVED)
    world = World(sessions, store, clock, cast)
    world.faults.listen(sessions.kw["bind"])
    return world


@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 8), marks=pytest.mark.nightly)], ids=str
)
def test_every_receiver_ends_with_the_current_state(world: World, seeds: range) -> None:
    for seed in seeds:
        play(world, seed)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_other_histories_each_night_end_with_the_current_state(world: World) -> None:
    seeds = random.SystemRandom()
    for _ in range(200):
        play(world, seeds.randrange(2**32))
