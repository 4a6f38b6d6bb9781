"""Rules as one line of text, parsed and printed.

    avg(gpu.temperature_celsius{gpu="0"|"1"}) over 5m by appliance, gpu
        > 85 °C reset 80 °C, critical > 95 °C for 2m keep_firing_for 10m no_data alert every 1m
    promql(sum by (job) (rate(node_network_receive_bytes_total[5m])) > 1e9) critical for 5m
    forecast(disk.used_bytes / disk.total_bytes) ahead 1d over 6h by mount > 0.95
    avg(gpu.power_watts{gpu!="0"}) over 5m / avg(gpu.power_watts) over 1d offset 1d by gpu > 1.5
    last(disk.used_percent) by mount > 80 and change(disk.used_percent) over 1d > 10 for 5m

The clauses after the metric may have any order; what is left out has its default. `a.b` is the
field `b` of the measurement `a`; a name that is a keyword, or a measurement with a dot, is quoted.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from alerting.language.matchers import split_matcher
from alerting.language.parser import KEYWORDS, ExpressionParser
from alerting.rule_request import (
    ANY_VALUE,
    RuleRequest,
    group_tags,
    levels_of,
    promql_severity,
    unit_field,
)
from alerting.states import NoDataPolicy, Operator, Severity
from core.quantities import format_duration, format_size, parse_duration, unit_of

if TYPE_CHECKING:  # commands parse rules without the server's packages
    from alerting.models import Rule

_BINARY_STEP = 1024
_MINUTE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Comparand:
    """The aggregate to compare values with: `/ avg(gpu.power_watts) over 1d offset 1d`.

    Its window ends `offset_seconds` before the rule's. It has the rule's tags.
    """

    operator: Operator
    request: RuleRequest
    offset_seconds: float


def rule_expression(rule: "Rule | RuleRequest") -> str:
    """Return the text of a rule, without its name, receivers and whether it is enabled."""
    if rule.promql:
        return _promql_text(rule)
    thresholds = [
        f"{'' if severity is Severity.WARNING else f'{severity} '}{rule.comparison} "
        + " reset ".join(_printed(rule, value) for value in (threshold, reset) if value is not None)
        for severity, threshold, reset in levels_of(rule)
        if threshold is not None
    ]
    parts = [
        _aggregate_text(rule),
        *filter(None, [rule.compared_with]),
        f"by {', '.join(map(_name, group_tags(rule)))}",
        ", ".join(thresholds),
        *([f"and {rule.and_condition}"] if rule.and_condition else []),
    ]
    if rule.for_seconds:
        parts.append(f"for {_duration(rule.for_seconds)}")
    if rule.keep_firing_seconds:
        parts.append(f"keep_firing_for {_duration(rule.keep_firing_seconds)}")
    if rule.no_data is not NoDataPolicy.KEEP:
        parts.append(f"no_data {rule.no_data}")
    if rule.interval_seconds:
        parts.append(f"every {_duration(rule.interval_seconds)}")
    return " ".join(parts)


def _promql_text(rule: "Rule | RuleRequest") -> str:
    severity = promql_severity(rule)
    labels = ", ".join(f"{_name(name)}={_quoted(text)}" for name, text in rule.labels.items())
    clauses = {
        "for": rule.for_seconds,
        "keep_firing_for": rule.keep_firing_seconds,
        "every": rule.interval_seconds,
    }
    parts = [
        f"promql({rule.promql})",
        *([severity.value] if severity is not Severity.WARNING else []),
        *([f"labels {{{labels}}}"] if labels else []),
        *(f"{clause} {_duration(seconds)}" for clause, seconds in clauses.items() if seconds),
    ]
    return " ".join(parts)


def parse_expression(text: str) -> RuleRequest:
    """Return the rule of a text, without a name; its values are not validated yet.

    Raises:
        InvalidInputError: names the column and what is expected there.
    """
    return with_canonical_parts(RuleRequest(name="", **ExpressionParser(text).rule()))


def with_canonical_parts(rule: RuleRequest) -> RuleRequest:
    """Return a rule whose other aggregates are written as `rule_expression` writes them."""
    compared, condition = rule.compared_with, rule.and_condition
    return replace(
        rule,
        compared_with=comparand_text(parse_comparand(compared)) if compared else "",
        and_condition=_condition_text(_parse_condition(condition)) if condition else "",
    )


@lru_cache(maxsize=1000)
def parse_comparand(text: str) -> Comparand:
    """Return what `compared_with` of a rule means.

    Raises:
        InvalidInputError: names the column and what is expected there.
    """
    operator, fields = ExpressionParser(text).comparand()
    offset_seconds = fields.pop("offset_seconds", 0.0)
    return Comparand(operator, RuleRequest(name="", **fields), offset_seconds)


def condition_of(rule: "Rule | RuleRequest") -> RuleRequest | None:
    """Return the second condition of a rule as a rule; without tags of its own, it has the rule's.

    Raises:
        InvalidInputError: names the column and what is expected there.
    """
    if not rule.and_condition:
        return None
    condition = _parse_condition(rule.and_condition)
    return condition if condition.group_by else replace(condition, group_by=rule.group_by)


@lru_cache(maxsize=1000)
def _parse_condition(text: str) -> RuleRequest:
    fields = ExpressionParser(text).condition()
    return with_canonical_parts(RuleRequest(name="", **{"group_by": (), **fields}))


def other_parts(rule: "Rule | RuleRequest") -> Iterator[tuple[str, RuleRequest]]:
    """Yield the other aggregates that a rule reads, as rules by its tags, with the field's name."""
    if rule.compared_with:
        inner = parse_comparand(rule.compared_with).request
        yield "compared_with", replace(inner, group_by=rule.group_by)
    condition = condition_of(rule)
    if condition is not None:
        yield "and_condition", condition
        yield from (("and_condition", part) for _, part in other_parts(condition))


def _aggregate_text(rule: "Rule | RuleRequest") -> str:
    matchers = map(split_matcher, rule.matchers)
    filters = [
        *(
            f"{_name(tag)}={'|'.join(map(_filter_text, values))}"
            for tag, values in sorted(rule.filters.items())
        ),
        *(
            f"{_name(matcher.label)}{matcher.operator}{_quoted(matcher.value)}"
            for matcher in matchers
        ),
    ]
    metric = metric_text(rule) + (f"{{{', '.join(filters)}}}" if filters else "")
    ahead = f"ahead {_duration(rule.ahead_seconds)} " if rule.ahead_seconds else ""
    return f"{rule.aggregate}({metric}) {ahead}over {_duration(rule.window_seconds)}"


def comparand_text(comparand: Comparand) -> str:
    """Return the text that `parse_comparand` reads."""
    offset = comparand.offset_seconds
    text = f"{comparand.operator} {_aggregate_text(comparand.request)}"
    return f"{text} offset {_duration(offset)}" if offset else text


def _condition_text(condition: RuleRequest) -> str:
    by = f"by {', '.join(map(_name, condition.group_by))}" if condition.group_by else ""
    threshold = _printed(condition, condition.warning_threshold or 0.0)
    parts = (
        _aggregate_text(condition),
        condition.compared_with,
        by,
        f"{condition.comparison} {threshold}",
    )
    return " ".join(filter(None, parts))


def parse_selector(text: str) -> RuleRequest:
    """Return the metric and the filters of a text such as `gpu.power_watts{gpu="0"}`.

    Raises:
        InvalidInputError: names the column and what is expected there.
    """
    return RuleRequest(name="", **ExpressionParser(text).selector())


def metric_text(rule: "Rule | RuleRequest") -> str:
    """Return what a rule is about: a metric, or the arithmetic of two of one measurement."""
    measurement = rule.measurement if "." not in rule.measurement else json.dumps(rule.measurement)
    metric = f"{measurement}.{rule.field}"
    if not rule.operator:
        return metric
    return f"{metric} {rule.operator} {measurement}.{rule.other_field}"


def parse_metric(text: str) -> dict[str, Any]:
    """Return the fields of a rule request that `metric_text` prints.

    Raises:
        InvalidInputError: names the column and what is expected there.
    """
    return ExpressionParser(text).metric()


def _filter_text(value: str) -> str:
    return value if value == ANY_VALUE else _quoted(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _name(tag: str) -> str:
    return _quoted(tag) if tag in KEYWORDS else tag


def _duration(seconds: float) -> str:
    return _exact_duration(seconds) or f"{Decimal(repr(seconds)):f}s"


def _exact_duration(seconds: float) -> str:
    """Return the text of a duration; empty if rounding would change it."""
    text = format_duration(seconds, exact=True).replace(" ", "")
    return text if "e" not in text and parse_duration(text) == seconds else ""


def _printed(rule: "Rule | RuleRequest", value: float) -> str:
    """Return a value with its unit, exactly."""
    unit = unit_of(unit_field(rule))
    if unit.symbol == "s" and value >= _MINUTE_SECONDS and (text := _exact_duration(value)):
        return text
    if unit.is_binary and value >= 1 and float(value).is_integer():
        size = format_size(value, exact=True)
        if float(size.split()[0]) < _BINARY_STEP:  # not 976562.5 KiB for 1e9
            return size + unit.symbol.removeprefix("B")
    return f"{float(value)!r}".removesuffix(".0") + f" {unit.symbol}".rstrip()
