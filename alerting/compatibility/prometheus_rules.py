"""Prometheus alerting rules as rules of ours, as far as their expressions have an equivalent.

`avg by (gpu) (avg_over_time(gpu_temperature_celsius{gpu="0"}[5m])) > 85` is
`avg(gpu.temperature_celsius{gpu="0"}) over 5m by appliance, gpu > 85`. Without an outer function,
a rule is by all tags of its measurement. All other expressions become rules in PromQL.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from alerting.compatibility.go_templates import annotation_of
from alerting.compatibility.metric_mapping import onto_our_metrics
from alerting.language.checks import rule_errors
from alerting.language.parser import MAX_LENGTH
from alerting.language.text import (
    Comparand,
    comparand_text,
    parse_expression,
    rule_expression,
    with_canonical_parts,
)
from alerting.rule_request import RuleEntry, RuleRequest
from alerting.states import Comparison, Operator, Severity
from core.errors import InvalidInputError
from core.quantities import parse_duration
from timeseries.prometheus_names import metric_name
from timeseries.promql.syntax import on_one_line, parse
from timeseries.store import TENANT_TAG

_FUNCTIONS = ("avg", "min", "max", "sum", "count", "last")
_QUANTILES = {0.5: "p50", 0.95: "p95", 0.99: "p99"}
# Of the values of all series of a group, these are the same function over all of its samples.
_OUTER = ("avg", "min", "max", "sum")
_CALL = re.compile(
    r"(?P<function>[a-z]+)_over_time\s*\(\s*(?:(?P<quantile>[0-9.]+)\s*,\s*)?"
    r"(?P<metric>[A-Za-z_:][A-Za-z0-9_:]*)\s*(?:\{(?P<matchers>[^{}]*)\})?\s*"
    r"\[\s*(?P<window>[0-9a-z]+)\s*\]\s*(?:offset\s+(?P<offset>[0-9a-z]+)\s*)?\)"
)
_GROUPED = re.compile(
    r"(?P<outer>[a-z]+)\s*(?:by\s*\((?P<by>[^()]*)\)\s*\(\s*(?P<call>.*?)\s*\)"
    r"|\(\s*(?P<call_before>.*?)\s*\)\s*by\s*\((?P<by_after>[^()]*)\))",
    re.DOTALL,
)
_AND = re.compile(r"\band\b\s*(?:on\s*\((?P<by>[^()]*)\))?")
_COMPARISON = re.compile(r"[<>=!]=?")
_ARITHMETIC = re.compile(r"[-+*/]")
_NUMBER = re.compile(r"[+-]?[0-9][0-9.]*(?:e[+-]?[0-9]+)?")
_FACTOR = re.compile(r"\s*([0-9][0-9.]*)\s*\*")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_MATCHER = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*(=~|=|!=|!~)\s*("(?:[^"\\]|\\.)*")\s*')
_PLAIN_ALTERNATIVES = re.compile(r"[A-Za-z0-9_/ :-]+(?:\|[A-Za-z0-9_/ :-]+)*")
_SEVERITIES = {
    "critical": Severity.CRITICAL,
    "page": Severity.CRITICAL,
    "info": Severity.INFO,
    "informational": Severity.INFO,
}
_KEYS = {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of the portal, with the tags of its measurement."""

    measurement: str
    field: str
    tags: Sequence[str]


def convert_rules(
    groups: Sequence[Any], metrics: Sequence[Metric]
) -> tuple[list[RuleEntry], list[str]]:
    """Return the rules of a Prometheus file as entries of ours, and what was left out.

    A rule becomes a threshold where that means the same, else a rule in PromQL: about our metrics
    where all of its metrics have an equivalent, else about those that Prometheus sends.

    Args:
        groups: the list `groups` of the file.
        metrics: those of the portal; `gpu_temperature_celsius` is `gpu.temperature_celsius`.
    """
    named = {metric_name(metric.measurement, metric.field): metric for metric in metrics}
    entries: dict[str, RuleEntry] = {}
    left_out: list[str] = []
    for rule in _rules(groups, left_out):
        name = _unique(str(_get(rule, "alert") or _get(rule, "record") or rule)[:80], rule, entries)
        try:
            request, renamed = _converted(rule, named)
            annotation, problems = _annotation(rule, renamed)
            entry = RuleEntry(name=name, expression=rule_expression(request), annotation=annotation)
            _check(entry)
        except (ValueError, InvalidInputError) as error:
            reason = error.message if isinstance(error, InvalidInputError) else error
            left_out.append(f"{name}: not converted: {reason}".rstrip("."))
            continue
        entries[name] = entry
        problems += _lost_labels(rule, request)
        if problems:
            left_out.append(f"{name}: converted without {', '.join(problems)}")
    return list(entries.values()), left_out


def _rules(groups: Sequence[Any], left_out: list[str]) -> Iterator[Mapping[str, Any]]:
    for group in groups:
        rules = _get(group, "rules")
        if isinstance(rules, list):
            yield from rules
        else:
            left_out.append(f"a group without a list of rules: {str(group)[:100]}")


def _unique(name: str, rule: object, entries: Mapping[str, RuleEntry]) -> str:
    """Return a name that no other rule has: rules of Prometheus may share theirs."""
    numbered = (f"{name} ({number})" for number in count(2))
    candidates = chain([name, f"{name} ({_severity(rule)})"], numbered)
    return next(candidate for candidate in candidates if candidate not in entries)


def _converted(
    rule: Mapping[str, Any], named: Mapping[str, Metric]
) -> tuple[RuleRequest, Mapping[str, str]]:
    """Return a rule of ours, and our tag for labels that have another name in it."""
    if _get(rule, "alert") is None:
        kind = "a recording rule" if _get(rule, "record") else "no alerting rule"
        raise ValueError(f"it is {kind}: only alerting rules are supported")
    unknown = sorted(str(key) for key in rule if key not in _KEYS)
    if unknown:
        raise ValueError(f"the key {unknown[0]!r} is not supported")
    if not _labels_of(rule).keys() - {"severity"}:
        # A threshold has no labels of its own.
        with suppress(ValueError, InvalidInputError):
            return _convert(rule, named), {}
    return _in_promql(rule)


def _in_promql(rule: Mapping[str, Any]) -> tuple[RuleRequest, Mapping[str, str]]:
    text = str(rule.get("expr")).strip()
    mapped = onto_our_metrics(parse(text))
    promql, renamed = mapped or (on_one_line(text), {})
    labels = {
        name: text
        for name, text in _labels_of(rule).items()
        if name != "severity" and "{{" not in text
    }
    request = RuleRequest(
        name=str(rule["alert"]),
        promql=promql,
        labels=labels,
        for_seconds=_seconds(rule.get("for")),
        keep_firing_seconds=_seconds(rule.get("keep_firing_for")),
    )
    values: dict[str, Any] = {f"{_severity(rule)}_threshold": 0.0}
    return replace(request, **values), renamed


def _labels_of(rule: object) -> dict[str, str]:
    labels = _get(rule, "labels")
    return (
        {str(name): str(text) for name, text in labels.items()}
        if isinstance(labels, Mapping)
        else {}
    )


def _lost_labels(rule: object, request: RuleRequest) -> list[str]:
    """Return the labels that a rule of ours has not; templates would make new alerts each time."""
    lost = _labels_of(rule).keys() - request.labels.keys() - {"severity"}
    return [f"label {name} (a template)" for name in sorted(lost)]


def _annotation(rule: object, renamed: Mapping[str, str]) -> tuple[str, list[str]]:
    annotations = _get(rule, "annotations")
    return annotation_of(annotations, renamed) if isinstance(annotations, Mapping) else ("", [])


def _check(entry: RuleEntry) -> None:
    """Check that the entry can be applied as it is written."""
    request = replace(
        parse_expression(entry.expression), name=entry.name, annotation=entry.annotation
    )
    errors = rule_errors(request)
    if errors:
        raise ValueError(" ".join(text for texts in errors.values() for text in texts))


def _convert(rule: Mapping[str, Any], named: Mapping[str, Metric]) -> RuleRequest:
    expression = str(rule.get("expr"))
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"the expression is longer than {MAX_LENGTH} characters")
    text, conjunction, other = _split(expression, _AND)
    values = _condition(text, named, severity=_severity(rule))
    if conjunction is not None:
        second = _condition(other, named, severity=Severity.WARNING)
        if conjunction["by"] is not None:
            second["group_by"] = _labels(conjunction["by"])
        # A condition is written as an expression, which has tags of its own.
        condition = rule_expression(RuleRequest(name="", **second))
        values["and_condition"] = condition
    request = with_canonical_parts(
        RuleRequest(
            name=str(rule["alert"]),
            for_seconds=_seconds(rule.get("for")),
            keep_firing_seconds=_seconds(rule.get("keep_firing_for")),
            **values,
        )
    )
    errors = rule_errors(request)
    if errors:
        raise ValueError(" ".join(text for texts in errors.values() for text in texts))
    return request


def _condition(text: str, named: Mapping[str, Metric], *, severity: str) -> dict[str, Any]:
    """Return the fields of a rule for `LEFT > 5`, `LEFT / RIGHT > 5` or `LEFT > 5 * RIGHT`."""
    left, sign, level = _split(text, _COMPARISON)
    if sign is None or sign[0] not in set(Comparison):
        raise ValueError("the expression must compare with a number: > >= < <= == or !=")
    left, operator, right = _split(left, _ARITHMETIC)
    sign_of_right = None if operator is None else operator[0]
    factor = _FACTOR.match(level)
    if factor is not None and operator is None:
        # Of positive values, as metrics are.
        level, sign_of_right, right = factor[1], "/", level[factor.end() :]
    if _NUMBER.fullmatch(level.strip()) is None:
        raise ValueError(f"{level.strip()!r} is not a number to compare with")
    values = _operand(left, named)
    if values.pop("offset_seconds"):
        raise ValueError("only what is compared with can have an offset")
    if sign_of_right is not None:
        inner = _operand(right, named)
        offset_seconds = inner.pop("offset_seconds")
        comparand = Comparand(
            Operator(sign_of_right), RuleRequest(name="", **inner), offset_seconds
        )
        values["compared_with"] = comparand_text(comparand)
    return values | {"comparison": Comparison(sign[0]), f"{severity}_threshold": float(level)}


def _operand(text: str, named: Mapping[str, Metric]) -> dict[str, Any]:
    """Return the fields of a rule for an aggregate over time, alone or by labels."""
    outer, by, call = _grouping(text.strip())
    metric = named.get(call["metric"])
    if metric is None:
        raise ValueError(f"the portal has no metric {call['metric']!r}")
    filters, matchers = _matchers(call["matchers"] or "")
    return {
        "measurement": metric.measurement,
        "field": metric.field,
        "aggregate": _aggregate(call, outer),
        "window_seconds": _seconds(call["window"]),
        "offset_seconds": _seconds(call["offset"]),
        "group_by": [tag for tag in metric.tags if tag != TENANT_TAG] if by is None else by,
        "filters": filters,
        "matchers": matchers,
    }


def _split(text: str, separator: re.Pattern[str]) -> tuple[str, re.Match[str] | None, str]:
    """Return what is before and after the first separator outside of parentheses and quotes."""
    depth, at = 0, 0
    while at < len(text):
        quoted = _QUOTED.match(text, at)
        match = separator.match(text, at)
        if quoted is not None:
            at = quoted.end()
        elif match is not None and not depth:
            return text[:at], match, text[match.end() :]
        else:
            depth += (text[at] in "([{") - (text[at] in ")]}")
            at += 1
    return text, None, ""


def _grouping(text: str) -> tuple[str | None, list[str] | None, re.Match[str]]:
    grouped = _GROUPED.fullmatch(text)
    inner = text if grouped is None else grouped["call"] or grouped["call_before"]
    call = _CALL.fullmatch(inner)
    if call is None:
        raise ValueError("only FUNCTION_over_time(METRIC[5m]), alone or in FUNCTION by (...) (...)")
    if grouped is None:
        return None, None, call
    by = grouped["by"] if grouped["by"] is not None else grouped["by_after"]
    return grouped["outer"], _labels(by), call


def _labels(text: str) -> list[str]:
    return [label.strip() for label in text.split(",") if label.strip()]


def _aggregate(call: re.Match[str], outer: str | None) -> str:
    function = call["function"]
    if outer is not None and (outer != function or outer not in _OUTER):
        raise ValueError(f"{outer} of {function}_over_time has no equivalent")
    if function == "quantile" and float(call["quantile"] or 0) in _QUANTILES:
        return _QUANTILES[float(call["quantile"])]
    if function not in _FUNCTIONS:
        raise ValueError(f"{function}_over_time has no equivalent")
    return function


def _matchers(text: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the filters and the matchers of a rule for those of a selector."""
    filters: dict[str, list[str]] = {}
    matchers: list[str] = []
    while text.strip():
        match = _MATCHER.match(text)
        if match is None:
            raise ValueError(f"the matchers {text!r} are not supported")
        label, operator, quoted = match.groups()
        value = json.loads(quoted)
        is_list = operator == "=~" and _PLAIN_ALTERNATIVES.fullmatch(value)
        if label not in filters and (operator == "=" or is_list):
            filters[label] = value.split("|") if is_list else [value]
        else:
            matchers.append(f"{label}{operator}{value}")
        text = text[match.end() :].removeprefix(",")
    return filters, matchers


def _severity(rule: object) -> str:
    severity = _get(_get(rule, "labels"), "severity")
    return _SEVERITIES.get(severity, Severity.WARNING)


def _seconds(text: object) -> float:
    return parse_duration(re.sub(r"(\d+)w", lambda match: f"{int(match[1]) * 7}d", str(text or 0)))


def _get(node: object, key: str) -> Any:  # noqa: ANN401 - any YAML
    return node.get(key) if isinstance(node, Mapping) else None
