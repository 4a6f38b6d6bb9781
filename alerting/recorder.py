"""Stores the outcome of an alert: guarded update, history and notifications in one transaction."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from alerting.expression import group_key
from alerting.machine import AlertView, Outcome, resolve
from alerting.messages import alert_payload
from alerting.models import Alert, AlertTransition, Notification, Receiver, Rule
from alerting.states import AlertState, NotificationState
from core.guarded_update import changed_one
from core.ids import new_id
from tenants.fleet.appliances import appliance_names
from tenants.models import Tenant

ACTIVE_STATES = (AlertState.PENDING, AlertState.FIRING, AlertState.NO_DATA)


@dataclass(slots=True)
class Recorder:
    """Writes the outcomes of one rule; the caller owns the transaction."""

    session: Session
    rule: Rule
    now: datetime
    public_url: str = ""
    transitions: int = 0
    notifications: int = 0
    _appliance_names: dict[str, str] | None = field(default=None, init=False)
    _receiver_ids: list[str] | None = field(default=None, init=False)

    def add(self, tags: Mapping[str, str], outcome: Outcome) -> None:
        """Store a group's first alert."""
        alert = Alert(
            id=new_id(),
            rule_id=self.rule.id,
            tenant_id=self.rule.tenant_id,
            group_key=group_key(tags),
            tags=dict(tags),
            updated_at=self.now,
            **asdict(outcome.after),
        )
        self.session.add(alert)
        self.session.flush()
        self._record(alert, AlertState.INACTIVE, outcome)

    def change(self, alert: Alert, outcome: Outcome) -> None:
        """Store the next state of an alert, unless another process changed it meanwhile."""
        before = alert.state
        statement = (
            update(Alert)
            .where(Alert.id == alert.id, Alert.state == before, Alert.severity == alert.severity)
            .values(updated_at=self.now, **asdict(outcome.after))
        )
        if changed_one(self.session, statement):
            self._record(alert, before, outcome)

    def _record(self, alert: Alert, before: AlertState, outcome: Outcome) -> None:
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
        if outcome.notify is not None and self.rule.receiver_ids:
            self._notify(alert, outcome.after, outcome.notify)

    def _notify(self, alert: Alert, after: AlertView, state: AlertState) -> None:
        tenant_id = self.rule.tenant_id
        if self._appliance_names is None:
            self._appliance_names = appliance_names(self.session, (tenant_id,))
        if self._receiver_ids is None:
            existing = select(Receiver.id).where(
                Receiver.tenant_id == tenant_id, Receiver.id.in_(self.rule.receiver_ids)
            )
            self._receiver_ids = list(self.session.scalars(existing))
        payload = alert_payload(
            self.rule,
            after,
            alert_id=alert.id,
            tags=alert.tags,
            state=state,
            tenant=self.session.get_one(Tenant, tenant_id).name,
            appliances=self._appliance_names,
            public_url=self.public_url,
            now=self.now,
        )
        for receiver_id in self._receiver_ids:
            self.notifications += 1
            self.session.add(
                Notification(
                    tenant_id=tenant_id,
                    receiver_id=receiver_id,
                    alert_id=alert.id,
                    payload=payload,
                    state=NotificationState.WAITING,
                    next_try_at=self.now,
                    created_at=self.now,
                )
            )


def resolve_alerts(
    session: Session, rule: Rule, *, now: datetime, public_url: str = ""
) -> Recorder:
    """Resolve every active alert of a rule that is disabled, deleted, or has a new query."""
    recorder = Recorder(session, rule, now, public_url)
    active = select(Alert).where(Alert.rule_id == rule.id, Alert.state.in_(ACTIVE_STATES))
    for alert in session.scalars(active.order_by(Alert.id)).all():
        recorder.change(alert, resolve(view_of(alert), now=now))
    session.flush()
    return recorder


def view_of(alert: Alert) -> AlertView:
    """Return the columns of an alert that the state machine reads."""
    return AlertView(**{column.name: getattr(alert, column.name) for column in fields(AlertView)})
