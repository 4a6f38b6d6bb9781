"""The state machine of `alerting.machine` for many groups at once: in which steps they fire.

All groups move together, step by step, as arrays. Values are reduced to *zones* between the levels
of the rule, because all values of a zone move an alert alike; the machine's own `severity_of` says
which severity a zone breaches. Resolved and inactive alerts are one state here.
"""

import numpy as np
from numpy.typing import NDArray

from alerting.machine import NO_DATA_GRACE, NO_DATA_MAX, severity_of
from alerting.rule_request import RuleRequest, levels_of
from alerting.states import NoDataPolicy, Severity

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

_INACTIVE, _PENDING, _FIRING, _NO_DATA = range(4)
_SEVERITIES = (None, *Severity)


def breaching_groups(rule: RuleRequest, values: Floats) -> list[int]:
    """Return the groups of which some value breaches a threshold; values as in `firing_steps`."""
    if not rule.comparison.has_side:
        return np.flatnonzero(breaches(rule, values).any(axis=1)).tolist()
    extremes = np.stack([extreme.reduce(values, axis=1) for extreme in (np.fmin, np.fmax)], axis=1)
    return [
        group
        for group, pair in enumerate(extremes.tolist())
        if any(severity_of(value, rule) is not None for value in pair)
    ]


def breaches(rule: RuleRequest, values: Floats) -> Bools:
    """Return which values breach a threshold of a rule whose alerts don't fire yet."""
    is_breach: Bools = _severities(rule, values, np.isfinite(values))[0] > 0
    return is_breach


def firing_steps(
    rule: RuleRequest, values: Floats, *, step_seconds: float, holds: Bools | None = None
) -> Bools:
    """Return for each group and step whether the alert fires.

    Args:
        rule: the rule.
        values: by group and step; NaN where there is none.
        step_seconds: the time between two steps.
        holds: by group and step, whether the second condition of the rule holds, if it has one.
    """
    has_value = np.isfinite(values)
    severities = _severities(rule, values, has_value)
    groups, steps = values.shape
    state, severity = np.zeros(groups, np.int8), np.zeros(groups, np.int8)
    is_firing, has_started = np.zeros(groups, bool), np.zeros(groups, bool)
    since, breached_at, observed_at = np.zeros((3, groups))
    fires = np.zeros((groups, steps), bool)
    for step in range(steps):
        now = step * step_seconds
        seen = has_value[:, step]
        # With a value that breaches a severity, given the one that fires.
        breached = np.choose(np.where(is_firing, severity, 0), severities[:, :, step])
        is_breach = seen & (breached > 0)
        if holds is not None:
            is_breach &= holds[:, step]
        is_new = is_breach & ~is_firing & (state != _PENDING)
        since[is_new] = now
        is_firing |= is_breach & (now - since >= rule.for_seconds)
        state = np.where(is_breach, np.where(is_firing, _FIRING, _PENDING), state)
        severity = np.where(is_breach, breached, severity)
        breached_at[is_breach] = now
        # With a value that recovers.
        lasts = (state == _FIRING) & (now - breached_at < rule.keep_firing_seconds)
        has_ended = seen & ~is_breach & ~lasts
        observed_at[seen] = now
        has_started |= seen
        # Without a value.
        missing = has_started & ~seen
        keeps, becomes_no_data = _missing(rule, state, now - observed_at)
        state = np.where(missing & becomes_no_data, _NO_DATA, state)
        has_ended |= missing & ~keeps
        state = np.where(has_ended, _INACTIVE, state)
        is_firing &= ~has_ended
        fires[:, step] = state == _FIRING
    return fires


def _missing(rule: RuleRequest, state: NDArray[np.int8], seconds: Floats) -> tuple[Bools, Bools]:
    """Return which alerts last although values are missing, and which of them have no data."""
    is_recent = seconds < NO_DATA_GRACE.total_seconds()
    if rule.no_data is NoDataPolicy.KEEP:
        return is_recent & (state == _FIRING), np.zeros_like(is_recent)
    if rule.no_data is NoDataPolicy.RESOLVE:
        return np.zeros_like(is_recent), np.zeros_like(is_recent)
    had_none = state == _NO_DATA
    lasts = had_none & (seconds < NO_DATA_MAX.total_seconds())
    begins = ~had_none & ((state == _FIRING) | is_recent)
    return lasts | begins, begins


def _severities(rule: RuleRequest, values: Floats, has_value: Bools) -> NDArray[np.int8]:
    """Return which severity each value breaches, given which one fires, if any."""
    levels = sorted(level for _, *pair in levels_of(rule) for level in pair if level is not None)
    # A level itself is on the side that does not breach it, so it is a zone of its own.
    zones = np.searchsorted(levels, values) + np.searchsorted(levels, values, side="right")
    zones[~has_value] = 0
    _, firsts = np.unique(zones[has_value], return_index=True)
    table = np.zeros((len(_SEVERITIES), 2 * len(levels) + 1), np.int8)
    examples = values[has_value][firsts]
    for zone, value in zip(zones[has_value][firsts], examples, strict=True):
        for number, firing in enumerate(_SEVERITIES):
            breached = severity_of(float(value), rule, firing=firing)
            table[number, zone] = _SEVERITIES.index(breached)
    return np.stack([row[zones] for row in table])
