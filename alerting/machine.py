"""The state machine of an alert: its previous state and the current value give the next state.

Pure: the evaluator reads the values and stores the outcome. A value *breaches* a severity when it
is above (or below) that threshold; a firing alert *recovers* when the value passes the reset level.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from alerting.models import Rule
from alerting.rule_request import RuleRequest, promql_severity, rule_thresholds
from alerting.states import TRANSITIONS, AlertState, NoDataPolicy, Severity

# How long a resolved alert is listed before it becomes inactive.
RESOLVED_RETENTION = timedelta(hours=1)
# How long `keep` keeps an alert without data, and for how long a missing group is worth an alert.
NO_DATA_GRACE = timedelta(hours=24)
# How long a no-data alert lasts; then the group counts as removed.
NO_DATA_MAX = timedelta(days=7)
# How long an alert fires after late samples that breached: its message must go out before it ends.
LATE_HOLD = timedelta(minutes=10)
# How long the history of an ended alert without data is stored.
STALE_RETENTION = timedelta(days=30)

_S = AlertState
_NOTIFIED = frozenset({_S.FIRING, _S.NO_DATA, _S.RESOLVED})


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertView:
    """The columns of an alert that the machine reads and writes."""

    state: AlertState
    severity: Severity
    observed_at: datetime
    value: float | None = None
    active_since_at: datetime | None = None
    fired_at: datetime | None = None
    resolved_at: datetime | None = None
    last_breach_at: datetime | None = None
    late_at: datetime | None = None

    @property
    def is_firing(self) -> bool:
        """Return whether it is firing, or was when its data stopped."""
        return self.state is _S.FIRING or (
            self.state is _S.NO_DATA and self.fired_at is not None and self.resolved_at is None
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one evaluation.

    Attributes:
        after: the alert from now on.
        is_transition: whether the state or severity changed, which the history records.
        notify: the state to notify receivers of, if any: firing, resolved or no_data.
    """

    after: AlertView
    is_transition: bool
    notify: AlertState | None


def next_state(
    current: AlertView | None,
    value: float | None,
    rule: Rule | RuleRequest,
    *,
    now: datetime,
    holds: bool = True,
) -> Outcome:
    """Return the outcome of a value.

    Args:
        current: the group's alert; None for a group without one.
        value: the aggregate over the window; None without samples.
        rule: thresholds, reset levels and durations.
        now: time of the evaluation.
        holds: whether the second condition of the rule holds, if it has one.
    """
    before = current
    if before is None:
        lowest = rule_thresholds(rule)[0][0]
        before = AlertView(state=_S.INACTIVE, severity=lowest, observed_at=now)
    if value is None:
        # What PromQL leaves out does not fulfill the condition.
        missing = _recovered if rule.promql else _no_data
        return _outcome(before, before if current is None else missing(before, rule, now=now))
    severity = severity_of(value, rule, firing=before.severity if before.is_firing else None)
    if severity is None or not holds:
        after = _recovered(before, rule, now=now)
    else:
        after = _breached(before, severity, rule, now=now)
    return _outcome(before, replace(after, value=value, observed_at=now))


def fire_late(
    current: AlertView | None,
    value: float,
    severity: Severity,
    *,
    since_at: datetime,
    late_at: datetime,
    now: datetime,
) -> Outcome:
    """Return the outcome of a breach that lasted long enough, but whose samples came late.

    Args:
        current: the group's alert, which does not fire; None for a group without one.
        value: the aggregate over the window that ended at `late_at`.
        severity: what it breaches.
        since_at: the first window that breached.
        late_at: the end of the last window that breached.
        now: the time.
    """
    before = current or AlertView(state=_S.INACTIVE, severity=severity, observed_at=late_at)
    after = replace(
        before,
        state=_S.FIRING,
        severity=severity,
        value=value,
        active_since_at=since_at,
        fired_at=now,
        resolved_at=None,
        last_breach_at=now,
        late_at=late_at,
    )
    return _outcome(before, after)


def resolve(current: AlertView, *, now: datetime) -> Outcome:
    """Return the outcome of disabling the alert's rule."""
    return _outcome(current, _ended(current, now=now))


def severity_of(
    value: float, rule: Rule | RuleRequest, *, firing: Severity | None = None
) -> Severity | None:
    """Return the severity that a value breaches; a `firing` one lasts until its reset level."""
    if rule.promql:
        return promql_severity(rule)
    comparison = rule.comparison
    # Columns of a rule are slow to read, and most values are those of groups that do not fire.
    levels: tuple[tuple[Severity, float | None], ...] = (
        (Severity.CRITICAL, rule.critical_threshold),
        (Severity.WARNING, rule.warning_threshold),
        (Severity.INFO, rule.info_threshold),
    )
    if firing is not None:
        resets = (rule.critical_reset, rule.warning_reset, rule.info_reset)
        levels = tuple(
            (severity, threshold if reset is None or severity.rank > firing.rank else reset)
            for (severity, threshold), reset in zip(levels, resets, strict=True)
        )
    for severity, level in levels:
        if level is not None and comparison.is_breached(value, level):
            return severity
    return None


def is_stale(alert: AlertView, *, now: datetime) -> bool:
    """Return whether an ended alert can be deleted: its group had no data for long."""
    has_ended = alert.state in {_S.INACTIVE, _S.RESOLVED}
    return has_ended and now - alert.observed_at >= STALE_RETENTION


def _breached(
    before: AlertView, severity: Severity, rule: Rule | RuleRequest, *, now: datetime
) -> AlertView:
    is_active = before.is_firing or before.state is _S.PENDING
    since_at = (before.active_since_at if is_active else None) or now
    after = replace(before, severity=severity, active_since_at=since_at, last_breach_at=now)
    if before.is_firing:
        # Also of late samples: what is breached now ends when it recovers, as any other alert.
        return replace(after, state=_S.FIRING, late_at=None)
    if now - since_at >= timedelta(seconds=rule.for_seconds):
        return replace(after, state=_S.FIRING, fired_at=now, resolved_at=None, late_at=None)
    return replace(after, state=_S.PENDING)


def _recovered(before: AlertView, rule: Rule | RuleRequest, *, now: datetime) -> AlertView:
    if _is_held(before, now=now):
        return before
    if before.state is _S.FIRING and before.last_breach_at is not None:
        keep_firing = timedelta(seconds=rule.keep_firing_seconds)
        if now - before.last_breach_at < keep_firing:
            return before
    return _ended(before, now=now)


def _no_data(before: AlertView, rule: Rule | RuleRequest, *, now: datetime) -> AlertView:
    missing_for = now - before.observed_at
    is_active = before.state in {_S.FIRING, _S.PENDING}
    if _is_held(before, now=now):
        return before
    # A pending alert ends: nobody knows whether the threshold was crossed all the time.
    is_firing = before.state is _S.FIRING and before.late_at is None
    if rule.no_data is NoDataPolicy.KEEP and is_firing and missing_for < NO_DATA_GRACE:
        return before
    if rule.no_data is not NoDataPolicy.ALERT:
        return _ended(before, now=now)
    if before.state is _S.NO_DATA:
        return before if missing_for < NO_DATA_MAX else _ended(before, now=now)
    if before.state is not _S.FIRING and missing_for >= NO_DATA_GRACE:
        return _ended(before, now=now)  # removed long ago
    since_at = before.active_since_at if is_active else None
    return replace(
        before, state=_S.NO_DATA, value=None, active_since_at=since_at or before.observed_at
    )


def _is_held(before: AlertView, *, now: datetime) -> bool:
    is_late = before.state is _S.FIRING and before.late_at is not None
    return is_late and before.last_breach_at is not None and now - before.last_breach_at < LATE_HOLD


def _ended(before: AlertView, *, now: datetime) -> AlertView:
    """Return the alert after its cause: resolved if receivers were notified, else inactive."""
    if before.state in {_S.FIRING, _S.NO_DATA}:
        return replace(before, state=_S.RESOLVED, resolved_at=now)
    is_recent = before.resolved_at is not None and now - before.resolved_at < RESOLVED_RETENTION
    if before.state is _S.RESOLVED and is_recent:
        return before
    return replace(before, state=_S.INACTIVE, active_since_at=None)


def _outcome(before: AlertView, after: AlertView) -> Outcome:
    has_moved = after.state is not before.state
    if has_moved and after.state not in TRANSITIONS[before.state]:
        raise AssertionError(f"alert must not go from {before.state} to {after.state}")
    is_escalated = after.state is _S.FIRING and after.severity is not before.severity
    notify = None
    if after.state in _NOTIFIED and (has_moved or is_escalated):
        notify = after.state
    elif before.state is _S.NO_DATA and has_moved:
        notify = _S.RESOLVED  # data is back, which resolves the no-data notification
    return Outcome(after=after, is_transition=has_moved or is_escalated, notify=notify)
