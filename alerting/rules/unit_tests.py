"""Unit tests of rules, in the form of `promtool test rules`.

    rule_files: [rules.yaml]
    evaluation_interval: 1m
    tests:
      - name: a hot GPU
        interval: 1m
        input_series:
          - series: 'gpu.temperature_celsius{appliance="dgx-01", gpu="0"}'
            values: '70+5x4 _ 95x10 stale'
        alert_rule_test:
          - eval_time: 8m
            alertname: GPU too hot
            exp_alerts:
              - exp_labels: {severity: critical, appliance: dgx-01, gpu: "0"}
                exp_annotations: {summary: dgx-01 is hot}

`a+bxn` is a, a+b ... a+n*b, `axn` is a and n times a again, `_` no sample, `_xn` n of them; `stale`
ends a series, which here is the same as no sample. Samples start at 0 and are `interval` apart. An
expected alert fires at `eval_time`. Without `exp_annotations`, these are not compared; the only one
is `summary`. As for Prometheus, an evaluation reads the samples of its own instant.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from alerting.evaluation.expression import Group, group_key, read_groups
from alerting.language.annotations import render_annotation, value_text
from alerting.language.text import parse_selector
from alerting.machine import AlertView, Outcome, next_state
from alerting.rule_request import RuleRequest
from alerting.states import AlertState
from core.clock import NS_PER_SECOND, to_ns
from core.errors import InvalidInputError
from core.quantities import parse_duration
from timeseries.duckdb.store import MEMORY, DuckDBStore
from timeseries.points import Point
from timeseries.store import APPLIANCE_TAG, TENANT_TAG, Store, write

START = datetime(2000, 1, 1, tzinfo=UTC)
MAX_SAMPLES = 100_000
TENANT = "test"
# An evaluation reads what is before its time; this much later it reads what is at its time.
_AT = timedelta(milliseconds=1)
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_ITEM = re.compile(
    rf"(?P<gap>_)(?:x(?P<gaps>[0-9]+))?|(?P<stale>stale)"
    rf"|(?P<first>{_NUMBER})(?:(?P<step>[+-](?:[0-9.]+(?:[eE][+-]?[0-9]+)?))?x(?P<times>[0-9]+))?"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed: where, and what was expected and what the result was."""

    where: str
    expected: Sequence[Mapping[str, Any]]
    actual: Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Replay:
    """The alerts of a rule as time goes on, by group."""

    rule: RuleRequest
    alerts: dict[str, tuple[Mapping[str, str], AlertView]] = field(default_factory=dict)

    def evaluate(
        self, groups: Sequence[Group], *, now: datetime
    ) -> Iterator[tuple[Mapping[str, str], Outcome]]:
        """Evaluate the rule; yield the transitions with the tags of their groups."""
        missing = dict(self.alerts)
        for group in groups:
            key = group_key(group.tags)
            _, before = missing.pop(key, (group.tags, None))
            outcome = next_state(before, group.value, self.rule, now=now, holds=group.holds)
            yield from self._moved(key, group.tags, outcome)
        for key, (tags, before) in missing.items():
            yield from self._moved(key, tags, next_state(before, None, self.rule, now=now))

    def _moved(
        self, key: str, tags: Mapping[str, str], outcome: Outcome
    ) -> Iterator[tuple[Mapping[str, str], Outcome]]:
        self.alerts[key] = tags, outcome.after
        if outcome.is_transition:
            yield tags, outcome


def series_values(text: str) -> list[float | None]:
    """Return the values of a series; None is no sample.

    Raises:
        InvalidInputError: names the part that is wrong.
    """
    values: list[float | None] = []
    for part in text.split():
        match = _ITEM.fullmatch(part)
        if match is None:
            raise InvalidInputError(f"{part!r} is not a value. Use 1, 1+2x3, 1x3, _, _x3 or stale.")
        count = int(match["gaps"] or match["times"] or 0)
        if len(values) + count > MAX_SAMPLES:
            raise InvalidInputError(f"A series can have {MAX_SAMPLES} samples at most.")
        if match["gap"]:
            values += [None] * max(1, count)
        elif match["stale"]:
            values.append(None)
        else:
            first, step = float(match["first"]), float(match["step"] or 0)
            values += [first + number * step for number in range(count + 1)]
    return values


def run_test(
    test: Mapping[str, Any], rules: Mapping[str, RuleRequest], *, evaluation_interval: float
) -> Iterator[Failure]:
    """Run one test of a file; yield what is not as expected.

    Args:
        test: an entry of `tests`.
        rules: by name.
        evaluation_interval: in seconds.

    Raises:
        InvalidInputError: names the series or the case that is wrong.
    """
    if not isinstance(test, Mapping):
        raise InvalidInputError(f"Expected a mapping, got {str(test)[:100]!r}.")
    cases = test.get("alert_rule_test") or []
    for number, case in enumerate(cases):
        with naming(f"alert_rule_test.{number}"):
            _check_case(case, rules)
    cases = sorted(cases, key=lambda case: _seconds(case, "eval_time"))
    names = list(dict.fromkeys(str(case["alertname"]) for case in cases))
    with closing(DuckDBStore(MEMORY)) as store:
        _write(store, test)
        for name in names:
            of_rule = [case for case in cases if case["alertname"] == name]
            yield from _run_rule(store, rules[name], of_rule, interval=evaluation_interval)


def _check_case(case: Mapping[str, Any], rules: Mapping[str, RuleRequest]) -> None:
    _seconds(case, "eval_time")
    name = str(_required(case, "alertname"))
    if name not in rules:
        listed = ", ".join(sorted(rules)) or "none"
        raise InvalidInputError(
            f"There is no rule {name!r} in the rule files, which have: {listed}."
        )


def _run_rule(
    store: Store, rule: RuleRequest, cases: Sequence[Mapping[str, Any]], *, interval: float
) -> Iterator[Failure]:
    replay = Replay(rule)
    passed = 0.0
    for case in cases:
        at = _seconds(case, "eval_time")
        while passed <= at:
            now = START + timedelta(seconds=passed) + _AT
            groups = read_groups(store, rule, tenants=(TENANT,), now=now)
            for _ in replay.evaluate(groups, now=now):
                pass
            passed += rule.interval_seconds or interval
        expected = [_expected(alert) for alert in case.get("exp_alerts") or []]
        has_annotations = any("annotations" in alert for alert in expected)
        actual = [
            _found(rule, tags, alert, has_annotations=has_annotations)
            for tags, alert in replay.alerts.values()
            if alert.state is AlertState.FIRING
        ]
        if sorted(expected, key=repr) != sorted(actual, key=repr):
            yield Failure(f"{rule.name} at {case['eval_time']}", expected, actual)


def _found(
    rule: RuleRequest, tags: Mapping[str, str], alert: AlertView, *, has_annotations: bool
) -> dict[str, Any]:
    labels = dict(sorted({**tags, "severity": alert.severity.value}.items()))
    if not has_annotations:
        return {"labels": labels}
    value = alert.value or 0.0
    values = {
        "value": value,
        "value_text": value_text(rule, value),
        "labels": tags,
        "severity": alert.severity.value,
        "rule": rule.name,
        "state": alert.state.value,
    }
    return {
        "labels": labels,
        "annotations": {"summary": render_annotation(rule.annotation, values)},
    }


def _expected(data: Mapping[str, Any]) -> dict[str, Any]:
    labels = {str(key): str(value) for key, value in (data.get("exp_labels") or {}).items()}
    alert: dict[str, Any] = {"labels": dict(sorted(labels.items()))}
    if data.get("exp_annotations") is not None:
        alert["annotations"] = dict(data["exp_annotations"])
    return alert


def _write(store: Store, test: Mapping[str, Any]) -> None:
    interval_ns = round(_seconds(test, "interval", default="1m") * NS_PER_SECOND)
    for number, entry in enumerate(test.get("input_series") or []):
        name = entry.get("series") if isinstance(entry, Mapping) else None
        with naming(f"input_series.{number}" + (f" ({name})" if name else "")):
            _write_series(store, entry, interval_ns)


def _write_series(store: Store, entry: Mapping[str, Any], interval_ns: int) -> None:
    selector = parse_selector(str(_required(entry, "series")))
    several = [tag for tag, values in selector.filters.items() if len(values) > 1]
    if several or selector.matchers or selector.operator:
        raise InvalidInputError('A series has one field, and one value of each tag: TAG="VALUE".')
    tags = {tag: values[0] for tag, values in selector.filters.items()}
    appliance = tags.pop(APPLIANCE_TAG, "")
    identity = {TENANT_TAG: TENANT} | ({APPLIANCE_TAG: appliance} if appliance else {})
    points = [
        Point(
            selector.measurement,
            tags,
            {selector.field: value},
            to_ns(START) + number * interval_ns,
        )
        for number, value in enumerate(series_values(str(_required(entry, "values"))))
        if value is not None
    ]
    rejected = write(store, points, identity=identity)
    if rejected:
        raise InvalidInputError(f"{rejected[0].reason}.")


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Say in errors where they are."""
    try:
        yield
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {error.message}") from error


def _seconds(data: Mapping[str, Any], key: str, *, default: str = "") -> float:
    text = str(data.get(key, default) if default else _required(data, key))
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidInputError(f"{key}: {error}") from error


def _required(data: object, key: str) -> Any:  # noqa: ANN401 - any YAML
    if not isinstance(data, Mapping) or key not in data:
        raise InvalidInputError(f"Expected an entry with the key {key!r}, got {str(data)[:100]!r}.")
    return data[key]
