"""Alerts of late samples, which arrived after their windows had been evaluated.

The gateway notes which appliances sent some. Every rule on one of their measurements is evaluated
once more for the windows that it missed. An alert that would have fired then fires now, marked as
late, unless it did fire at that time.

A tenant's notes are worked off by spans of time, the oldest first, and tenants that took long wait
for the others. A rule of a level that some sample must cross is read for the windows around such
samples alone.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session, lazyload

from alerting.evaluation.evaluator import Evaluator
from alerting.evaluation.expression import Group, group_key, group_severity, read_groups
from alerting.evaluation.recorder import Recorder, view_of
from alerting.evaluation.rule_series import request_of
from alerting.evaluation.rule_values import rule_query
from alerting.language.text import other_parts
from alerting.machine import fire_late, severity_of
from alerting.models import Alert, AlertTransition, Rule
from alerting.rule_request import ANY_VALUE, RuleRequest
from alerting.states import FORECAST, AlertState, Severity
from core.clock import NS_PER_SECOND, to_ns
from core.db import changed_one, chunked, transaction
from core.errors import VedetteError
from tenants.models import Appliance, LateSamples, Tenant, TenantState
from timeseries.store import APPLIANCE_TAG, Aggregate, Store, StoreUnavailableError

logger = logging.getLogger(__name__)
MAX_NOTES = 2_000
# Limits of one call for a tenant. The rest follows at the next call.
MAX_SPAN = timedelta(hours=2)
MAX_SECONDS = 30.0
# The shortest time between the ends of two windows.
MIN_STEP = timedelta(seconds=10)
# A value beyond a level of these means that a sample is beyond it.
_BOUNDED_BY_SAMPLES = frozenset(
    {
        *(Aggregate.AVG, Aggregate.MIN, Aggregate.MAX, Aggregate.LAST),
        *(Aggregate.P50, Aggregate.P95, Aggregate.P99),
    }
)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Late samples of a tenant.

    Attributes:
        appliances: whose samples they are.
        measurements: those that have late samples.
        first_at: the time of the oldest one.
        last_at: the time of the newest one.
        arrived_at: when the last ones arrived.
    """

    appliances: frozenset[str]
    measurements: frozenset[str]
    first_at: datetime
    last_at: datetime
    arrived_at: datetime


@dataclass(slots=True)
class LateFiring:
    """A group that would have fired.

    Attributes:
        group: its tags, and its value when it would have fired.
        severity: what the value breaches.
        since_at: the end of the first window that breached.
        fires_at: the end of the window at which it would have fired.
        until_at: the end of the last window that breached.
    """

    group: Group
    severity: Severity
    since_at: datetime
    fires_at: datetime
    until_at: datetime


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


def late_firings(
    store: Store, rule: Rule, backlog: Backlog, *, delay: timedelta
) -> list[LateFiring]:
    """Return the groups that would have fired at the end of a window that late samples belong to.

    Args:
        store: the samples.
        rule: the rule.
        backlog: the late samples.
        delay: how long after the end of its window an evaluation takes place.
    """
    window, for_duration = (
        timedelta(seconds=seconds) for seconds in (rule.window_seconds, rule.for_seconds)
    )
    last_at = min(backlog.last_at, backlog.arrived_at - window - delay)
    first_at = max(backlog.first_at, rule.created_at)
    request = _of_appliances(request_of(rule), backlog.appliances)
    if last_at < first_at or rule.aggregate == FORECAST or not request.filters[APPLIANCE_TAG]:
        return []  # its evaluations have seen all of them, or they say nothing about the future
    tenants = (rule.tenant_id,)
    step = max(window / 2, MIN_STEP)
    # The windows before show since when a threshold has been crossed.
    newest_at = min(last_at + window + step, backlog.arrived_at)
    ends = _window_ends(first_at - for_duration, newest_at, step)
    firings: list[LateFiring] = []
    newest: dict[str, LateFiring] = {}
    for end_at in _worth_reading(store, request, tenants, ends):
        for group in read_groups(store, request, tenants=tenants, now=end_at, only_breaches=True):
            severity = group_severity(group, request)
            if severity is None:
                continue
            key = group_key(group.tags)
            firing = newest.get(key)
            if firing is None or end_at - firing.until_at > step:
                firing = newest[key] = LateFiring(group, severity, end_at, end_at, end_at)
                firings.append(firing)
            is_worse = severity.rank > firing.severity.rank
            if is_worse or firing.fires_at - firing.since_at < for_duration:
                firing.group, firing.severity, firing.fires_at = group, severity, end_at
            firing.until_at = end_at
    return [
        firing
        for firing in firings
        if firing.until_at >= first_at and firing.fires_at - firing.since_at >= for_duration
    ]


def _of_appliances(rule: RuleRequest, appliances: frozenset[str]) -> RuleRequest:
    """Return a rule that reads only some appliances."""
    allowed = rule.filters.get(APPLIANCE_TAG, (ANY_VALUE,))
    chosen = appliances if ANY_VALUE in allowed else appliances.intersection(allowed)
    return replace(rule, filters={**rule.filters, APPLIANCE_TAG: tuple(sorted(chosen))})


def _window_ends(start_at: datetime, end_at: datetime, step: timedelta) -> list[datetime]:
    return [start_at + number * step for number in range((end_at - start_at) // step + 1)]


def _worth_reading(
    store: Store, rule: RuleRequest, tenants: tuple[str, ...], ends: Sequence[datetime]
) -> Sequence[datetime]:
    """Return the ends of windows that may breach a threshold, found with one query if possible."""
    is_plain = not rule.operator and not rule.compared_with and rule.comparison.has_side
    if not is_plain or rule.aggregate not in _BOUNDED_BY_SAMPLES:
        return ends
    step_ns = round(rule.window_seconds * NS_PER_SECOND)
    start_ns = to_ns(ends[0]) // step_ns * step_ns - step_ns
    query = rule_query(
        rule, start_ns=start_ns, end_ns=to_ns(ends[-1]), tenants=tenants, step_ns=step_ns
    )
    is_upper = rule.comparison.is_upper
    query = replace(query, aggregate=Aggregate.MAX if is_upper else Aggregate.MIN)
    breached = {
        at_ns // step_ns
        for series in store.query_range(query)
        for at_ns, value in zip(series.times_ns, series.values, strict=True)
        if severity_of(value, rule) is not None
    }
    # A window has parts of two of these steps.
    return [
        end_at
        for end_at in ends
        if not breached.isdisjoint({(to_ns(end_at) - 1) // step_ns, to_ns(end_at) // step_ns - 1})
    ]
