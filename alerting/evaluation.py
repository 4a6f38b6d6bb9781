"""Evaluation of rules: reads each rule's groups from the store and moves its alerts.

The store is read outside any database transaction; one short transaction per rule stores the
outcomes. A rule that fails keeps its alerts as they are and shows its error.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from alerting.expression import Group, group_key, read_groups
from alerting.machine import is_stale, next_state
from alerting.models import Alert, Rule
from alerting.recorder import ACTIVE_STATES, Recorder, resolve_alerts, view_of
from alerting.states import AlertState, NoDataPolicy
from core.db import SessionFactory, transaction
from core.errors import VedetteError
from core.guarded_update import changed_one
from tenants.models import Tenant, TenantState
from timeseries.store import Store

logger = logging.getLogger(__name__)

# The row of an alert without a transition in these states is written at most once a minute.
_IDLE_STATES = {AlertState.INACTIVE, AlertState.RESOLVED}
_IDLE_WRITE_INTERVAL = timedelta(seconds=60)
_EARLY_SHARE = 0.05


@dataclass(slots=True)
class EvaluationSummary:
    """Counts of one evaluation."""

    rules: int = 0
    failed: int = 0
    transitions: int = 0
    notifications: int = 0

    def add(self, recorder: Recorder) -> None:
        """Count what a recorder has written."""
        self.transitions += recorder.transitions
        self.notifications += recorder.notifications


def evaluate_rules(
    sessions: SessionFactory,
    store: Store,
    *,
    now: datetime,
    public_url: str = "",
    listening_since: datetime | None = None,
    seconds: Callable[[], float] = time.monotonic,
) -> EvaluationSummary:
    """Evaluate every enabled rule of every active tenant whose interval has passed.

    Args:
        listening_since: when this portal began to ingest samples. A window that starts earlier may
            lack samples because of the portal, so that missing data is ignored.
        seconds: a clock that only counts, for the cost of each rule.
    """
    summary = EvaluationSummary()
    for rule in _enabled_rules(sessions):
        if not _is_due(rule, now=now):
            continue
        summary.rules += 1
        try:
            started = seconds()
            groups = read_groups(store, rule, tenants=(rule.tenant_id,), now=now)
            query_seconds = seconds() - started
            starts_at = now - timedelta(seconds=rule.window_seconds)
            is_missing_known = listening_since is None or listening_since <= starts_at
            with transaction(sessions) as session:
                recorder = _begin(session, rule.id, now=now, public_url=public_url)
                if recorder is not None:
                    recorder.rule.query_seconds = query_seconds
                    _evaluate(recorder, groups, is_missing_known=is_missing_known)
                    summary.add(recorder)
        except Exception as error:  # noqa: BLE001 - one broken rule must not stop the others
            summary.failed += 1
            _record_error(sessions, rule, error, now=now)
    _resolve_disabled(sessions, summary, now=now, public_url=public_url)
    return summary


def _enabled_rules(sessions: SessionFactory) -> Sequence[Rule]:
    statement = (
        select(Rule)
        .join(Tenant, Tenant.id == Rule.tenant_id)
        .where(Rule.is_enabled, Tenant.state == TenantState.ACTIVE)
        .order_by(Rule.id)
    )
    with transaction(sessions) as session:
        return session.scalars(statement).all()


def _is_due(rule: Rule, *, now: datetime) -> bool:
    """Whether a rule's interval has passed; a tick that comes a little early counts."""
    if rule.evaluated_at is None or not rule.interval_seconds:
        return True
    passed = (now - rule.evaluated_at).total_seconds()
    return not -rule.interval_seconds < passed < rule.interval_seconds * (1 - _EARLY_SHARE)


def _begin(session: Session, rule_id: str, *, now: datetime, public_url: str) -> Recorder | None:
    """Mark the rule as evaluated; None if it was deleted or disabled since it was listed."""
    # The first statement writes: on SQLite it locks the database for the reads that follow.
    statement = (
        update(Rule)
        .where(Rule.id == rule_id, Rule.is_enabled)
        .values(evaluated_at=now, evaluation_error="")
    )
    if not changed_one(session, statement):
        return None
    return Recorder(session, session.get_one(Rule, rule_id), now, public_url)


def _evaluate(recorder: Recorder, groups: Sequence[Group], *, is_missing_known: bool) -> None:
    statement = select(Alert).where(Alert.rule_id == recorder.rule.id)
    alerts = {alert.group_key: alert for alert in recorder.session.scalars(statement)}
    for group in groups:
        _observe(recorder, alerts.pop(group_key(group.tags), None), group)
    if is_missing_known:
        for alert in alerts.values():
            _miss(recorder, alert)


def _observe(recorder: Recorder, alert: Alert | None, group: Group) -> None:
    before = None if alert is None else view_of(alert)
    outcome = next_state(before, group.value, recorder.rule, now=recorder.now)
    if alert is not None:
        is_idle = alert.state in _IDLE_STATES and not outcome.is_transition
        if not is_idle or recorder.now - alert.updated_at >= _IDLE_WRITE_INTERVAL:
            recorder.change(alert, outcome)
    elif outcome.is_transition or recorder.rule.no_data is NoDataPolicy.ALERT:
        # A no-data alert needs the groups that once had a value.
        recorder.add(group.tags, outcome)


def _miss(recorder: Recorder, alert: Alert) -> None:
    before = view_of(alert)
    outcome = next_state(before, None, recorder.rule, now=recorder.now)
    if is_stale(before, now=recorder.now):
        recorder.session.execute(delete(Alert).where(Alert.id == alert.id))
    elif outcome.after != before:
        recorder.change(alert, outcome)


def _record_error(sessions: SessionFactory, rule: Rule, error: Exception, *, now: datetime) -> None:
    if isinstance(error, VedetteError):
        text = error.message
        logger.warning("evaluation of rule %s (%s) failed: %s", rule.name, rule.id, text)
    else:
        text = f"Internal error: {type(error).__name__}: {error}"
        logger.error("evaluation of rule %s (%s) failed", rule.name, rule.id, exc_info=error)
    with transaction(sessions) as session:
        session.execute(
            update(Rule).where(Rule.id == rule.id).values(evaluated_at=now, evaluation_error=text)
        )


def _resolve_disabled(
    sessions: SessionFactory, summary: EvaluationSummary, *, now: datetime, public_url: str
) -> None:
    """Resolve alerts that a concurrent evaluation moved while their rule was being disabled."""
    active = select(Alert.rule_id).where(Alert.state.in_(ACTIVE_STATES))
    left_over = select(Rule).where(Rule.is_enabled.is_(False), Rule.id.in_(active))
    with transaction(sessions) as session:
        for rule in session.scalars(left_over).all():
            summary.add(resolve_alerts(session, rule, now=now, public_url=public_url))
