"""Stores the outcome of an alert: guarded update, history and notifications in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.orm import Session

from alerting.action_request import is_severe_enough
from alerting.expression import group_key
from alerting.labels import NO_LABELS, ApplianceLabels, appliance_labels, labels_of
from alerting.machine import AlertView, Outcome, resolve
from alerting.messages import alert_payload
from alerting.models import Alert, AlertAction, AlertTransition, Notification, Rule
from alerting.policies import policy_of, receivers_by_name
from alerting.routes import Route
from alerting.states import ActionKind, ActionState, AlertState, NotificationState
from core.db import Base
from core.guarded_update import changed_one
from core.ids import new_id
from tenants.fleet.appliances import appliance_names
from tenants.fleet.liveness import operators
from tenants.models import Tenant

# What every evaluation changes of an alert.
_OBSERVED = ("value", "observed_at", "last_breach_at")
_VIEWED = tuple(column.name for column in fields(AlertView))
_read_view = attrgetter(*_VIEWED)
_TABLE = Base.metadata.tables[Alert.__tablename__]
_REFRESH = update(_TABLE).where(_TABLE.c.id == bindparam("ident"))
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
    _tenant: str | None = field(default=None, init=False)
    _added: list[tuple[Alert, Outcome]] = field(default_factory=list, init=False)
    _refreshed: list[dict[str, Any]] = field(default_factory=list, init=False)
    _receivers: dict[str, str] | None = field(default=None, init=False)
    _policy: Route = field(default_factory=Route, init=False)
    _labels: ApplianceLabels = field(default_factory=lambda: NO_LABELS, init=False)
    _group_times: dict[tuple[str, str], datetime] = field(default_factory=dict, init=False)

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
        self._added.append((alert, outcome))

    def change(self, alert: Alert, view: AlertView, outcome: Outcome) -> None:
        """Store the next state of an alert, unless another process changed it meanwhile.

        Args:
            alert: the alert.
            view: it, before.
            outcome: what becomes of it.
        """
        before, after = alert.state, outcome.after
        current = {name: getattr(view, name) for name in _OBSERVED}
        if replace(after, **current) == view:
            values = {name: getattr(after, name) for name in _OBSERVED}
            self._refreshed.append({"ident": alert.id, "updated_at": self.now, **values})
            return
        statement = (
            update(Alert)
            .where(Alert.id == alert.id, Alert.state == before, Alert.severity == alert.severity)
            .values(updated_at=self.now, **_columns(outcome.after))
        )
        if changed_one(self.session, statement):
            if outcome.is_transition and before not in ACTIVE_STATES:
                alert.acknowledged_at = alert.acknowledged_by = None
            self._record(alert, before, outcome)

    def flush(self) -> None:
        """Write new alerts, and what was observed of those whose state is the same."""
        if self._added:
            self.session.flush()  # their transitions refer to them
            for alert, outcome in self._added:
                self._record(alert, AlertState.INACTIVE, outcome)
            self._added.clear()
        if self._refreshed:
            # The table's statement takes a fraction of the time of the model's.
            self.session.connection().execute(_REFRESH, self._refreshed)
            self._refreshed.clear()

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
        if outcome.notify is not None:
            self._notify(alert, outcome.after, outcome.notify)
            if outcome.notify is AlertState.FIRING and self.rule.actions:
                self._act(alert, outcome.after)

    def _act(self, alert: Alert, after: AlertView) -> None:
        """Queue the actions of the rule that this firing has not had yet."""
        had = select(AlertAction.kind).where(
            AlertAction.alert_id == alert.id, AlertAction.fired_at == after.fired_at
        )
        done = set(self.session.scalars(had))
        for action in self.rule.actions:
            if action["kind"] not in done and is_severe_enough(action, after.severity):
                self.session.add(
                    AlertAction(
                        tenant_id=self.rule.tenant_id,
                        rule_id=self.rule.id,
                        alert_id=alert.id,
                        kind=ActionKind(action["kind"]),
                        fired_at=after.fired_at or self.now,
                        action=action,
                        payload=self._payload(alert, after, AlertState.FIRING),
                        state=ActionState.WAITING,
                        due_at=self.now,
                        created_at=self.now,
                    )
                )

    def _notify(self, alert: Alert, after: AlertView, state: AlertState) -> None:
        """Notify the rule's receivers, and those of the tenant's policy; or the platform's."""
        if self.rule.platform_rule is not None:
            known = receivers_by_name(self.session, None)
            named = self.rule.platform_rule.receivers
            ids = [known[name] for name in named if name in known]
            emails = [] if ids else [user.email for user in operators(self.session)]
            self.send(alert, after, state, ids, emails=emails)
            return
        tenant_id = self.rule.tenant_id
        if self._receivers is None:
            self._receivers = receivers_by_name(self.session, tenant_id)
            self._policy = policy_of(self.session, tenant_id)
            used = {tenant_id: self._policy.used_labels()}
            self._labels = appliance_labels(self.session, used)
        own = [one for one in self.rule.receiver_ids if one in self._receivers.values()]
        groups = dict.fromkeys(own, ("", self.now))
        labels = labels_of(
            alert.tags,
            rule=self.rule.name,
            severity=after.severity.value,
            names=self._names(),
            labels=self._labels,
        )
        for route in self._policy.matching(labels):
            key = route.group_key(labels)
            for name in route.receivers:
                ident = self._receivers.get(name)
                if ident is not None and ident not in groups:
                    groups[ident] = key, self._group_at(ident, key, route)
        if groups:
            self.send(alert, after, state, list(groups), groups)

    def _names(self) -> dict[str, str]:
        if self._appliance_names is None:
            self._appliance_names = appliance_names(self.session, (self.rule.tenant_id,))
        return self._appliance_names

    def _tenant_name(self) -> str:
        # The session holds the tenant weakly: it would be read again for each alert.
        if self._tenant is None:
            self._tenant = self.session.get_one(Tenant, self.rule.tenant_id).name
        return self._tenant

    def _group_at(self, receiver_id: str, key: str, route: Route) -> datetime:
        """Return when a group's next message is due."""
        if not key:
            return self.now
        if (receiver_id, key) not in self._group_times:
            self._group_times[receiver_id, key] = self._read_group_at(receiver_id, key, route)
        return self._group_times[receiver_id, key]

    def _read_group_at(self, receiver_id: str, key: str, route: Route) -> datetime:
        of_group = (Notification.receiver_id == receiver_id, Notification.group_key == key)
        is_waiting = Notification.state == NotificationState.WAITING
        newest = select(func.min(Notification.next_try_at).filter(is_waiting)).where(*of_group)
        waiting: datetime | None = self.session.scalar(newest)
        if waiting is not None:
            return max(waiting, self.now)
        starts_at = self.now + timedelta(seconds=route.group_wait_seconds)
        sent_at: datetime | None = self.session.scalar(
            select(func.max(Notification.sent_at)).where(*of_group)
        )
        if sent_at is None:
            return starts_at
        return max(starts_at, sent_at + timedelta(seconds=route.group_interval_seconds))

    def send(
        self,
        alert: Alert,
        after: AlertView,
        state: AlertState,
        receiver_ids: Sequence[str],
        groups: Mapping[str, tuple[str, datetime]] | None = None,
        *,
        emails: Sequence[str] = (),
    ) -> None:
        """Put the messages about an alert into the outbox.

        Args:
            alert: the alert.
            after: it, as the message shows it.
            state: the state to notify of.
            receiver_ids: to whom.
            groups: the key of the group and the time of its message by receiver.
            emails: addresses to notify besides.
        """
        owner_id = self.rule.tenant_id if self.rule.platform_rule_id is None else None
        payload = self._payload(alert, after, state)
        targets = [(one, "") for one in receiver_ids]
        for receiver_id, address in [*targets, *((None, one) for one in emails)]:
            self.notifications += 1
            key, due_at = (groups or {}).get(receiver_id or "", ("", self.now))
            self.session.add(
                Notification(
                    tenant_id=owner_id,
                    receiver_id=receiver_id,
                    address=address,
                    alert_id=alert.id,
                    group_key=key,
                    payload=payload,
                    state=NotificationState.WAITING,
                    next_try_at=due_at,
                    created_at=self.now,
                )
            )

    def _payload(self, alert: Alert, after: AlertView, state: AlertState) -> dict[str, Any]:
        return alert_payload(
            self.rule,
            after,
            alert_id=alert.id,
            tags=alert.tags,
            state=state,
            tenant=self._tenant_name(),
            appliances=self._names(),
            public_url=self.public_url,
            now=self.now,
        )


def resolve_alerts(
    session: Session, rule: Rule, *, now: datetime, public_url: str = ""
) -> Recorder:
    """Resolve every active alert of a rule that is disabled, deleted, or has a new query."""
    recorder = Recorder(session, rule, now, public_url)
    active = select(Alert).where(Alert.rule_id == rule.id, Alert.state.in_(ACTIVE_STATES))
    for alert in session.scalars(active.order_by(Alert.id)).all():
        view = view_of(alert)
        recorder.change(alert, view, resolve(view, now=now))
    recorder.flush()
    session.flush()
    return recorder


def view_of(alert: Alert) -> AlertView:
    """Return the columns of an alert that the state machine reads."""
    return AlertView(**_columns(alert))


def _columns(one: Alert | AlertView) -> dict[str, Any]:
    return dict(zip(_VIEWED, _read_view(one), strict=True))
