"""The alert's state machine: every situation with every kind of value, and with none."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from alerting.machine import (
    AlertView,
    Outcome,
    is_stale,
    next_state,
    resolve,
    severity_of,
)
from alerting.rule_request import RuleRequest
from alerting.states import TRANSITIONS, AlertState, Comparison, NoDataPolicy, Severity
from tests.cast import NOON
from tests.diagrams import diagram_of

S = AlertState
W, C = Severity.WARNING, Severity.CRITICAL
RULE = RuleRequest(
    name="GPU is hot",
    measurement="gpu",
    field="temperature_celsius",
    comparison=Comparison.ABOVE,
    warning_threshold=80.0,
    critical_threshold=90.0,
    warning_reset=70.0,
    critical_reset=85.0,
    for_seconds=60.0,
)
WITHOUT_FOR = replace(RULE, for_seconds=0.0)


def view(
    state: AlertState,
    severity: Severity = W,
    *,
    active_seconds: float | None = None,
    fired_seconds: float | None = None,
    resolved_seconds: float | None = None,
    seen_seconds: float = 5.0,
) -> AlertView:
    """An alert whose instants are seconds before noon."""

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
    "no data, was inactive": view(S.NO_DATA, active_seconds=100),
    "no data, was critical": view(S.NO_DATA, C, active_seconds=200, fired_seconds=140),
}
VALUES = {
    "good": 60.0,
    "below warning": 75.0,
    "warning": 82.0,
    "below critical": 87.0,
    "critical": 95.0,
}

# One row a situation, one column a value: the state and severity that follow. A trailing mark means
# a notification: ! firing, - resolved, ? no data.
AFTER_VALUE = {
    #                         good  below warning  warning  below critical  critical
    "new": "iw    iw              pw       pw               pc",
    "inactive": "iw    iw              pw       pw               pc",
    "just pending": "iw    iw              pw       pw               pc",
    "long pending": "iw    iw              fw!      fw!              fc!",
    "firing warning": "rw-   fw              fw       fw               fc!",
    "firing critical": "rc-   fw!             fw!      fc               fc",
    "just resolved": "rw    rw              pw       pw               pc",
    "long resolved": "iw    iw              pw       pw               pc",
    "no data, was inactive": "rw-   rw-             pw-      pw-              pc-",
    "no data, was critical": "rc-   fw!             fw!      fc!              fc!",
}
AFTER_NOTHING = {
    #                         keep  resolve  alert
    "new": "iw    iw       iw",
    "inactive": "iw    iw       nw?",
    "just pending": "iw    iw       nw?",
    "long pending": "iw    iw       nw?",
    "firing warning": "fw    rw-      nw?",
    "firing critical": "fc    rc-      nc?",
    "just resolved": "rw    rw       nw?",
    "long resolved": "iw    iw       nw?",
    "no data, was inactive": "rw-   rw-      nw",
    "no data, was critical": "rc-   rc-      nc",
}
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
    check(next_state(SITUATIONS[situation], VALUES[value], RULE, now=NOON), cell)


@pytest.mark.parametrize(("situation", "policy", "cell"), cells(AFTER_NOTHING, list(NoDataPolicy)))
def test_missing_data_moves_every_situation_as_the_policy_says(
    situation: str, policy: NoDataPolicy, cell: str
) -> None:
    rule = replace(RULE, no_data=policy)
    check(next_state(SITUATIONS[situation], None, rule, now=NOON), cell)


def _all_outcomes() -> list[tuple[AlertState, Outcome]]:
    values = [*VALUES.values(), None]
    rules = [
        replace(base, no_data=policy) for base in (RULE, WITHOUT_FOR) for policy in NoDataPolicy
    ]
    return [
        (
            S.INACTIVE if current is None else current.state,
            next_state(current, value, rule, now=NOON),
        )
        for current in SITUATIONS.values()
        for value in values
        for rule in rules
    ]


def test_the_machine_makes_exactly_the_moves_of_the_table() -> None:
    moves = {(before, o.after.state) for before, o in _all_outcomes() if before != o.after.state}
    assert moves == {(before, after) for before, all_ in TRANSITIONS.items() for after in all_}


def test_a_move_that_the_table_does_not_have_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRANSITIONS, S.INACTIVE, frozenset())
    with pytest.raises(AssertionError, match="from inactive to firing"):
        next_state(None, 95.0, WITHOUT_FOR, now=NOON)


def test_every_notification_is_in_the_history() -> None:
    assert all(o.is_transition for _, o in _all_outcomes() if o.notify is not None)


def test_the_diagram_is_the_table() -> None:
    diagram = diagram_of(Path("docs/states/alert.md"))
    assert diagram == {(a.value, b.value) for a, after in TRANSITIONS.items() for b in after}


def test_without_a_for_duration_an_alert_fires_at_once() -> None:
    outcome = next_state(None, 95.0, WITHOUT_FOR, now=NOON)
    check(outcome, "fc!")
    assert (outcome.after.active_since_at, outcome.after.fired_at) == (NOON, NOON)


def test_a_firing_alert_keeps_the_start_of_its_breach() -> None:
    outcome = next_state(SITUATIONS["long pending"], 95.0, RULE, now=NOON)
    assert outcome.after.active_since_at == NOON - timedelta(seconds=60)
    assert outcome.after.fired_at == NOON


def test_a_second_breach_has_its_own_start() -> None:
    outcome = next_state(SITUATIONS["just resolved"], 95.0, RULE, now=NOON)
    assert outcome.after.active_since_at == NOON


@pytest.mark.parametrize(("recovered_seconds", "cell"), [(119, "fw"), (120, "rw-")])
def test_an_alert_keeps_firing_for_its_time_after_the_last_breach(
    recovered_seconds: float, cell: str
) -> None:
    rule = replace(RULE, keep_firing_seconds=120.0)
    current = view(S.FIRING, active_seconds=900, fired_seconds=800, seen_seconds=recovered_seconds)
    check(next_state(current, 60.0, rule, now=NOON), cell)


@pytest.mark.parametrize(
    ("value", "firing", "severity"),
    [
        (20.0, None, None),
        (9.0, None, W),
        (4.0, None, C),
        (12.0, W, W),
        (12.0, C, W),
        (16.0, C, None),
    ],
)
def test_a_rule_with_below_compares_downwards(
    value: float, firing: Severity | None, severity: Severity | None
) -> None:
    rule = replace(
        RULE,
        comparison=Comparison.BELOW,
        warning_threshold=10.0,
        critical_threshold=5.0,
        warning_reset=15.0,
        critical_reset=7.0,
    )
    assert severity_of(value, rule, firing=firing) is severity


def test_the_threshold_itself_is_no_breach() -> None:
    assert severity_of(80.0, RULE) is None


def test_the_threshold_itself_is_no_breach_of_a_rule_with_below_either() -> None:
    rule = replace(RULE, comparison=Comparison.BELOW, warning_threshold=80.0, warning_reset=90.0)
    below = replace(rule, critical_threshold=70.0, critical_reset=75.0)
    assert severity_of(80.0, below) is None
    assert severity_of(70.0, below) is W
    assert severity_of(90.0, below, firing=W) is None


ONLY_CRITICAL = replace(RULE, warning_threshold=None, warning_reset=None)


def test_a_rule_may_have_one_severity_only() -> None:
    assert severity_of(85.0, ONLY_CRITICAL) is None
    assert severity_of(95.0, ONLY_CRITICAL) is C


@pytest.mark.parametrize(
    ("rule", "severity"),
    [(RULE, W), (replace(RULE, critical_threshold=None, critical_reset=None), W)],
)
def test_a_new_group_has_the_warning_severity_where_the_rule_has_one(
    rule: RuleRequest, severity: Severity
) -> None:
    assert next_state(None, 60.0, rule, now=NOON).after.severity is severity


@pytest.mark.parametrize("value", [60.0, None])
def test_a_new_group_of_a_rule_with_only_a_critical_threshold_is_critical(
    value: float | None,
) -> None:
    outcome = next_state(None, value, ONLY_CRITICAL, now=NOON)
    assert (outcome.after.state, outcome.after.severity) == (S.INACTIVE, C)
    assert outcome.after.observed_at == NOON


@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_breach_records_its_instant(situation: str) -> None:
    after = next_state(SITUATIONS[situation], 95.0, RULE, now=NOON).after
    assert after.last_breach_at == NOON


@pytest.mark.parametrize("situation", ["firing warning", "firing critical"])
def test_a_value_that_recovers_leaves_the_instant_of_the_last_breach(situation: str) -> None:
    after = next_state(SITUATIONS[situation], 60.0, RULE, now=NOON).after
    assert after.last_breach_at == NOON - timedelta(seconds=5)


def test_an_alert_that_fires_again_is_not_resolved() -> None:
    current = view(S.PENDING, active_seconds=60, fired_seconds=900, resolved_seconds=800)
    after = next_state(current, 82.0, RULE, now=NOON).after
    assert (after.state, after.fired_at, after.resolved_at) == (S.FIRING, NOON, None)


def test_an_alert_that_is_pending_again_stays_resolved_until_it_fires() -> None:
    after = next_state(SITUATIONS["just resolved"], 82.0, RULE, now=NOON).after
    assert (after.state, after.resolved_at) == (S.PENDING, NOON - timedelta(seconds=3599))


@pytest.mark.parametrize(
    ("situation", "value", "policy"),
    [
        ("firing warning", 60.0, NoDataPolicy.KEEP),
        ("no data, was inactive", 60.0, NoDataPolicy.ALERT),
        ("no data, was critical", 60.0, NoDataPolicy.ALERT),
        ("firing critical", None, NoDataPolicy.RESOLVE),
        ("no data, was critical", None, NoDataPolicy.RESOLVE),
    ],
)
def test_a_resolved_alert_records_when(
    situation: str, value: float | None, policy: NoDataPolicy
) -> None:
    rule = replace(RULE, no_data=policy)
    after = next_state(SITUATIONS[situation], value, rule, now=NOON).after
    assert (after.state, after.resolved_at) == (S.RESOLVED, NOON)


@pytest.mark.parametrize(
    ("situation", "value"),
    [("just pending", 60.0), ("just pending", None), ("long resolved", 60.0)],
)
def test_an_inactive_alert_has_no_start(situation: str, value: float | None) -> None:
    rule = replace(RULE, no_data=NoDataPolicy.RESOLVE)
    after = next_state(SITUATIONS[situation], value, rule, now=NOON).after
    assert (after.state, after.active_since_at) == (S.INACTIVE, None)


def test_a_resolved_alert_keeps_its_start_while_it_is_listed() -> None:
    after = next_state(SITUATIONS["just resolved"], 60.0, RULE, now=NOON).after
    assert after.active_since_at == NOON - timedelta(seconds=900)


@pytest.mark.parametrize(
    ("current", "start_seconds"),
    [
        (view(S.FIRING, active_seconds=200, fired_seconds=140), 200),
        (view(S.PENDING, active_seconds=59), 59),
        (view(S.FIRING, fired_seconds=140, seen_seconds=7), 7),
        (view(S.INACTIVE, active_seconds=200, seen_seconds=7), 7),
        (view(S.RESOLVED, active_seconds=900, resolved_seconds=800, seen_seconds=7), 7),
    ],
)
def test_a_no_data_alert_starts_with_the_breach_or_with_the_last_value(
    current: AlertView, start_seconds: float
) -> None:
    rule = replace(RULE, no_data=NoDataPolicy.ALERT)
    after = next_state(replace(current, value=95.0), None, rule, now=NOON).after
    assert (after.state, after.value) == (S.NO_DATA, None)
    assert after.active_since_at == NOON - timedelta(seconds=start_seconds)


DAY = 24 * 3600.0


@pytest.mark.parametrize(
    ("current", "policy", "cell"),
    [
        (view(S.FIRING, fired_seconds=9, seen_seconds=DAY - 1), NoDataPolicy.KEEP, "fw"),
        (view(S.FIRING, fired_seconds=9, seen_seconds=DAY), NoDataPolicy.KEEP, "rw-"),
        (view(S.PENDING, active_seconds=9, seen_seconds=DAY), NoDataPolicy.KEEP, "iw"),
        (view(S.INACTIVE, seen_seconds=DAY), NoDataPolicy.ALERT, "iw"),
        (view(S.RESOLVED, resolved_seconds=3600, seen_seconds=DAY), NoDataPolicy.ALERT, "iw"),
        (view(S.RESOLVED, resolved_seconds=3599, seen_seconds=DAY), NoDataPolicy.ALERT, "rw"),
        (view(S.NO_DATA, seen_seconds=7 * DAY - 1), NoDataPolicy.ALERT, "nw"),
        (view(S.NO_DATA, seen_seconds=7 * DAY), NoDataPolicy.ALERT, "rw-"),
    ],
)
def test_an_alert_ends_when_its_group_is_missing_for_long(
    current: AlertView, policy: NoDataPolicy, cell: str
) -> None:
    rule = replace(RULE, no_data=policy)
    outcome = next_state(current, None, rule, now=NOON)
    check(outcome, cell)
    if cell == "rw-":
        assert outcome.after.resolved_at == NOON


def test_missing_data_keeps_the_instant_of_the_last_value() -> None:
    rule = replace(RULE, no_data=NoDataPolicy.ALERT)
    missing = next_state(SITUATIONS["inactive"], None, rule, now=NOON).after
    assert (missing.value, missing.observed_at) == (None, NOON - timedelta(seconds=5))
    back = next_state(missing, 60.0, rule, now=NOON).after
    assert (back.value, back.observed_at) == (60.0, NOON)


@pytest.mark.parametrize(
    ("situation", "cell"),
    [("firing critical", "rc-"), ("just pending", "iw"), ("no data, was inactive", "rw-")],
)
def test_disabling_a_rule_ends_its_alerts(situation: str, cell: str) -> None:
    current = SITUATIONS[situation]
    assert current is not None
    outcome = resolve(current, now=NOON)
    check(outcome, cell)
    assert outcome.after.resolved_at == (NOON if cell[0] == "r" else None)


def test_disabling_a_rule_leaves_a_resolved_alert_listed_for_its_hour() -> None:
    listed, over = SITUATIONS["just resolved"], SITUATIONS["long resolved"]
    assert listed is not None
    assert over is not None
    assert resolve(listed, now=NOON).after == listed
    assert resolve(over, now=NOON).after.state is S.INACTIVE


def test_only_an_alert_that_is_over_is_stale_and_only_after_thirty_days() -> None:
    assert is_stale(view(S.INACTIVE, seen_seconds=30 * DAY), now=NOON)
    assert not is_stale(view(S.INACTIVE, seen_seconds=30 * DAY - 1), now=NOON)
    assert not is_stale(view(S.FIRING, seen_seconds=30 * DAY), now=NOON)
