"""During the mute time of a route its receivers hear nothing; then they get the current state."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from alerting.evaluation.evaluator import record_groups
from alerting.evaluation.expression import Group
from alerting.evaluation.recorder import Recorder
from alerting.evaluation.reminders import send_reminders
from alerting.models import Receiver, Rule
from alerting.notification.messages import Message
from alerting.notification.models import Notification
from alerting.notification.policies import preview_policy, save_policy
from alerting.rules.service import create_rule, update_rule
from alerting.states import ReceiverKind
from core.db import SessionFactory, transaction
from core.errors import InvalidInputError
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.unit.alerting.helpers import add_mail, drain_outbox, hot

# The clock begins at 12:00 UTC, which is 13:00 in Oslo.
LUNCH: dict[str, Any] = {
    "name": "lunch",
    "time_intervals": [
        {"times": [{"start_time": "13:00", "end_time": "14:00"}], "location": "Europe/Oslo"}
    ],
}
MUTED: dict[str, Any] = {"receivers": ["Mail"], "mute_time_intervals": ["lunch"]}


@dataclass
class Site:
    """Acme with the receivers Mail and Pager, and what they got."""

    sessions: SessionFactory
    clock: FrozenClock
    cast: Cast
    rule_id: str
    got: list[tuple[str, str]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    def send(self, receiver: Receiver, message: Message) -> None:
        self.messages.append(message)
        for payload in message.payload.get("alerts", [message.payload]):
            self.got.append((receiver.name, payload["state"]))

    def policy(self, *routes: dict[str, Any], **root: object) -> None:
        with transaction(self.sessions) as session:
            save_policy(
                session,
                scope_of(self.cast.bob),
                {"routes": list(routes), **root},
                time_intervals=[LUNCH],
                now=self.clock.now,
            )

    def observe(self, *celsius: float, after_minutes: float = 0) -> list[tuple[str, str]]:
        """Evaluate after some time, with a value for each GPU; return what arrives."""
        self.clock.advance(after_minutes * 60)
        self.got.clear()
        self.messages.clear()
        tags = [{"appliance": "a1", "gpu": str(number)} for number in range(len(celsius))]
        groups = [Group(group_tags, value) for group_tags, value in zip(tags, celsius, strict=True)]
        with transaction(self.sessions) as session:
            rule = session.get_one(Rule, self.rule_id)
            recorder = Recorder(session, rule, self.clock.now)
            record_groups(recorder, groups, frozenset(), is_missing_known=True)
        send_reminders(self.sessions, now=self.clock.now)
        drain_outbox(self.sessions, {ReceiverKind.EMAIL: self}, now=self.clock.now)
        return sorted(self.got)


@pytest.fixture
def site(sessions: SessionFactory, clock: FrozenClock, cast: Cast) -> Site:
    with transaction(sessions) as session:
        scope = scope_of(cast.bob)
        for name in ("Mail", "Pager"):
            add_mail(session, scope, name)
        rule = create_rule(session, scope, hot(), now=NOON)
        return Site(sessions, clock, cast, rule.id)


@pytest.mark.parametrize("is_root", [True, False])
def test_what_still_fires_is_sent_at_the_end(site: Site, is_root: bool) -> None:  # noqa: FBT001 - a parameter
    site.policy(**MUTED) if is_root else site.policy(MUTED)
    assert site.observe(95) == []
    assert site.observe(95, after_minutes=59.9) == []
    assert site.observe(95, after_minutes=0.1) == [("Mail", "firing")]


def test_what_begins_and_ends_meanwhile_is_never_sent(site: Site) -> None:
    site.policy(MUTED)
    site.observe(95)
    site.observe(20, after_minutes=10)
    assert site.observe(20, after_minutes=60) == []


def test_the_end_of_an_alert_is_sent_after_the_mute_time(site: Site) -> None:
    site.clock.advance(-600)
    site.policy(MUTED)
    assert site.observe(95) == [("Mail", "firing")]
    assert site.observe(20, after_minutes=20) == []
    assert site.observe(20, after_minutes=50) == [("Mail", "resolved")]


def test_a_route_is_silent_outside_of_its_active_times(site: Site) -> None:
    site.policy({"receivers": ["Mail"], "active_time_intervals": ["lunch"]})
    assert site.observe(95) == [("Mail", "firing")]
    assert site.observe(20, after_minutes=60) == []
    # The next lunch begins 23 hours later.
    assert site.observe(20, after_minutes=23 * 60 - 0.1) == []
    assert site.observe(20, after_minutes=0.1) == [("Mail", "resolved")]


def test_another_route_still_notifies_the_receiver(site: Site) -> None:
    site.policy({**MUTED, "continue": True}, {"receivers": ["Mail"]})
    assert site.observe(95) == [("Mail", "firing")]


def test_a_muted_route_still_takes_its_alerts(site: Site) -> None:
    site.policy(MUTED, {"receivers": ["Pager"]})
    assert site.observe(95) == []


def test_children_do_not_have_the_mute_times_of_their_parents(site: Site) -> None:
    site.policy({**MUTED, "routes": [{"receivers": ["Pager"]}]})
    assert site.observe(95) == [("Pager", "firing")]


def test_receivers_of_the_rule_are_never_muted(site: Site) -> None:
    with transaction(site.sessions) as session:
        mail = session.scalars(select(Receiver).where(Receiver.name == "Mail")).one()
        request = hot(receiver_ids=[mail.id])
        update_rule(session, scope_of(site.cast.bob), site.rule_id, request, now=NOON)
    site.policy(MUTED)
    assert site.observe(95) == [("Mail", "firing")]


def test_an_escalation_waits_for_the_end_of_the_mute_time(site: Site) -> None:
    escalating = {"escalate_after": "5m", "escalate_to": ["Pager"], "receivers": []}
    site.policy({**MUTED, **escalating})
    site.observe(95)
    assert site.observe(95, after_minutes=10) == []
    assert site.observe(95, after_minutes=50) == [("Pager", "firing")]


def test_an_alert_that_left_its_muted_route_ends_after_the_mute_time(site: Site) -> None:
    site.clock.advance(-600)
    site.policy({**MUTED, "matchers": ["severity=critical"]})
    site.observe(95)
    site.observe(85, after_minutes=5)
    assert site.observe(20, after_minutes=10) == []
    assert site.observe(20, after_minutes=60) == [("Mail", "resolved")]


def test_a_group_is_sent_as_one_message_at_the_end(site: Site) -> None:
    site.policy({**MUTED, "group_by": ["rule"]})
    site.observe(95, 95, 95)
    assert site.observe(95, 95, 95, after_minutes=60) == [("Mail", "firing")] * 3
    assert len(site.messages) == 1


def test_a_changed_policy_sends_at_once_what_it_no_longer_mutes(site: Site) -> None:
    site.policy(MUTED)
    site.observe(95)
    site.policy(receivers=["Mail"])
    assert site.observe(95, after_minutes=1) == [("Mail", "firing")]


def test_a_long_mute_time_is_looked_at_once_a_day(site: Site) -> None:
    long: dict[str, Any] = {"name": "lunch", "time_intervals": [{"years": ["2026"]}]}
    with transaction(site.sessions) as session:
        save_policy(
            session, scope_of(site.cast.bob), MUTED, time_intervals=[long], now=site.clock.now
        )
    site.observe(95)
    with transaction(site.sessions) as session:
        (row,) = session.scalars(select(Notification)).all()
        assert row.next_try_at == NOON + timedelta(days=1)
    assert site.observe(95, after_minutes=24 * 60) == []


def test_the_preview_shows_what_is_muted_now(site: Site) -> None:
    site.policy({**MUTED, "continue": True}, {"receivers": ["Pager"]})
    with transaction(site.sessions) as session:
        destinations = preview_policy(session, scope_of(site.cast.bob), {}, now=NOON)
    ends = {destination.receiver_name: destination.muted_until for destination in destinations}
    assert ends == {"Mail": NOON + timedelta(hours=1), "Pager": None}


def test_an_unknown_time_interval_is_refused(site: Site) -> None:
    with pytest.raises(InvalidInputError) as caught:
        site.policy(mute_time_intervals=["dinner"])
    (text,) = caught.value.errors["route.mute_time_intervals"]
    assert "'dinner' does not exist" in text
    assert "lunch" in text
