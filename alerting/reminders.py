"""Repeats and escalations: messages about alerts that go on firing.

A firing alert is sent again to the receivers of its routes after the route's repeat interval, and
to those of `escalate_to` once after `escalate_after`; but not if it is acknowledged.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from alerting.labels import alert_labels, appliance_labels
from alerting.models import Alert, Notification, NotificationPolicy, Rule
from alerting.policies import policy_of, receivers_by_name
from alerting.recorder import Recorder, view_of
from alerting.routes import Route
from alerting.states import AlertState
from core.db import SessionFactory, transaction
from tenants.fleet.appliances import appliance_names


def send_reminders(sessions: SessionFactory, *, now: datetime, public_url: str = "") -> int:
    """Queue the repeats and escalations that are due; return how many."""
    with transaction(sessions) as session:
        tenants = session.scalars(select(NotificationPolicy.tenant_id)).all()
    queued = 0
    for tenant_id in tenants:
        with transaction(sessions) as session:
            root = policy_of(session, tenant_id)
            if any(route.repeat_seconds or route.escalate_to for route in root.walk()):
                queued += _remind(session, tenant_id, root, now=now, public_url=public_url)
    return queued


def _remind(
    session: Session, tenant_id: str, root: Route, *, now: datetime, public_url: str
) -> int:
    names = appliance_names(session, (tenant_id,))
    labels = appliance_labels(session, {tenant_id: root.used_labels()})
    receivers = receivers_by_name(session, tenant_id)
    firing = select(Alert).where(
        Alert.tenant_id == tenant_id,
        Alert.state == AlertState.FIRING,
        Alert.acknowledged_at.is_(None),
        Alert.rule.has(Rule.platform_rule_id.is_(None)),
    )
    alerts = session.scalars(firing.order_by(Alert.id)).all()
    newest = _newest(session, tenant_id)
    queued = 0
    for alert in alerts:
        recorder = Recorder(session, alert.rule, now, public_url)
        for route in root.matching(alert_labels(alert, names, labels)):
            for name in _due(alert, route, receivers, newest, now=now):
                recorder.send(alert, view_of(alert), AlertState.FIRING, [receivers[name]])
                newest[alert.id, receivers[name]] = now
                queued += 1
    return queued


def _due(
    alert: Alert,
    route: Route,
    receivers: dict[str, str],
    newest: dict[tuple[str, str], datetime],
    *,
    now: datetime,
) -> Iterator[str]:
    """Yield the names of the receivers of a route that are due for an alert."""
    fired_at = alert.fired_at or alert.updated_at
    for name in route.receivers if route.repeat_seconds else ():
        sent_at = newest.get((alert.id, receivers.get(name, "")))
        if sent_at is not None and now - sent_at >= timedelta(seconds=route.repeat_seconds):
            yield name
    if route.escalate_to and now - fired_at >= timedelta(seconds=route.escalate_after_seconds):
        for name in route.escalate_to:
            sent_at = newest.get((alert.id, receivers.get(name, "")))
            if name in receivers and (sent_at is None or sent_at < fired_at):
                yield name


def _newest(session: Session, tenant_id: str) -> dict[tuple[str, str], datetime]:
    """Return when the newest message about an alert to a receiver was queued."""
    statement = (
        select(Notification.alert_id, Notification.receiver_id, func.max(Notification.created_at))
        .join(Alert, Alert.id == Notification.alert_id)
        .where(Notification.tenant_id == tenant_id, Alert.state == AlertState.FIRING)
        .group_by(Notification.alert_id, Notification.receiver_id)
    )
    rows = session.execute(statement)
    return {(str(alert), str(receiver)): at for alert, receiver, at in rows}
