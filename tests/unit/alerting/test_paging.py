"""PagerDuty and Opsgenie: each incident is opened, updated, acknowledged and resolved once."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.evaluation.evaluator import record_groups
from alerting.evaluation.expression import Group
from alerting.evaluation.recorder import Recorder
from alerting.evaluation.reminders import send_reminders
from alerting.models import Alert, Receiver, Rule
from alerting.notification.messages import Message, render
from alerting.notification.models import DeliveredAlert, Notification
from alerting.notification.policies import save_policy
from alerting.notification.receivers import create_receiver, send_test, signing_key, update_receiver
from alerting.notification.senders.chat_addresses import chat_errors
from alerting.notification.senders.notify import DeliveryError, Sender
from alerting.notification.senders.opsgenie import OpsgenieSender
from alerting.notification.senders.pagerduty import PagerDutySender
from alerting.notification.senders.paging import PagingClient
from alerting.notification.senders.paging_addresses import convert_addresses
from alerting.notification.senders.webhooks import AddressPolicy, WebhookClient
from alerting.notification.undelivered import redeliver
from alerting.rules.service import acknowledge_alert, create_rule, delete_rule
from alerting.states import NotificationPurpose, NotificationState, ReceiverKind, Region
from core.db import SessionFactory, transaction
from core.errors import InvalidInputError
from tests.cast import BOX, NOON, Cast, FrozenClock, scope_of
from tests.fixtures.paging_services import Opsgenie, PagerDuty, PagingService, serving
from tests.unit.alerting.helpers import PAYLOAD, drain_outbox, hot
from tests.unit.alerting.servers import LOOPBACK

KEYS = {
    ReceiverKind.PAGERDUTY: "0123456789abcdef0123456789ABCDEF",
    ReceiverKind.OPSGENIE: "eb243592-faa2-4ba2-a551-1afdf565c889",
}
GROUPED: dict[str, object] = {"receivers": ["Pager"], "group_by": ["rule"], "group_interval": "1m"}
# How the services name the severities.
CRITICAL = {"critical", "P1"}
WARNING = {"warning", "P3"}


def sender_of(kind: ReceiverKind, policy: AddressPolicy = LOOPBACK) -> Sender:
    client = WebhookClient(10.0, policy=policy)
    if kind is ReceiverKind.PAGERDUTY:
        return PagerDutySender(PagingClient("PagerDuty", client, box=BOX))
    return OpsgenieSender(PagingClient("Opsgenie", client, box=BOX))


@dataclass
class Site:
    """Acme, with a rule about the GPUs of an appliance, and a paging service as its receiver."""

    sessions: SessionFactory
    clock: FrozenClock
    cast: Cast
    kind: ReceiverKind
    service: PagingService
    receiver_id: str
    rule_id: str

    def observe(self, *celsius: float) -> None:
        """Evaluate the rule with one value for each GPU, and send what is due."""
        tags = [{"appliance": "a1", "gpu": str(number)} for number in range(len(celsius))]
        groups = [Group(group_tags, value) for group_tags, value in zip(tags, celsius, strict=True)]
        with transaction(self.sessions) as session:
            recorder = Recorder(session, session.get_one(Rule, self.rule_id), self.clock.now)
            recorder.public_url = "https://portal.example"
            record_groups(recorder, groups, frozenset(), is_missing_known=True)
        self.send()

    def send(self) -> None:
        send_reminders(self.sessions, now=self.clock.now)
        senders = {self.kind: sender_of(self.kind)}
        drain_outbox(self.sessions, senders, now=self.clock.now)

    def later(self, minutes: float) -> None:
        self.clock.advance(minutes * 60)

    def acknowledge(self, gpu: str = "0") -> None:
        with transaction(self.sessions) as session:
            alerts = session.scalars(select(Alert)).all()
            alert = next(candidate for candidate in alerts if candidate.tags["gpu"] == gpu)
            acknowledge_alert(session, scope_of(self.cast.bob), alert.id, now=self.clock.now)

    def policy(self, route: dict[str, object]) -> None:
        with transaction(self.sessions) as session:
            save_policy(session, scope_of(self.cast.bob), route, now=self.clock.now)

    def statuses(self) -> list[str]:
        assert self.service.refusals == []
        return [incident.status for incident in self.service.incidents]

    def rows(self) -> list[Notification]:
        with transaction(self.sessions) as session:
            return list(session.scalars(select(Notification).order_by(Notification.id)))


@pytest.fixture(params=[ReceiverKind.PAGERDUTY, ReceiverKind.OPSGENIE])
def site(
    request: pytest.FixtureRequest, sessions: SessionFactory, clock: FrozenClock, cast: Cast
) -> Iterator[Site]:
    kind = ReceiverKind(request.param)
    is_pagerduty = kind is ReceiverKind.PAGERDUTY
    service = PagerDuty(KEYS[kind]) if is_pagerduty else Opsgenie(KEYS[kind])
    with serving(service):
        with transaction(sessions) as session:
            receiver = make(session, cast, kind)
            receiver.target = service.url
            rule = create_rule(session, scope_of(cast.bob), hot(), now=NOON)
            site = Site(sessions, clock, cast, kind, service, receiver.id, rule.id)
        site.policy({"receivers": ["Pager"]})
        yield site


def make(
    session: Session, cast: Cast, kind: ReceiverKind, *, region: Region | None = None
) -> Receiver:
    scope = scope_of(cast.bob)
    receiver, secret = create_receiver(
        session, scope, name="Pager", kind=kind, target=KEYS[kind], region=region, box=BOX, now=NOON
    )
    assert secret == ""
    return receiver


def test_an_incident_follows_its_alert_to_the_end(site: Site) -> None:
    site.observe(85)
    (incident,) = site.service.incidents
    assert incident.severity in WARNING
    assert "GPU too hot" in incident.summary
    site.later(1)
    site.observe(95)
    assert incident.severity in CRITICAL
    assert "CRITICAL" in incident.summary
    site.later(1)
    site.observe(20)
    assert site.statuses() == ["resolved"]
    site.later(1)
    site.observe(95)
    assert site.statuses() == ["resolved", "triggered"]
    assert site.service.ignored == []


def test_a_service_that_was_down_gets_the_current_state_only(site: Site) -> None:
    site.service.busy = (503, "0")
    site.observe(95)
    site.later(0.5)
    site.observe(20)
    site.later(0.5)
    site.observe(85)
    site.service.busy = None
    site.later(10)
    site.send()
    assert site.statuses() == ["triggered"]
    assert site.service.incidents[0].severity in WARNING


def test_a_deleted_rule_resolves_its_incident(site: Site) -> None:
    site.observe(95)
    with transaction(site.sessions) as session:
        delete_rule(session, scope_of(site.cast.bob), site.rule_id, now=site.clock.now)
    site.later(1)
    site.send()
    assert site.statuses() == ["resolved"]


def set_sends_resolved(site: Site, *, sends_resolved: bool) -> None:
    with transaction(site.sessions) as session:
        update_receiver(
            session,
            scope_of(site.cast.bob),
            site.receiver_id,
            name="Pager",
            target="",
            sends_resolved=sends_resolved,
            box=BOX,
        )


def test_without_resolved_each_firing_is_a_message_of_its_own(site: Site) -> None:
    set_sends_resolved(site, sends_resolved=False)
    for _ in range(2):
        site.observe(95)
        site.later(1)
        site.observe(20)
        site.later(1)
    assert site.statuses() == ["triggered"]
    assert [row.payload["state"] for row in site.rows()] == ["firing", "firing"]
    set_sends_resolved(site, sends_resolved=True)
    site.observe(95)
    site.later(1)
    site.observe(20)
    assert site.statuses() == ["resolved"]


def test_a_switch_counts_for_messages_that_wait(site: Site) -> None:
    site.observe(95)
    site.service.busy = (503, "0")
    site.later(1)
    site.observe(20)
    site.service.busy = None
    set_sends_resolved(site, sends_resolved=False)
    site.later(10)
    site.send()
    assert site.statuses() == ["triggered"]
    with transaction(site.sessions) as session:
        assert session.scalars(select(DeliveredAlert)).all() == []


def test_a_group_is_one_incident_that_ends_with_its_last_alert(site: Site) -> None:
    site.policy(GROUPED)
    site.observe(85, 95, 95)
    (incident,) = site.service.incidents
    assert incident.severity in CRITICAL
    site.later(2)
    site.observe(85, 20, 20)
    assert site.statuses() == ["triggered"]
    assert incident.severity in WARNING
    site.later(2)
    site.observe(20, 20, 20)
    assert site.statuses() == ["resolved"]


@pytest.mark.parametrize("after", [{"receivers": ["Pager"]}, {}, GROUPED | {"group_by": ["gpu"]}])
def test_an_incident_is_resolved_although_the_grouping_changed(
    site: Site, after: dict[str, object]
) -> None:
    site.policy(GROUPED)
    site.observe(95, 95)
    site.policy(after)
    site.later(6)
    site.observe(20, 95)
    assert site.statuses() == ["triggered"]
    site.later(6)
    site.observe(20, 20)
    assert site.statuses() == ["resolved"]


def test_an_acknowledgement_reaches_the_service_once(site: Site) -> None:
    site.observe(85)
    site.acknowledge()
    for _ in range(3):
        site.later(1)
        site.observe(85)
    assert site.statuses() == ["acknowledged"]
    purposes = [row.purpose.value for row in site.rows()]
    assert purposes.count("acknowledgement") == 1
    site.observe(20)
    assert site.statuses() == ["resolved"]


def test_an_alert_that_gets_worse_pages_those_who_acknowledged_it(site: Site) -> None:
    site.observe(85)
    site.acknowledge()
    site.later(1)
    site.send()
    pages = sum(incident.pages for incident in site.service.incidents)
    site.later(1)
    site.observe(95)
    assert sum(incident.pages for incident in site.service.incidents) == pages + 1
    assert site.statuses()[-1] == "triggered"
    site.later(1)
    site.observe(20)
    assert "triggered" not in site.statuses()


def test_a_group_is_acknowledged_with_its_last_alert_and_opened_anew_by_another(site: Site) -> None:
    site.policy(GROUPED)
    site.observe(95, 95)
    site.acknowledge("0")
    site.later(2)
    site.send()
    assert site.statuses() == ["triggered"]
    site.acknowledge("1")
    site.later(2)
    site.send()
    assert site.statuses() == ["acknowledged"]
    pages = sum(incident.pages for incident in site.service.incidents)
    site.later(2)
    site.observe(95, 95, 95)
    assert site.statuses()[-1] == "triggered"
    assert sum(incident.pages for incident in site.service.incidents) == pages + 1


def test_a_repeated_delivery_opens_no_second_incident(site: Site) -> None:
    site.policy(GROUPED)
    site.observe(95, 95)
    with transaction(site.sessions) as session:
        redeliver(session, scope_of(site.cast.bob), site.rows()[0].id, now=site.clock.now)
    site.send()
    assert site.statuses() == ["triggered"]


def test_a_refused_message_holds_no_other_back(site: Site) -> None:
    site.service.refused_text = "Refused"
    with transaction(site.sessions) as session:
        receiver = session.get_one(Receiver, site.receiver_id)
        bad = Notification(
            tenant_id=site.cast.acme.id,
            receiver_id=receiver.id,
            purpose=NotificationPurpose.REPEAT,
            payload=PAYLOAD | {"rule": "Refused"},
            state=NotificationState.WAITING,
            next_try_at=NOON - timedelta(minutes=1),
            created_at=NOON,
        )
        session.add(bad)
    site.observe(95)
    (refused, sent) = sorted(site.rows(), key=lambda row: row.next_try_at)
    assert (refused.state, sent.state) == (NotificationState.FAILED, NotificationState.SENT)
    assert "Invalid" in refused.last_error
    assert refused.tries == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_service_is_asked_again_when_it_says(site: Site, status: int) -> None:
    site.service.busy = (status, "120")
    site.observe(95)
    (row,) = site.rows()
    assert row.state is NotificationState.WAITING
    assert str(status) in row.last_error
    assert row.next_try_at == NOON + timedelta(seconds=120)


def test_a_changed_key_is_notified_of_what_fires(site: Site) -> None:
    site.service.key = "another" + "0" * 25
    site.observe(95)
    assert site.service.incidents == []
    assert site.service.refusals
    site.service.refusals.clear()
    with transaction(site.sessions) as session:
        scope = scope_of(site.cast.bob)
        key = site.service.key
        receiver = update_receiver(
            session, scope, site.receiver_id, name="Pager", target=key, box=BOX
        )
        assert receiver.target == site.service.url
    site.later(60)
    site.send()
    assert site.statuses() == ["triggered"]


def test_a_test_message_opens_an_incident(site: Site) -> None:
    with transaction(site.sessions) as session:
        scope = scope_of(site.cast.bob)
        send_test(session, scope, site.receiver_id, public_url="https://portal.example", now=NOON)
    site.send()
    assert site.statuses() == ["triggered"]
    assert site.service.incidents[0].summary == "Test of Pager"


def test_texts_are_cut_to_what_the_services_accept(site: Site) -> None:
    long: dict[str, object] = {
        "rule": "R" * 2000,
        "annotation": "A" * 20_000,
        "tags": {"appliance": "gpu-01", **{f"tag{n}": "v" * 3000 for n in range(20)}},
    }
    message = message_of(long)
    sender_of(site.kind).send(receiver_at(site), message)
    assert site.statuses() == ["triggered"]


def test_a_private_address_is_not_reached(site: Site) -> None:
    with pytest.raises(DeliveryError, match="private network"):
        sender_of(site.kind, AddressPolicy()).send(receiver_at(site), message_of({}))
    assert site.service.incidents == []


def message_of(changes: dict[str, object]) -> Message:
    state = NotificationState.WAITING
    return render(Notification(id="n1", payload=PAYLOAD | changes, state=state, created_at=NOON))


def receiver_at(site: Site) -> Receiver:
    secret = BOX.encrypt(KEYS[site.kind])
    return Receiver(id="r1", name="x", kind=site.kind, target=site.service.url, secret=secret)


@pytest.mark.parametrize("site", [ReceiverKind.PAGERDUTY], indirect=True)
def test_pagerduty_shows_the_alert_of_an_incident(site: Site) -> None:
    links = {
        "alerts": "https://portal.example/alerts",
        "runbook": "https://portal.example/runbooks/gpu-hot",
    }
    sender_of(site.kind).send(receiver_at(site), message_of({"links": links}))
    event = site.service.incidents[0].body
    assert event["payload"]["source"] == "gpu-01"
    assert event["payload"]["component"] == "gpu 3"
    assert event["payload"]["class"] == "GPU <too> hot"
    assert event["payload"]["group"] == "Acme"
    assert event["payload"]["timestamp"] == PAYLOAD["at"]
    assert event["payload"]["custom_details"]["value"] == "91 °C"
    assert event["client_url"] == links["alerts"]
    assert {link["text"] for link in event["links"]} == {"Alerts", "Runbook"}


@pytest.mark.parametrize(
    ("kind", "region", "url"),
    [
        (ReceiverKind.PAGERDUTY, None, "https://events.pagerduty.com"),
        (ReceiverKind.PAGERDUTY, Region.EU, "https://events.eu.pagerduty.com"),
        (ReceiverKind.OPSGENIE, Region.US, "https://api.opsgenie.com"),
        (ReceiverKind.OPSGENIE, Region.EU, "https://api.eu.opsgenie.com"),
    ],
)
def test_a_region_has_its_own_address_and_the_key_is_stored_encrypted(
    session: Session, cast: Cast, kind: ReceiverKind, region: Region | None, url: str
) -> None:
    receiver = make(session, cast, kind, region=region)
    assert (receiver.target, receiver.region) == (url, region or Region.US)
    assert receiver.shown_target == url
    assert KEYS[kind] not in receiver.secret
    assert signing_key(receiver, BOX) == KEYS[kind]
    scope = scope_of(cast.bob)
    update_receiver(session, scope, receiver.id, name="P", target="", region=Region.EU, box=BOX)
    assert receiver.region is Region.EU
    assert signing_key(receiver, BOX) == KEYS[kind]


@pytest.mark.parametrize("kind", KEYS)
def test_a_wrong_key_is_refused_without_being_repeated(
    session: Session, cast: Cast, kind: ReceiverKind
) -> None:
    scope, key = scope_of(cast.bob), "https://events.example/secret"
    with pytest.raises(InvalidInputError) as caught:
        create_receiver(session, scope, name="P", kind=kind, target=key, box=BOX, now=NOON)
    assert list(caught.value.errors) == ["target"]
    assert "secret" not in str(caught.value.errors)


def test_only_paging_services_have_a_region(session: Session, cast: Cast) -> None:
    with pytest.raises(InvalidInputError) as caught:
        create_receiver(
            session,
            scope_of(cast.bob),
            name="P",
            kind=ReceiverKind.EMAIL,
            target="ops@acme.example",
            region=Region.EU,
            box=BOX,
            now=NOON,
        )
    assert list(caught.value.errors) == ["region"]


@pytest.mark.parametrize("scheme", ["pagerduty", "opsgenie"])
def test_an_apprise_address_of_a_paging_service_is_refused(scheme: str) -> None:
    (error,) = chat_errors(f"{scheme}://{KEYS[ReceiverKind.PAGERDUTY]}@x")
    assert f"type {scheme}" in error


@pytest.mark.parametrize(
    ("address", "kind", "url"),
    [
        (
            f"pagerduty://{KEYS[ReceiverKind.PAGERDUTY]}@AbCd?region=eu",
            ReceiverKind.PAGERDUTY,
            "https://events.eu.pagerduty.com",
        ),
        (
            f"opsgenie://{KEYS[ReceiverKind.OPSGENIE]}",
            ReceiverKind.OPSGENIE,
            "https://api.opsgenie.com",
        ),
        (f"opsgenie://{KEYS[ReceiverKind.OPSGENIE]}/#ops", ReceiverKind.CHAT, "opsgenie://…"),
        (f"opsgenie://{KEYS[ReceiverKind.OPSGENIE]}?priority=1", ReceiverKind.CHAT, "opsgenie://…"),
        ("slack://T1/A1/x", ReceiverKind.CHAT, "slack://…"),
    ],
)
def test_addresses_that_earlier_versions_accepted_are_converted(
    sessions: SessionFactory, cast: Cast, address: str, kind: ReceiverKind, url: str
) -> None:
    with transaction(sessions) as session:
        receiver = Receiver(
            tenant_id=cast.acme.id,
            name="Pager",
            kind=ReceiverKind.CHAT,
            target=f"{address.partition(':')[0]}://…",
            secret=BOX.encrypt(address),
            created_at=NOON,
        )
        session.add(receiver)
    for _ in range(2):
        convert_addresses(sessions, BOX)
    with transaction(sessions) as session:
        receiver = session.scalars(select(Receiver)).one()
        assert (receiver.kind, receiver.target) == (kind, url)
        secret = address if kind is ReceiverKind.CHAT else KEYS[kind]
        assert signing_key(receiver, BOX) == secret
