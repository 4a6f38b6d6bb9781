"""Stores the outcome of an alert: guarded update, history and notifications in one transaction.

Some alerts end whatever their value: their rule, its filters or their appliance are gone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Select, bindparam, or_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from alerting.evaluation.expression import Group, group_key
from alerting.language.checks import is_severe_enough
from alerting.machine import AlertView, Outcome, resolve
from alerting.models import Alert, AlertAction, AlertTransition, Rule
from alerting.notification.deliveries import Change, DeliveryQueue
from alerting.notification.messages import alert_payload
from alerting.notification.policies import Routing
from alerting.states import ActionKind, ActionState, AlertState
from core.db import Base, SessionFactory, transaction
from core.ids import new_id
from tenants.models import Appliance, Tenant
from timeseries.store import APPLIANCE_TAG

# Every evaluation changes these columns of an alert.
_OBSERVED = ("value", "observed_at", "last_breach_at")
_VIEWED = tuple(column.name for column in fields(AlertView))
_read_view = attrgetter(*_VIEWED)
_TABLE = Base.metadata.tables[Alert.__tablename__]
_REFRESH = update(_TABLE).where(_TABLE.c.id == bindparam("ident"))
_CHANGE = _REFRESH.where(
    _TABLE.c.state == bindparam("former_state"), _TABLE.c.severity == bindparam("former_severity")
)
ALERTS_PER_TRANSACTION = 1000
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


def resolve_alerts(
    session: Session, rule: Rule, *, now: datetime, public_url: str = ""
) -> Recorder:
    """Resolve every active alert of a rule that is disabled, deleted, or has a new query."""
    return _resolve(Recorder(session, rule, now, public_url), _active(session, rule))


def end_alerts_without(recorder: Recorder, groups: Sequence[Group]) -> None:
    """Resolve the active alerts of a rule whose groups have no value since its filters changed."""
    current = {group_key(group.tags) for group in groups}
    alerts = _active(recorder.session, recorder.rule)
    _resolve(recorder, [alert for alert in alerts if alert.group_key not in current])


def resolve_ended(sessions: SessionFactory, *, now: datetime, public_url: str) -> None:
    """Resolve alerts of retired appliances, and of rules that were disabled meanwhile.

    A concurrent evaluation may move an alert while its rule is being disabled. Each transaction has
    alerts of one rule, and not too many: other writers wait for it.
    """
    with sessions() as session:
        rows = session.execute(_ended(Alert.rule_id, Alert.id)).all()
    for _, of_rule in groupby(rows, key=attrgetter("rule_id")):
        idents = [row.id for row in of_rule]
        for start in range(0, len(idents), ALERTS_PER_TRANSACTION):
            part = Alert.id.in_(idents[start : start + ALERTS_PER_TRANSACTION])
            with transaction(sessions) as session:
                alerts = session.scalars(_ended(Alert).where(part)).all()
                if alerts:
                    _resolve(Recorder(session, alerts[0].rule, now, public_url), alerts)


def _ended(*columns: Any) -> Select[Any]:  # noqa: ANN401 - as SQLAlchemy's
    return (
        select(*columns)
        .join(Rule, Rule.id == Alert.rule_id)
        .outerjoin(Appliance, Appliance.id == Alert.tags[APPLIANCE_TAG].as_string())
        .where(
            Alert.state.in_(ACTIVE_STATES),
            or_(Rule.is_enabled.is_(False), Appliance.retired_at.is_not(None)),
        )
        .order_by(Alert.rule_id, Alert.id)
    )


def _active(session: Session, rule: Rule) -> Sequence[Alert]:
    active = select(Alert).where(Alert.rule_id == rule.id, Alert.state.in_(ACTIVE_STATES))
    return session.scalars(active.order_by(Alert.id)).all()


def _resolve(recorder: Recorder, alerts: Sequence[Alert]) -> Recorder:
    for alert in alerts:
        view = view_of(alert)
        recorder.change(alert, view, resolve(view, now=recorder.now))
    recorder.flush()
    recorder.session.flush()
    return recorder
