"""Stores the outcome of an alert: guarded update, history and notifications in one transaction."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import cached_property
from operator import attrgetter
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from alerting.evaluation.expression import group_key
from alerting.language.action_request import is_severe_enough
from alerting.machine import AlertView, Outcome
from alerting.models import Alert, AlertAction, AlertTransition, Rule
from alerting.notification.deliveries import Change, DeliveryQueue
from alerting.notification.messages import alert_payload
from alerting.notification.recipients import Routing
from alerting.states import ActionKind, ActionState, AlertState
from core.db import Base
from core.ids import new_id
from tenants.models import Tenant

# Every evaluation changes these columns of an alert.
_OBSERVED = ("value", "observed_at", "last_breach_at")
_VIEWED = tuple(column.name for column in fields(AlertView))
_read_view = attrgetter(*_VIEWED)
_TABLE = Base.metadata.tables[Alert.__tablename__]
_REFRESH = update(_TABLE).where(_TABLE.c.id == bindparam("ident"))
_CHANGE = _REFRESH.where(
    _TABLE.c.state == bindparam("former_state"), _TABLE.c.severity == bindparam("former_severity")
)
ACTIVE_STATES = (AlertState.PENDING, AlertState.FIRING, AlertState.NO_DATA)


@dataclass
class Recorder:
    """Writes the outcomes of one rule; the caller owns the transaction."""

    session: Session
    rule: Rule
    now: datetime
    public_url: str = ""
    transitions: int = 0
    _added: list[tuple[Alert, Outcome]] = field(default_factory=list, init=False)
    _refreshed: list[dict[str, Any]] = field(default_factory=list, init=False)
    _changes: list[Change] = field(default_factory=list, init=False)

    @cached_property
    def queue(self) -> DeliveryQueue:
        """Notifications about the rule's alerts."""
        routing = Routing.of(self.session, self.rule.tenant_id)
        return DeliveryQueue(self.session, self.rule, routing, self.now)

    @cached_property
    def _tenant_name(self) -> str:
        # The session holds the tenant weakly: it would be read again for each alert.
        return self.session.get_one(Tenant, self.rule.tenant_id).name

    @property
    def notifications(self) -> int:
        """The number of notifications that were queued."""
        return self.queue.count if "queue" in self.__dict__ else 0

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
        columns = {"updated_at": self.now, **_columns(outcome.after)}
        former = {"ident": alert.id, "former_state": before, "former_severity": alert.severity}
        # The model's statement would look for the alert among all that the session holds.
        if self.session.connection().execute(_CHANGE, former | columns).rowcount == 1:
            for name, column_value in columns.items():
                set_committed_value(alert, name, column_value)
            is_worse = after.severity.rank > view.severity.rank
            if outcome.is_transition and (is_worse or before not in ACTIVE_STATES):
                alert.acknowledged_at = alert.acknowledged_by = None
            self._record(alert, before, outcome)

    def flush(self) -> None:
        """Write new alerts, what was observed of those whose state is the same, and messages."""
        if self._added:
            self.session.flush()  # their transitions refer to them
            for alert, outcome in self._added:
                self._record(alert, AlertState.INACTIVE, outcome, is_new=True)
            self._added.clear()
        if self._changes:
            self.queue.add_changes(self._changes)
            self._changes.clear()
        if self._refreshed:
            # The table's statement takes a fraction of the time of the model's.
            self.session.connection().execute(_REFRESH, self._refreshed)
            self._refreshed.clear()

    def _record(
        self, alert: Alert, before: AlertState, outcome: Outcome, *, is_new: bool = False
    ) -> None:
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
            change = self.change_of(alert, outcome.after, outcome.notify, is_new=is_new)
            self._changes.append(change)
            # A firing by late samples may be long over: nothing is stopped or drained for it.
            is_firing = outcome.notify is AlertState.FIRING and outcome.after.late_at is None
            if is_firing and self.rule.actions:
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

    def change_of(
        self, alert: Alert, after: AlertView, state: AlertState, *, is_new: bool = False
    ) -> Change:
        """Return what receivers are notified of."""
        return Change(
            alert_id=alert.id,
            tags=alert.tags,
            state=state,
            severity=after.severity,
            payload=self._payload(alert, after, state),
            is_new=is_new,
        )

    def _payload(self, alert: Alert, after: AlertView, state: AlertState) -> dict[str, Any]:
        return alert_payload(
            self.rule,
            after,
            alert_id=alert.id,
            tags=alert.tags,
            state=state,
            tenant=self._tenant_name,
            appliances=self.queue.routing.appliances,
            public_url=self.public_url,
            now=self.now,
        )


def view_of(alert: Alert) -> AlertView:
    """Return the columns of an alert that the state machine reads."""
    return AlertView(**_columns(alert))


def _columns(alert: Alert | AlertView) -> dict[str, Any]:
    return dict(zip(_VIEWED, _read_view(alert), strict=True))
