"""Storing what became of an alert: the guarded update, its history and its messages, together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from alerting.expression import group_key
from alerting.machine import AlertView, Outcome, resolve
from alerting.models import Alert, AlertTransition, Notification, Receiver, Rule
from alerting.payload import alert_payload
from alerting.states import AlertState, NotificationState
from core.ids import new_id
from tenants.fleet.appliances import appliance_names
from tenants.models import Tenant

ACTIVE = (AlertState.PENDING, AlertState.FIRING, AlertState.NO_DATA)


@dataclass(slots=True)
class Recorder:
    """Writes the outcomes of one rule in one transaction, which the caller owns."""

    session: Session
    rule: Rule
    now: datetime
    public_url: str = ""
    transitions: int = 0
    notifications: int = 0
    _names: dict[str, str] | None = field(default=None, init=False)
    _receivers: list[str] | None = field(default=None, init=False)

    def add(self, tags: Mapping[str, str], outcome: Outcome) -> None:
        """Store a group's first alert."""
        alert = Alert(
            id=new_id(),
            rule_id=self.rule.id,
            tenant_id=self.rule.tenant_id,
            group_key=group_key(tags),
            tags=dict(tags),
            updated_at=self.now,
            **_columns(outcome.after),
        )
        self.session.add(alert)
        self.session.flush()
        self._follow(alert, AlertState.INACTIVE, outcome)

    def change(self, alert: Alert, outcome: Outcome) -> None:
        """Store the next state of an alert, unless somebody else moved it meanwhile."""
        before = alert.state
        changed = self.session.execute(
            update(Alert)
            .where(Alert.id == alert.id, Alert.state == before, Alert.severity == alert.severity)
            .values(updated_at=self.now, **_columns(outcome.after))
        )
        if changed.rowcount:  # type: ignore[attr-defined] # an UPDATE gives a CursorResult
            self._follow(alert, before, outcome)

    def _follow(self, alert: Alert, before: AlertState, outcome: Outcome) -> None:
        if outcome.is_transition:
            self.transitions += 1
            self.session.add(
                AlertTransition(
                    alert_id=alert.id,
                    tenant_id=alert.tenant_id,
                    from_state=before,
                    to_state=outcome.after.state,
                    severity=outcome.after.severity,
                    value=outcome.after.value,
                    at=self.now,
                )
            )
        if outcome.notify is not None:
            self._notify(alert, outcome.after, outcome.notify)

    def _notify(self, alert: Alert, after: AlertView, state: AlertState) -> None:
        if not self.rule.receiver_ids:
            return
        payload = alert_payload(
            self.rule,
            after,
            alert_id=alert.id,
            tags=alert.tags,
            state=state,
            tenant=self.session.get_one(Tenant, self.rule.tenant_id).name,
            appliances=self._appliances(),
            public_url=self.public_url,
            now=self.now,
        )
        for receiver_id in self._known_receivers():
            self.notifications += 1
            self.session.add(self._message(receiver_id, alert.id, payload))

    def _message(self, receiver_id: str, alert_id: str, payload: dict[str, Any]) -> Notification:
        return Notification(
            tenant_id=self.rule.tenant_id,
            receiver_id=receiver_id,
            alert_id=alert_id,
            payload=payload,
            state=NotificationState.WAITING,
            next_try_at=self.now,
            created_at=self.now,
        )

    def _appliances(self) -> dict[str, str]:
        if self._names is None:
            self._names = appliance_names(self.session, (self.rule.tenant_id,))
        return self._names

    def _known_receivers(self) -> list[str]:
        if self._receivers is None:
            known = select(Receiver.id).where(
                Receiver.tenant_id == self.rule.tenant_id, Receiver.id.in_(self.rule.receiver_ids)
            )
            self._receivers = list(self.session.scalars(known))
        return self._receivers


def resolve_alerts(
    session: Session, rule: Rule, *, now: datetime, public_url: str = ""
) -> Recorder:
    """End every active alert of a rule that is switched off, deleted or asks something else."""
    recorder = Recorder(session, rule, now, public_url)
    active = select(Alert).where(Alert.rule_id == rule.id, Alert.state.in_(ACTIVE))
    for alert in session.scalars(active.order_by(Alert.id)).all():
        recorder.change(alert, resolve(view_of(alert), now=now))
    session.flush()
    return recorder


def view_of(alert: Alert) -> AlertView:
    """Return an alert's row as the state machine sees it."""
    return AlertView(
        state=alert.state,
        severity=alert.severity,
        observed_at=alert.observed_at,
        value=alert.value,
        active_since_at=alert.active_since_at,
        fired_at=alert.fired_at,
        resolved_at=alert.resolved_at,
        last_breach_at=alert.last_breach_at,
    )


def _columns(view: AlertView) -> dict[str, Any]:
    return {
        "state": view.state,
        "severity": view.severity,
        "observed_at": view.observed_at,
        "value": view.value,
        "active_since_at": view.active_since_at,
        "fired_at": view.fired_at,
        "resolved_at": view.resolved_at,
        "last_breach_at": view.last_breach_at,
    }
