"""Alerts of late samples, which arrived after their windows had been evaluated.

The gateway notes which appliances sent some. Every rule on one of their measurements is evaluated
once more for the windows that it missed. An alert that would have fired then fires now, marked as
late, unless it did fire at that time.

A tenant's notes are worked off by spans of time, the oldest first, and tenants that took long wait
for the others.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session, lazyload

from alerting.evaluation.evaluator import Evaluator
from alerting.evaluation.expression import group_key
from alerting.evaluation.late_windows import Backlog, LateFiring, late_firings
from alerting.evaluation.recorder import Recorder, view_of
from alerting.language.text import other_parts
from alerting.machine import fire_late
from alerting.models import Alert, AlertTransition, Rule
from alerting.states import AlertState
from core.db import changed_one, chunked, transaction
from core.errors import VedetteError
from tenants.models import Appliance, LateSamples, Tenant, TenantState
from timeseries.store import StoreUnavailableError

logger = logging.getLogger(__name__)

MAX_NOTES = 2_000
# Limits of one call for a tenant. The rest follows at the next call.
MAX_SPAN = timedelta(hours=2)
MAX_SECONDS = 30.0


@dataclass(slots=True)
class LateEvaluation:
    """Works off the notes of late samples."""

    evaluator: Evaluator
    _seconds: dict[str, float] = field(default_factory=dict, init=False)
    """What the last call took, by tenant."""

    def run(self, *, now: datetime) -> int:
        """Evaluate rules for late samples; return how many notifications were queued.

        Raises:
            StoreUnavailableError: the notes are left for the next call.
        """
        evaluator = self.evaluator
        with transaction(evaluator.sessions) as session:
            tenants = list(session.scalars(select(LateSamples.tenant_id).distinct()))
        started, notifications = evaluator.seconds(), 0
        self._seconds = {key: self._seconds.get(key, 0.0) for key in tenants}
        for tenant_id in sorted(tenants, key=self._seconds.__getitem__):
            began = evaluator.seconds()
            if began - started > MAX_SECONDS or not evaluator.may_record():
                break
            notifications += self._run_tenant(tenant_id, now=now)
            self._seconds[tenant_id] = evaluator.seconds() - began
        return notifications

    def _run_tenant(self, tenant_id: str, *, now: datetime) -> int:
        with transaction(self.evaluator.sessions) as session:
            notes = _oldest_notes(session, tenant_id)
            backlog = _backlog(session, notes)
            rules = _rules(session, tenant_id, backlog)
        notifications = 0
        for rule in rules:
            try:
                firings = late_firings(
                    self.evaluator.store,
                    rule,
                    backlog,
                    delay=timedelta(seconds=self.evaluator.delay_seconds),
                )
            except StoreUnavailableError:
                raise
            except VedetteError as error:  # its ordinary evaluation shows it
                logger.warning("rule %s (%s): %s", rule.name, rule.id, error.message)
                continue
            if firings:
                notifications += self._record(rule.id, firings, now=now)
        with transaction(self.evaluator.sessions) as session:
            _work_off(session, notes, backlog)
        return notifications

    def _record(self, rule_id: str, firings: Sequence[LateFiring], *, now: datetime) -> int:
        """Fire the alerts of groups that did not fire at that time."""
        lock = (
            update(Rule)
            .where(Rule.id == rule_id, Rule.is_enabled, self.evaluator.fence)
            .values(evaluated_at=Rule.evaluated_at)
        )
        with transaction(self.evaluator.sessions) as session:
            # An evaluation of the rule waits for this one, and finds its alerts.
            if not changed_one(session, lock):
                return 0
            rule = session.get_one(Rule, rule_id)
            recorder = Recorder(session, rule, now, self.evaluator.public_url)
            own = select(Alert).where(Alert.rule_id == rule_id).options(lazyload("*"))
            alerts = {alert.group_key: alert for alert in session.scalars(own)}
            for key, of_group in _by_group(firings).items():
                _fire(recorder, alerts.get(key), of_group)
            recorder.flush()
            return recorder.notifications


def _oldest_notes(session: Session, tenant_id: str) -> Sequence[LateSamples]:
    of_tenant = select(LateSamples).where(LateSamples.tenant_id == tenant_id)
    notes = session.scalars(of_tenant.order_by(LateSamples.first_at).limit(MAX_NOTES)).all()
    return [note for note in notes if note.first_at < notes[0].first_at + MAX_SPAN]


def _backlog(session: Session, notes: Sequence[LateSamples]) -> Backlog:
    first_at = notes[0].first_at
    appliances = {note.appliance_id for note in notes}
    retired = select(Appliance.id).where(
        Appliance.tenant_id == notes[0].tenant_id, Appliance.retired_at.is_not(None)
    )
    return Backlog(
        appliances=frozenset(appliances.difference(session.scalars(retired))),
        measurements=frozenset(name for note in notes for name in note.measurements),
        first_at=first_at,
        last_at=min(max(note.last_at for note in notes), first_at + MAX_SPAN),
        arrived_at=max(note.arrived_at for note in notes),
    )


def _work_off(session: Session, notes: Sequence[LateSamples], backlog: Backlog) -> None:
    """Delete notes whose samples were evaluated; of longer ones the rest stays."""
    for ids in chunked([note.id for note in notes]):
        own = LateSamples.id.in_(ids)
        session.execute(delete(LateSamples).where(own, LateSamples.last_at <= backlog.last_at))
        session.execute(update(LateSamples).where(own).values(first_at=backlog.last_at))


def _rules(session: Session, tenant_id: str, backlog: Backlog) -> Sequence[Rule]:
    """Return the rules of an active tenant that read the late samples."""
    rules = session.scalars(
        select(Rule)
        .join(Tenant, Tenant.id == Rule.tenant_id)
        .where(
            Rule.tenant_id == tenant_id,
            Rule.is_enabled,
            Rule.measurement.in_(backlog.measurements)
            | (Rule.compared_with != "")
            | (Rule.and_condition != ""),
            Tenant.state == TenantState.ACTIVE,
        )
        .order_by(Rule.id)
    )
    return [
        rule
        for rule in rules
        if backlog.measurements.intersection(
            (rule.measurement, *(part.measurement for _, part in other_parts(rule)))
        )
    ]


def _has_fired(recorder: Recorder, alert: Alert, firing: LateFiring) -> bool:
    """Return whether an alert fires now, or fired while the threshold was crossed."""
    view, window = view_of(alert), timedelta(seconds=recorder.rule.window_seconds)
    since_at, until_at = firing.since_at - window, firing.until_at + window
    if view.is_firing or (view.late_at is not None and since_at <= view.late_at <= until_at):
        return True
    moves = recorder.session.execute(
        select(AlertTransition.from_state, AlertTransition.at)
        .where(
            AlertTransition.alert_id == alert.id,
            AlertTransition.at >= since_at,
            AlertTransition.from_state != AlertTransition.to_state,
            (AlertTransition.from_state == AlertState.FIRING)
            | (AlertTransition.to_state == AlertState.FIRING),
        )
        .order_by(AlertTransition.at, AlertTransition.id)
        .limit(1)
    ).all()
    return any(state is AlertState.FIRING or at <= until_at for state, at in moves)


def _by_group(firings: Iterable[LateFiring]) -> dict[str, list[LateFiring]]:
    by_group: dict[str, list[LateFiring]] = {}
    for firing in firings:
        by_group.setdefault(group_key(firing.group.tags), []).append(firing)
    return by_group


def _fire(recorder: Recorder, alert: Alert | None, firings: Sequence[LateFiring]) -> None:
    """Fire an alert for the worst of several times at which it should have fired and did not."""
    newest_at = max(firing.until_at for firing in firings)
    missed = [
        firing for firing in firings if alert is None or not _has_fired(recorder, alert, firing)
    ]
    if not missed:
        if alert is not None and alert.late_at is not None and newest_at > alert.late_at:
            alert.late_at, alert.last_breach_at = newest_at, recorder.now
        return
    worst = max(missed, key=lambda firing: (firing.severity.rank, firing.until_at))
    view = None if alert is None else view_of(alert)
    outcome = fire_late(
        view,
        worst.group.value,
        worst.severity,
        since_at=worst.since_at,
        late_at=newest_at,
        now=recorder.now,
    )
    if alert is None or view is None:
        recorder.add(worst.group.tags, outcome)
    else:
        recorder.change(alert, view, outcome)
