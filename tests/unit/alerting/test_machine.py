"""The alert's state machine: every situation with every kind of value, and with none."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from alerting.machine import (
    AlertView,
    Observation,
    Outcome,
    RuleLevels,
    is_forgotten,
    level_of,
    next_state,
    resolve,
)
from alerting.states import TRANSITIONS, AlertState, Comparison, NoDataPolicy, Severity
from tests.cast import NOON
from tests.diagrams import diagram_of

S = AlertState
W, C = Severity.WARNING, Severity.CRITICAL
LEVELS = RuleLevels(
    comparison=Comparison.ABOVE,
    warning_threshold=80.0,
    critical_threshold=90.0,
    warning_reset=70.0,
    critical_reset=85.0,
    for_seconds=60.0,
)
AT_ONCE = replace(LEVELS, for_seconds=0.0)


def view(
    state: AlertState,
    severity: Severity = W,
    *,
    active_seconds: float | None = None,
    fired_seconds: float | None = None,
    resolved_seconds: float | None = None,
    seen_seconds: float = 5.0,
) -> AlertView:
    """An alert whose instants lie so many seconds before noon."""

    def ago(seconds: float) -> timedelta:
        return timedelta(seconds=seconds)

    return AlertView(
        state=state,
        severity=severity,
        observed_at=NOON - ago(seen_seconds),
        active_since_at=None if active_seconds is None else NOON - ago(active_seconds),
        last_breach_at=None if active_seconds is None else NOON - ago(seen_seconds),
        fired_at=None if fired_seconds is None else NOON - ago(fired_seconds),
        resolved_at=None if resolved_seconds is None else NOON - ago(resolved_seconds),
    )


SITUATIONS: dict[str, AlertView | None] = {
    "new": None,
    "inactive": view(S.INACTIVE),
    "just pending": view(S.PENDING, active_seconds=59),
    "long pending": view(S.PENDING, active_seconds=60),
    "firing warning": view(S.FIRING, W, active_seconds=200, fired_seconds=140),
    "firing critical": view(S.FIRING, C, active_seconds=200, fired_seconds=140),
    "just resolved": view(S.RESOLVED, active_seconds=900, fired_seconds=800, resolved_seconds=3599),
    "long resolved": view(
        S.RESOLVED, active_seconds=9000, fired_seconds=8000, resolved_seconds=3600
    ),
    "no data, was calm": view(S.NO_DATA, active_seconds=100),
    "no data, was critical": view(S.NO_DATA, C, active_seconds=200, fired_seconds=140),
}
VALUES = {
    "good": 60.0,
    "behind warning": 75.0,
    "warning": 82.0,
    "behind critical": 87.0,
    "critical": 95.0,
}

# One row a situation, one column a value: the state and severity that follow. A trailing mark says
# that receivers are told: ! firing, - resolved, ? no data.
AFTER_VALUE = {
    #                         good  behind warning  warning  behind critical  critical
    "new":                   "iw    iw              pw       pw               pc",
    "inactive":              "iw    iw              pw       pw               pc",
    "just pending":          "iw    iw              pw       pw               pc",
    "long pending":          "iw    iw              fw!      fw!              fc!",
    "firing warning":        "rw-   fw              fw       fw               fc!",
    "firing critical":       "rc-   fw!             fw!      fc               fc",
    "just resolved":         "rw    rw              pw       pw               pc",
    "long resolved":         "iw    iw              pw       pw               pc",
    "no data, was calm":     "rw-   rw-             pw-      pw-              pc-",
    "no data, was critical": "rc-   fw!             fw!      fc!              fc!",
}  # fmt: skip
AFTER_NOTHING = {
    #                         keep  resolve  alert
    "new":                   "iw    iw       iw",
    "inactive":              "iw    iw       nw?",
    "just pending":          "pw    iw       nw?",
    "long pending":          "pw    iw       nw?",
    "firing warning":        "fw    rw-      nw?",
    "firing critical":       "fc    rc-      nc?",
    "just resolved":         "rw    rw       nw?",
    "long resolved":         "iw    iw       nw?",
    "no data, was calm":     "rw-   rw-      nw",
    "no data, was critical": "rc-   rc-      nc",
}  # fmt: skip
_STATES = {"i": S.INACTIVE, "p": S.PENDING, "f": S.FIRING, "r": S.RESOLVED, "n": S.NO_DATA}
_MARKS = {"": None, "!": S.FIRING, "-": S.RESOLVED, "?": S.NO_DATA}


def cells(table: dict[str, str], columns: list[str]) -> list[tuple[str, str, str]]:
    return [
        (row, column, cell)
        for row, text in table.items()
        for column, cell in zip(columns, text.split(), strict=True)
    ]


def check(outcome: Outcome, cell: str) -> None:
    after = outcome.after
    expected = (_STATES[cell[0]], {"w": W, "c": C}[cell[1]], _MARKS[cell[2:]])
    assert (after.state, after.severity, outcome.notify) == expected


@pytest.mark.parametrize(("situation", "value", "cell"), cells(AFTER_VALUE, list(VALUES)))
def test_a_value_moves_every_situation_as_the_table_says(
    situation: str, value: str, cell: str
) -> None:
    observation = Observation(VALUES[value])
    check(next_state(SITUATIONS[situation], observation, LEVELS, now=NOON), cell)


@pytest.mark.parametrize(("situation", "policy", "cell"), cells(AFTER_NOTHING, list(NoDataPolicy)))
def test_silence_moves_every_situation_as_the_policy_says(
    situation: str, policy: NoDataPolicy, cell: str
) -> None:
    levels = replace(LEVELS, no_data=policy)
    check(next_state(SITUATIONS[situation], Observation(None), levels, now=NOON), cell)


def _all_outcomes() -> list[tuple[AlertState, Outcome]]:
    observed = [Observation(value) for value in (*VALUES.values(), None)]
    rules = [replace(base, no_data=policy) for base in (LEVELS, AT_ONCE) for policy in NoDataPolicy]
    return [
        (S.INACTIVE if current is None else current.state,
         next_state(current, observation, levels, now=NOON))
        for current in SITUATIONS.values() for observation in observed for levels in rules
    ]  # fmt: skip


def test_the_machine_makes_exactly_the_moves_of_the_table() -> None:
    moves = {(before, o.after.state) for before, o in _all_outcomes() if before != o.after.state}
    assert moves == {(before, after) for before, all_ in TRANSITIONS.items() for after in all_}


def test_whatever_is_told_is_in_the_history() -> None:
    assert all(o.is_transition for _, o in _all_outcomes() if o.notify is not None)


def test_the_diagram_is_the_table() -> None:
    diagram = diagram_of(Path("docs/states/alert.md"))
    assert diagram == {(a.value, b.value) for a, after in TRANSITIONS.items() for b in after}


def test_without_a_time_to_wait_an_alert_fires_at_once() -> None:
    outcome = next_state(None, Observation(95.0), AT_ONCE, now=NOON)
    check(outcome, "fc!")
    assert (outcome.after.active_since_at, outcome.after.fired_at) == (NOON, NOON)


def test_an_alert_remembers_since_when_it_was_beyond() -> None:
    outcome = next_state(SITUATIONS["long pending"], Observation(95.0), LEVELS, now=NOON)
    assert outcome.after.active_since_at == NOON - timedelta(seconds=60)
    assert outcome.after.fired_at == NOON


def test_a_second_firing_counts_its_time_anew() -> None:
    outcome = next_state(SITUATIONS["just resolved"], Observation(95.0), LEVELS, now=NOON)
    assert outcome.after.active_since_at == NOON


@pytest.mark.parametrize(("calm_seconds", "cell"), [(119, "fw"), (120, "rw-")])
def test_an_alert_keeps_firing_for_its_time_after_the_last_breach(
    calm_seconds: float, cell: str
) -> None:
    levels = replace(LEVELS, keep_firing_seconds=120.0)
    current = view(S.FIRING, active_seconds=900, fired_seconds=800, seen_seconds=calm_seconds)
    check(next_state(current, Observation(60.0), levels, now=NOON), cell)


@pytest.mark.parametrize(
    ("value", "held", "severity"),
    [
        (20.0, None, None),
        (9.0, None, W),
        (4.0, None, C),
        (12.0, W, W),
        (12.0, C, W),
        (16.0, C, None),
    ],
)
def test_a_rule_with_below_looks_downwards(
    value: float, held: Severity | None, severity: Severity | None
) -> None:
    levels = RuleLevels(
        comparison=Comparison.BELOW,
        warning_threshold=10.0,
        critical_threshold=5.0,
        warning_reset=15.0,
        critical_reset=7.0,
    )
    assert level_of(value, levels, held=held) is severity


def test_the_threshold_itself_is_not_beyond() -> None:
    assert level_of(80.0, LEVELS) is None


def test_a_rule_may_know_one_level_only() -> None:
    only_critical = replace(LEVELS, warning_threshold=None, warning_reset=None)
    assert level_of(85.0, only_critical) is None
    assert level_of(95.0, only_critical) is C


DAY = 24 * 3600.0


@pytest.mark.parametrize(
    ("current", "policy", "cell"),
    [
        (view(S.FIRING, fired_seconds=9, seen_seconds=DAY - 1), NoDataPolicy.KEEP, "fw"),
        (view(S.FIRING, fired_seconds=9, seen_seconds=DAY), NoDataPolicy.KEEP, "rw-"),
        (view(S.PENDING, active_seconds=9, seen_seconds=DAY), NoDataPolicy.KEEP, "iw"),
        (view(S.INACTIVE, seen_seconds=DAY), NoDataPolicy.ALERT, "iw"),
        (view(S.NO_DATA, seen_seconds=7 * DAY - 1), NoDataPolicy.ALERT, "nw"),
        (view(S.NO_DATA, seen_seconds=7 * DAY), NoDataPolicy.ALERT, "rw-"),
    ],
)
def test_a_group_that_is_gone_for_long_is_no_longer_an_alert(
    current: AlertView, policy: NoDataPolicy, cell: str
) -> None:
    levels = replace(LEVELS, no_data=policy)
    check(next_state(current, Observation(None), levels, now=NOON), cell)


def test_a_value_after_silence_is_stored_and_silence_keeps_the_last_instant() -> None:
    levels = replace(LEVELS, no_data=NoDataPolicy.ALERT)
    silent = next_state(SITUATIONS["inactive"], Observation(None), levels, now=NOON).after
    assert (silent.value, silent.observed_at) == (None, NOON - timedelta(seconds=5))
    back = next_state(silent, Observation(60.0), levels, now=NOON).after
    assert (back.value, back.observed_at) == (60.0, NOON)


@pytest.mark.parametrize(
    ("situation", "cell"),
    [("firing critical", "rc-"), ("just pending", "iw"), ("no data, was calm", "rw-")],
)
def test_switching_a_rule_off_ends_its_alerts(situation: str, cell: str) -> None:
    current = SITUATIONS[situation]
    assert current is not None
    check(resolve(current, now=NOON), cell)


def test_only_an_alert_that_is_over_is_forgotten_and_only_after_thirty_days() -> None:
    assert is_forgotten(view(S.INACTIVE, seen_seconds=30 * DAY), now=NOON)
    assert not is_forgotten(view(S.INACTIVE, seen_seconds=30 * DAY - 1), now=NOON)
    assert not is_forgotten(view(S.FIRING, seen_seconds=30 * DAY), now=NOON)
