"""A firm's own Alertmanager as a receiver: alerts are posted to its `/api/v2/alerts`.

An Alertmanager forgets alerts that are not repeated, and resolves them at `endsAt`. The outbox
posts changes at once; every minute, all alerts that fire are posted anew with a later end.

Source: https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.models import Alert, Receiver
from alerting.notification.holds import Holds, current_holds
from alerting.notification.messages import Message
from alerting.notification.models import DeliveredAlert, Notification
from alerting.notification.senders.notify import DeliveryError, WebhookSender
from alerting.states import NOTICE, AlertState, NotificationPurpose, ReceiverKind
from core.clock import Clock, utc_now
from core.db import SessionFactory, chunked, transaction

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
        self.post(receiver, [posted_alert(payload, now=now) for payload in payloads])

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


def repeat_alerts(sessions: SessionFactory, sender: AlertmanagerSender, *, now: datetime) -> int:
    """Post the alerts that Alertmanagers were notified of as active; return how many.

    An alert that is silenced, inhibited or muted is left out, so that it ends there.
    """
    with transaction(sessions) as session:
        of_kind = select(Receiver).where(Receiver.kind == ReceiverKind.ALERTMANAGER)
        receivers = session.scalars(of_kind).all()
        holds = current_holds(
            session, {receiver.tenant_id for receiver in receivers if receiver.tenant_id}, now=now
        )
        alerts = {
            receiver: _alerts_for(session, receiver, holds, now=now) for receiver in receivers
        }
    posted = 0
    for receiver, payloads in alerts.items():
        try:
            for part in chunked(payloads, BATCH):
                sender.post(receiver, [posted_alert(payload, now=now) for payload in part])
                posted += len(part)
        except DeliveryError as error:
            logger.warning("repeating alerts to %s failed: %s", receiver.name, error.message)
    return posted


def _alerts_for(
    session: Session, receiver: Receiver, holds: Holds, *, now: datetime
) -> list[dict[str, Any]]:
    """Return the payloads of the active alerts that a receiver was notified of."""
    statement = (
        select(DeliveredAlert.payload)
        .join(Alert, Alert.id == DeliveredAlert.alert_id)
        .where(
            DeliveredAlert.receiver_id == receiver.id,
            DeliveredAlert.state.is_not(None),
            Alert.state.in_((AlertState.FIRING, AlertState.NO_DATA)),
        )
        .order_by(DeliveredAlert.id)
    )
    return [
        payload
        for payload in session.scalars(statement)
        if holds.until(_about(receiver, payload), now=now) is None
    ]


def _about(receiver: Receiver, payload: dict[str, Any]) -> Notification:
    return Notification(
        tenant_id=receiver.tenant_id,
        receiver_id=receiver.id,
        purpose=NotificationPurpose.REPEAT,
        payload=payload,
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
