"""The evaluator: asks every rule's question and moves its alerts.

Questions to the store are asked outside any database transaction; then one short transaction per
rule stores what came out. A rule that fails keeps its alerts as they are and shows its error.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from alerting.expression import Group, levels_of, read_groups
from alerting.machine import AlertView, Observation, Outcome, is_forgotten, next_state
from alerting.models import Alert, Rule
from alerting.recording import ACTIVE, Recorder, resolve_alerts, view_of
from alerting.states import AlertState, NoDataPolicy
from core.db import SessionFactory, transaction
from core.errors import VedetteError
from tenants.models import Tenant, TenantState
from timeseries.store import Store

logger = logging.getLogger(__name__)

# A quiet alert's row need not be written at every evaluation.
_QUIET = {AlertState.INACTIVE, AlertState.RESOLVED}
_QUIET_WRITE_INTERVAL = timedelta(seconds=60)


@dataclass(slots=True)
class EvaluationSummary:
    """What one evaluation did."""

    rules: int = 0
    failed: int = 0
    transitions: int = 0
    notifications: int = 0


def evaluate_rules(
    sessions: SessionFactory,
    store: Store,
    *,
    now: datetime,
    public_url: str = "",
    listening_since: datetime | None = None,
) -> EvaluationSummary:
    """Evaluate every enabled rule of every active tenant.

    Args:
        sessions: the database.
        store: where the samples are.
        now: the present instant; windows end here.
        public_url: the portal's address for the links in messages.
        listening_since: when this portal began to take samples. As long as a rule's window reaches
            further back, missing samples may be the portal's own doing and mean nothing.
    """
    summary = EvaluationSummary()
    for rule in _enabled_rules(sessions):
        summary.rules += 1
        try:
            groups = read_groups(store, rule, tenants=(rule.tenant_id,), now=now)
            starts_at = now - timedelta(seconds=rule.window_seconds)
            is_silence_known = listening_since is None or listening_since <= starts_at
            with transaction(sessions) as session:
                recorder = _apply(
                    session, rule.id, groups, now=now, public_url=public_url,
                    is_silence_known=is_silence_known,
                )  # fmt: skip
            _count(summary, recorder)
        except Exception as error:  # noqa: BLE001 - one broken rule must not stop the others
            summary.failed += 1
            _note_error(sessions, rule, error, now=now)
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


def _apply(
    session: Session,
    rule_id: str,
    groups: Sequence[Group],
    *,
    now: datetime,
    public_url: str,
    is_silence_known: bool,
) -> Recorder | None:
    # The first statement writes: on SQLite everything read below is then this transaction's own.
    evaluated = session.execute(
        update(Rule)
        .where(Rule.id == rule_id, Rule.is_enabled)
        .values(evaluated_at=now, evaluation_error="")
    )
    if not evaluated.rowcount:  # type: ignore[attr-defined] # an UPDATE gives a CursorResult
        return None  # deleted or switched off meanwhile
    rule = session.get_one(Rule, rule_id)
    recorder = Recorder(session, rule, now, public_url)
    alerts = {
        a.group_key: a for a in session.scalars(select(Alert).where(Alert.rule_id == rule_id))
    }
    for group in groups:
        _observe(recorder, alerts.pop(group.key, None), group)
    if is_silence_known:
        for alert in alerts.values():
            _miss(recorder, alert)
    return recorder


def _observe(recorder: Recorder, alert: Alert | None, group: Group) -> None:
    levels = levels_of(recorder.rule)
    before = None if alert is None else view_of(alert)
    outcome = next_state(before, Observation(group.value), levels, now=recorder.now)
    if alert is not None and before is not None:
        _store(recorder, alert, before, outcome)
    elif outcome.is_transition or levels.no_data is NoDataPolicy.ALERT:
        # Where silence is an alert, groups are remembered from their first value on.
        recorder.add(group.tags, outcome)


def _miss(recorder: Recorder, alert: Alert) -> None:
    before = view_of(alert)
    outcome = next_state(before, Observation(None), levels_of(recorder.rule), now=recorder.now)
    if is_forgotten(before, now=recorder.now):
        recorder.session.execute(delete(Alert).where(Alert.id == alert.id))
    elif outcome.after != before:
        recorder.change(alert, outcome)


def _store(recorder: Recorder, alert: Alert, before: AlertView, outcome: Outcome) -> None:
    is_quiet = before.state in _QUIET and not outcome.is_transition
    if is_quiet and recorder.now - alert.updated_at < _QUIET_WRITE_INTERVAL:
        return
    recorder.change(alert, outcome)


def _note_error(sessions: SessionFactory, rule: Rule, error: Exception, *, now: datetime) -> None:
    if isinstance(error, VedetteError):
        text = error.message
        logger.warning("rule %s (%s) was not evaluated: %s", rule.name, rule.id, text)
    else:
        text = f"Internal error: {type(error).__name__}: {error}"
        logger.error("rule %s (%s) was not evaluated", rule.name, rule.id, exc_info=error)
    with transaction(sessions) as session:
        session.execute(
            update(Rule).where(Rule.id == rule.id).values(evaluated_at=now, evaluation_error=text)
        )


def _resolve_disabled(
    sessions: SessionFactory, summary: EvaluationSummary, *, now: datetime, public_url: str
) -> None:
    """End alerts that an evaluation moved while their rule was being switched off."""
    active = select(Alert.rule_id).where(Alert.state.in_(ACTIVE))
    left_over = select(Rule).where(Rule.is_enabled.is_(False), Rule.id.in_(active))
    with transaction(sessions) as session:
        for rule in session.scalars(left_over).all():
            _count(summary, resolve_alerts(session, rule, now=now, public_url=public_url))


def _count(summary: EvaluationSummary, recorder: Recorder | None) -> None:
    if recorder is not None:
        summary.transitions += recorder.transitions
        summary.notifications += recorder.notifications
