"""Silences: which alerts they match, and what becomes of the notifications that they hold."""

from dataclasses import dataclass
from datetime import timedelta

import pytest
from sqlalchemy import select

from alerting.evaluation.evaluator import Evaluator
from alerting.language.matchers import parse_matcher
from alerting.models import Alert, Receiver
from alerting.notification.messages import Message
from alerting.notification.models import Notification
from alerting.notification.silences import (
    SilenceRequest,
    SilenceState,
    create_silence,
    expire_silence,
    list_silences,
    silences_by_alert,
)
from alerting.rules.service import create_rule
from alerting.states import NotificationState, ReceiverKind
from core.db import SessionFactory, transaction
from core.errors import ConflictError, InvalidInputError
from tests.cast import Cast, FrozenClock, make_appliance, scope_of
from tests.unit.alerting.helpers import add_mail, drain_outbox, evaluate_rules, heat, hot
from timeseries.store import Store

LABELS = {"rule": "GPU too hot", "gpu": "3", "appliance": "dgx-01"}


@pytest.mark.parametrize(
    ("text", "is_matched"),
    [
        ("rule=GPU too hot", True),
        ('rule="GPU too hot"', True),
        (" gpu = 3 ", True),
        ("gpu!=3", False),
        ("mount=", True),
        ("mount!=", False),
        ("appliance=~dgx-.*", True),
        ("appliance=~dgx", False),
        ("appliance!~dgx-.*|x", False),
        ("gpu=~[0-3]", True),
        ("gpu=~(a*)*b", False),
    ],
)
def test_a_matcher_compares_a_label(text: str, *, is_matched: bool) -> None:
    matcher = parse_matcher(text)
    assert matcher.matches(LABELS) is is_matched
    assert parse_matcher(str(matcher)) == matcher


def test_a_silence_with_errors_names_them_all(
    sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    wrong = SilenceRequest(
        matchers=["gpu", "gpu=~("], starts_at=clock.now, ends_at=clock.now, comment="x" * 501
    )
    all_alerts = SilenceRequest(
        matchers=["gpu=~.*"], starts_at=clock.now, ends_at=clock.now + timedelta(hours=1)
    )
    with transaction(sessions) as session:
        for request, names in (
            (wrong, {"matchers", "ends_at", "comment"}),
            (all_alerts, {"matchers"}),
        ):
            with pytest.raises(InvalidInputError) as caught:
                create_silence(session, scope_of(cast.bob), request, now=clock.now)
            assert set(caught.value.errors) == names


@dataclass
class Night:
    """Acme's GPU that gets hot, and what its receiver is sent."""

    sessions: SessionFactory
    store: Store
    clock: FrozenClock
    cast: Cast
    appliance_id: str
    sent: list[str]

    def send(self, receiver: Receiver, message: Message) -> None:
        del receiver
        self.sent.append(f"{message.payload['state']} {message.payload['severity']}")

    def go(self, celsius: float | None = None) -> None:
        """Let two minutes pass with one temperature, evaluate and send."""
        self.clock.advance(120)
        if celsius is not None:
            at = self.clock.now - timedelta(seconds=1)
            heat(
                self.store,
                tenant=self.cast.acme.id,
                appliance=self.appliance_id,
                celsius=celsius,
                at=at,
            )
            evaluate_rules(Evaluator(sessions=self.sessions, store=self.store), now=self.clock.now)
        drain_outbox(self.sessions, {ReceiverKind.EMAIL: self}, now=self.clock.now)

    def silence(self, *matchers: str, minutes: float = 5) -> str:
        request = SilenceRequest(
            matchers=matchers,
            starts_at=self.clock.now,
            ends_at=self.clock.now + timedelta(minutes=minutes),
        )
        with transaction(self.sessions) as session:
            scope = scope_of(self.cast.bob)
            return create_silence(session, scope, request, now=self.clock.now).id

    def states(self) -> list[NotificationState]:
        with transaction(self.sessions) as session:
            return list(session.scalars(select(Notification.state).order_by(Notification.id)))


@pytest.fixture
def night(sessions: SessionFactory, store: Store, clock: FrozenClock, cast: Cast) -> Night:
    with transaction(sessions) as session:
        scope = scope_of(cast.bob)
        appliance = make_appliance(session, cast.acme, "dgx-01", now=clock.now)
        receiver = add_mail(session, scope)
        create_rule(session, scope, hot(receiver_ids=[receiver.id]), now=clock.now)
    return Night(sessions, store, clock, cast, appliance.id, [])


S = NotificationState


def test_a_silenced_alert_fires_and_is_notified_when_the_silence_ends(night: Night) -> None:
    night.silence("rule=GPU too hot", "appliance=~dgx-.*")
    night.go(85.0)
    night.go(95.0)  # critical
    assert (night.sent, night.states()) == ([], [S.SUPPRESSED, S.SILENCED])
    with transaction(night.sessions) as session:
        (alert,) = session.scalars(select(Alert)).all()
        silences = silences_by_alert(
            session, scope_of(night.cast.bob), [alert], now=night.clock.now
        )
        assert (alert.state.value, len(silences[alert.id])) == ("firing", 1)
    night.go(95.0)
    assert night.sent == ["firing critical"]
    assert night.states() == [S.SUPPRESSED, S.SENT]
    night.go(50.0)
    assert night.sent == ["firing critical", "resolved critical"]


@pytest.mark.parametrize("is_notified_before", [True, False])
def test_an_alert_that_resolves_in_silence_is_notified_if_its_start_was(
    night: Night, *, is_notified_before: bool
) -> None:
    if is_notified_before:
        night.go(85.0)
    silence_id = night.silence("gpu=0", minutes=60)
    night.go(85.0)
    night.go(50.0)
    before = ["firing warning"] * is_notified_before
    assert night.sent == before
    with transaction(night.sessions) as session:
        expire_silence(session, scope_of(night.cast.bob), silence_id, now=night.clock.now)
    night.go()
    assert night.sent == before + ["resolved warning"] * is_notified_before
    assert S.SILENCED not in night.states()


def test_other_alerts_and_other_tenants_are_not_silenced(night: Night) -> None:
    night.silence("gpu=1")
    night.silence("gpu=0", minutes=1)  # over when the alert fires
    with transaction(night.sessions) as session:
        request = SilenceRequest(
            matchers=["gpu=0"],
            starts_at=night.clock.now,
            ends_at=night.clock.now + timedelta(hours=1),
        )
        create_silence(session, scope_of(night.cast.charlie), request, now=night.clock.now)
    night.go(85.0)
    assert night.sent == ["firing warning"]


def test_silences_are_pending_active_and_expired(night: Night) -> None:
    ids = {"active": night.silence("gpu=0")}
    later = SilenceRequest(
        matchers=["gpu=1"],
        starts_at=night.clock.now + timedelta(hours=1),
        ends_at=night.clock.now + timedelta(hours=2),
    )
    scope = scope_of(night.cast.bob)

    def listed() -> dict[str, list[str]]:
        with transaction(night.sessions) as session:
            return {
                state.value: [
                    silence.id
                    for silence in list_silences(
                        session, scope, state=state, now=night.clock.now
                    ).items
                ]
                for state in SilenceState
            }

    with transaction(night.sessions) as session:
        ids["pending"] = create_silence(session, scope, later, now=night.clock.now).id
    assert listed() == {"active": [ids["active"]], "pending": [ids["pending"]], "expired": []}
    with transaction(night.sessions) as session:
        expire_silence(session, scope, ids["pending"], now=night.clock.now)
    assert listed()["expired"] == [ids["pending"]]
    with transaction(night.sessions) as session, pytest.raises(ConflictError):
        expire_silence(session, scope, ids["pending"], now=night.clock.now)
