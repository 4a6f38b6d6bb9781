"""The state machine of an alert: one group's past and its value now give its next state.

Pure: the evaluator reads the values and stores what comes out. Words: a *level* is the severity
whose threshold a value is beyond; a firing level is *held* until its reset level is passed, too.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from alerting.states import AlertState, Comparison, NoDataPolicy, Severity

# A resolved alert is shown as such for this long, then it is inactive.
RESOLVED_SHOWN = timedelta(hours=1)
# Kept states are no longer believed when their group has been gone for this long.
KEPT_FOR = timedelta(hours=24)
# A group without data is an alert for this long; then it is taken for removed.
NO_DATA_FOR = timedelta(days=7)
# An alert whose group is gone for this long is deleted with its history.
FORGOTTEN_AFTER = timedelta(days=30)

_S = AlertState


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLevels:
    """What a rule says about one group's values; see `alerting.models.Rule`."""

    comparison: Comparison
    warning_threshold: float | None
    critical_threshold: float | None
    warning_reset: float | None = None
    critical_reset: float | None = None
    for_seconds: float = 0.0
    keep_firing_seconds: float = 0.0
    no_data: NoDataPolicy = NoDataPolicy.KEEP


@dataclass(frozen=True, slots=True)
class Observation:
    """The aggregate of one group over the window; None where there were no samples."""

    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertView:
    """An alert as the machine sees it."""

    state: AlertState
    severity: Severity
    observed_at: datetime
    value: float | None = None
    active_since_at: datetime | None = None
    fired_at: datetime | None = None
    resolved_at: datetime | None = None
    last_breach_at: datetime | None = None

    @property
    def is_held(self) -> bool:
        """Whether it fires, or fired when its data went away."""
        return self.state is _S.FIRING or (
            self.state is _S.NO_DATA and self.fired_at is not None and self.resolved_at is None
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of an alert.

    Attributes:
        after: the alert from now on.
        is_transition: whether state or severity changed in a way that belongs to its history.
        notify: what to tell the receivers, if anything: firing, resolved or no_data.
    """

    after: AlertView
    is_transition: bool
    notify: AlertState | None


def next_state(
    current: AlertView | None, observation: Observation, levels: RuleLevels, *, now: datetime
) -> Outcome:
    """Return what becomes of a group's alert; `current` is None for a group without one."""
    before = current or AlertView(
        state=_S.INACTIVE, severity=lowest_severity(levels), observed_at=now
    )
    if observation.value is None:
        after = before if current is None else _without_data(before, levels, now=now)
        return _outcome(before, after)
    held = before.severity if before.is_held else None
    severity = level_of(observation.value, levels, held=held)
    if severity is None:
        after = _calm(before, levels, now=now)
    else:
        after = _breached(before, severity, levels, now=now)
    return _outcome(before, replace(after, value=observation.value, observed_at=now))


def resolve(current: AlertView, *, now: datetime) -> Outcome:
    """Return what becomes of an alert whose rule is switched off."""
    return _outcome(current, _closed(current, now=now))


def level_of(value: float, levels: RuleLevels, *, held: Severity | None = None) -> Severity | None:
    """Return the severity of a value; a level that fires already (`held`) lasts to its reset."""
    critical, warning = levels.critical_threshold, levels.warning_threshold
    if held is Severity.CRITICAL and levels.critical_reset is not None:
        critical = levels.critical_reset
    if held is not None and levels.warning_reset is not None:
        warning = levels.warning_reset
    if critical is not None and _is_beyond(value, critical, levels.comparison):
        return Severity.CRITICAL
    if warning is not None and _is_beyond(value, warning, levels.comparison):
        return Severity.WARNING
    return None


def lowest_severity(levels: RuleLevels) -> Severity:
    """Return the mildest severity that the rule knows."""
    return Severity.CRITICAL if levels.warning_threshold is None else Severity.WARNING


def is_forgotten(alert: AlertView, *, now: datetime) -> bool:
    """Whether an alert is over and its group gone for so long that its row may go."""
    is_over = alert.state in {_S.INACTIVE, _S.RESOLVED}
    return is_over and now - alert.observed_at >= FORGOTTEN_AFTER


def _is_beyond(value: float, threshold: float, comparison: Comparison) -> bool:
    return value > threshold if comparison is Comparison.ABOVE else value < threshold


def _breached(
    before: AlertView, severity: Severity, levels: RuleLevels, *, now: datetime
) -> AlertView:
    is_going_on = before.is_held or before.state is _S.PENDING
    since_at = (before.active_since_at if is_going_on else None) or now
    after = replace(before, severity=severity, active_since_at=since_at, last_breach_at=now)
    if before.is_held:
        return replace(after, state=_S.FIRING)
    if now - since_at >= timedelta(seconds=levels.for_seconds):
        return replace(after, state=_S.FIRING, fired_at=now, resolved_at=None)
    return replace(after, state=_S.PENDING)


def _calm(before: AlertView, levels: RuleLevels, *, now: datetime) -> AlertView:
    if before.state is _S.FIRING and before.last_breach_at is not None:
        calm_for = now - before.last_breach_at
        if calm_for < timedelta(seconds=levels.keep_firing_seconds):
            return before
    return _closed(before, now=now)


def _without_data(before: AlertView, levels: RuleLevels, *, now: datetime) -> AlertView:
    gone_for = now - before.observed_at
    if levels.no_data is NoDataPolicy.ALERT:
        return _missing(before, gone_for, now=now)
    if levels.no_data is NoDataPolicy.KEEP and before.state in {_S.FIRING, _S.PENDING}:
        return before if gone_for < KEPT_FOR else _closed(before, now=now)
    return _closed(before, now=now)


def _missing(before: AlertView, gone_for: timedelta, *, now: datetime) -> AlertView:
    if before.state is _S.NO_DATA:
        return before if gone_for < NO_DATA_FOR else _closed(before, now=now)
    if before.state is not _S.FIRING and gone_for >= KEPT_FOR:
        return _closed(before, now=now)  # a group that left long ago is not news
    since_at = before.active_since_at if before.state in {_S.FIRING, _S.PENDING} else None
    return replace(
        before, state=_S.NO_DATA, value=None, active_since_at=since_at or before.observed_at
    )


def _closed(before: AlertView, *, now: datetime) -> AlertView:
    """Return the alert without its cause: resolved if it was told, else inactive."""
    if before.state in {_S.FIRING, _S.NO_DATA}:
        return replace(before, state=_S.RESOLVED, resolved_at=now)
    is_shown = before.resolved_at is not None and now - before.resolved_at < RESOLVED_SHOWN
    if before.state is _S.RESOLVED and is_shown:
        return before
    return replace(before, state=_S.INACTIVE, active_since_at=None)


def _outcome(before: AlertView, after: AlertView) -> Outcome:
    has_moved = after.state is not before.state
    is_escalated = after.state is _S.FIRING and after.severity is not before.severity
    notify = None
    if after.state in {_S.FIRING, _S.NO_DATA, _S.RESOLVED} and (has_moved or is_escalated):
        notify = after.state
    elif before.state is _S.NO_DATA and has_moved:
        notify = _S.RESOLVED  # the data are back, which ends what was told
    return Outcome(after=after, is_transition=has_moved or is_escalated, notify=notify)
