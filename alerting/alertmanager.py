"""A firm's own Alertmanager as a receiver: alerts are posted to its `/api/v2/alerts`.

An Alertmanager forgets alerts that are not repeated, and resolves them at `endsAt`. The outbox
posts changes at once; every minute, all alerts that fire are posted anew with a later end.

Source: https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.labels import alert_labels, appliance_labels
from alerting.machine import AlertView
from alerting.messages import Message, alert_payload
from alerting.models import Alert, Receiver, Rule
from alerting.notify import DeliveryError, WebhookSender
from alerting.policies import policy_of
from alerting.recorder import view_of
from alerting.states import NOTICE, AlertState, ReceiverKind
from core.clock import Clock, utc_now
from core.db import SessionFactory, chunked, transaction
from tenants.fleet.appliances import appliance_names
from tenants.models import Tenant

logger = logging.getLogger(__name__)

LASTS = timedelta(minutes=5)
BATCH = 500
PATH = "/api/v2/alerts"


class AlertmanagerSender:
    """Posts one alert."""

    def __init__(self, webhooks: WebhookSender, *, clock: Clock = utc_now) -> None:
        self._webhooks = webhooks
        self._clock = clock

    def send(self, receiver: Receiver, message: Message) -> None:
        """Deliver one message; a notice becomes an alert for a minute."""
        now = self._clock()
        if message.payload.get("kind") == NOTICE:
            alert = _posted(
                {"alertname": message.subject, "severity": "none"},
                {"summary": message.payload["text"]},
                starts_at=now,
                ends_at=now + timedelta(minutes=1),
            )
            self.post(receiver, [alert])
            return
        payloads = message.payload.get("alerts", [message.payload])
        self.post(receiver, [posted_alert(one, now=now) for one in payloads])

    def post(self, receiver: Receiver, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Post alerts."""
        url = receiver.target.rstrip("/").removesuffix(PATH) + PATH
        self._webhooks.post(receiver, url, msgspec.json.encode(alerts))


def posted_alert(payload: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """Return an alert as Alertmanager takes it; `payload` is that of a notification."""
    is_resolved = payload["state"] == AlertState.RESOLVED
    labels = {
        "alertname": payload["rule"],
        "severity": payload["severity"],
        "tenant": payload["tenant"],
        **{_label(tag): text for tag, text in payload["tags"].items()},
    }
    annotations = {
        "summary": payload.get("annotation") or payload["expression"],
        "value": payload["value_text"],
        "runbook_url": payload["links"].get("runbook", ""),
        "dashboard": payload["links"].get("gpu", payload["links"].get("appliance", "")),
    }
    started_at = payload["fired_at"] or payload["started_at"] or payload["at"]
    alert = _posted(
        labels,
        {name: text for name, text in annotations.items() if text},
        starts_at=datetime.fromisoformat(started_at),
        ends_at=now if is_resolved else now + LASTS,
    )
    return alert | {"generatorURL": payload["links"].get("rule", "")}


def repeat_alerts(
    sessions: SessionFactory, sender: AlertmanagerSender, *, now: datetime, public_url: str
) -> int:
    """Post all alerts that fire to the Alertmanagers that they go to; return how many."""
    with transaction(sessions) as session:
        of_kind = select(Receiver).where(Receiver.kind == ReceiverKind.ALERTMANAGER)
        receivers = session.scalars(of_kind).all()
        names = appliance_names(session, None) if receivers else {}
        tenants = {one.id: one.name for one in session.execute(select(Tenant.id, Tenant.name))}
        found = [
            (
                receiver,
                [
                    posted_alert(
                        _payload(one, tenants[one.tenant_id], names, public_url, now=now), now=now
                    )
                    for one in _alerts_for(session, receiver, names)
                ],
            )
            for receiver in receivers
        ]
    posted = 0
    for receiver, alerts in found:
        try:
            for some in chunked(alerts, BATCH):
                sender.post(receiver, some)
                posted += len(some)
        except DeliveryError as error:
            logger.warning("repeating alerts to %s failed: %s", receiver.name, error.message)
    return posted


def _alerts_for(session: Session, receiver: Receiver, names: Mapping[str, str]) -> Iterator[Alert]:
    """Yield the firing alerts that go to a receiver."""
    firing = select(Alert).where(Alert.state == AlertState.FIRING)
    if receiver.tenant_id is None:
        of_platform = firing.where(Alert.rule.has(Rule.platform_rule_id.is_not(None)))
        for alert in session.scalars(of_platform):
            rule = alert.rule.platform_rule
            if rule is not None and receiver.name in rule.receivers:
                yield alert
        return
    own = firing.where(
        Alert.tenant_id == receiver.tenant_id, Alert.rule.has(Rule.platform_rule_id.is_(None))
    )
    policy = policy_of(session, receiver.tenant_id)
    labels = appliance_labels(session, {receiver.tenant_id: policy.used_labels()})
    for alert in session.scalars(own):
        routes = policy.matching(alert_labels(alert, names, labels))
        if receiver.id in alert.rule.receiver_ids or any(
            receiver.name in route.receivers for route in routes
        ):
            yield alert


def _payload(
    alert: Alert, tenant: str, names: Mapping[str, str], public_url: str, *, now: datetime
) -> dict[str, Any]:
    view: AlertView = view_of(alert)
    return alert_payload(
        alert.rule,
        view,
        alert_id=alert.id,
        tags=alert.tags,
        state=alert.state,
        tenant=tenant,
        appliances=names,
        public_url=public_url,
        now=now,
    )


def _posted(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    *,
    starts_at: datetime,
    ends_at: datetime,
) -> dict[str, Any]:
    return {
        "labels": labels,
        "annotations": annotations,
        "startsAt": starts_at.isoformat(),
        "endsAt": ends_at.isoformat(),
    }


def _label(tag: str) -> str:
    """Return a tag as a label of Prometheus has it."""
    return "".join(char if char.isascii() and char.isalnum() else "_" for char in tag)
