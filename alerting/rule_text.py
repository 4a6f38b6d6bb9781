"""Rules as one line of text, parsed and printed.

    avg(gpu.temperature_celsius{gpu="0"|"1"}) over 5m by appliance, gpu
        > 85 °C reset 80 °C, critical > 95 °C for 2m keep_firing_for 10m no_data alert every 1m
    forecast(disk.used_bytes / disk.total_bytes) ahead 1d over 6h by mount > 0.95

The clauses after the metric may have any order; what is left out has its default. `a.b` is the
field `b` of the measurement `a`; a name that is a keyword, or a measurement with a dot, is quoted.
"""

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn

from alerting.rule_request import ANY_VALUE, RuleRequest
from alerting.states import FUNCTIONS, Comparison, NoDataPolicy, Operator, Severity
from core.errors import InvalidInputError
from core.quantities import format_duration, format_size, parse_duration, parse_value, unit_of
from timeseries.store import APPLIANCE_TAG, Aggregate

if TYPE_CHECKING:  # commands parse rules without the server's packages
    from alerting.models import Rule

EXAMPLE = "avg(gpu.temperature_celsius) over 5m by appliance, gpu > 85"
MAX_LENGTH = 4000
_BINARY_STEP = 1024
_MINUTE_SECONDS = 60
_CLAUSES = ("over", "ahead", "by", "for", "keep_firing_for", "no_data", "every")
_KEYWORDS = frozenset({*_CLAUSES, *Severity, "reset"})
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BARE_VALUE = re.compile(r'[^\s,|{}()"=]+')
_OPERATOR = re.compile(r"[+*/-]")
_COMPARISON = re.compile(r"[<>=!]+")
_KEYWORD = "|".join(sorted(_KEYWORDS))
_VALUE = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    rf"(?:\s*(?!(?:{_KEYWORD})\b)[A-Za-z°%/]+)?"
)
_DURATION = re.compile(
    r"[0-9]+(?:\.[0-9]+)?\s*[smhd](?:\s*[0-9]+(?:\.[0-9]+)?\s*[smhd])*(?![A-Za-z])"
)


def rule_expression(rule: "Rule | RuleRequest") -> str:
    """Return the text of a rule, without its name, receivers and whether it is enabled."""
    filters = ", ".join(
        f"{_name(tag)}={'|'.join(map(_filter_text, values))}"
        for tag, values in sorted(rule.filters.items())
    )
    metric = metric_text(rule) + (f"{{{filters}}}" if filters else "")
    thresholds = [
        f"{'critical ' * (severity is Severity.CRITICAL)}{rule.comparison} "
        + " reset ".join(_printed(rule, value) for value in (threshold, reset) if value is not None)
        for severity, threshold, reset in (
            (Severity.WARNING, rule.warning_threshold, rule.warning_reset),
            (Severity.CRITICAL, rule.critical_threshold, rule.critical_reset),
        )
        if threshold is not None
    ]
    parts = [
        f"{rule.aggregate}({metric})",
        *([f"ahead {_duration(rule.ahead_seconds)}"] if rule.ahead_seconds else []),
        f"over {_duration(rule.window_seconds)}",
        f"by {', '.join(map(_name, group_tags(rule)))}",
        ", ".join(thresholds),
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


def parse_expression(text: str) -> RuleRequest:
    """Return the rule of a text, without a name; its values are not validated yet.

    Raises:
        InvalidInputError: names the column and what is expected there.
    """
    return RuleRequest(name="", **_Parser(text).rule())


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
    return _Parser(text).metric()


def unit_field(rule: "Rule | RuleRequest") -> str:
    """Return the name of a field with the unit of the rule's values; see `core.quantities`."""
    if rule.aggregate == Aggregate.COUNT or rule.operator in {Operator.TIMES, Operator.DIVIDED_BY}:
        return ""
    return rule.field + ("_per_second" if rule.aggregate == Aggregate.RATE else "")


def group_tags(rule: "Rule | RuleRequest") -> tuple[str, ...]:
    """Return the tags that split a rule's series: its own, and always `appliance`."""
    return tuple(dict.fromkeys((APPLIANCE_TAG, *rule.group_by)))


def _filter_text(value: str) -> str:
    return value if value == ANY_VALUE else json.dumps(value, ensure_ascii=False)


def _name(tag: str) -> str:
    return json.dumps(tag) if tag in _KEYWORDS else tag


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


class _Parser:
    """Reads a text from left to right; `_at` is the position of what comes next."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            self._fail(f"the expression is longer than {MAX_LENGTH} characters", at=MAX_LENGTH)
        self._text = text
        self._at = 0
        self._found: dict[str, Any] = {}

    def metric(self) -> dict[str, Any]:
        """Read a text that is only a metric."""
        self._read_fields()
        if self._next() < len(self._text):
            self._expected("one of + - * / and a second metric")
        return self._found

    def rule(self) -> dict[str, Any]:
        """Read the whole text; return the fields of a rule request."""
        self._read_metric()
        while (start := self._next()) < len(self._text):
            has_comma = self._take(",")
            self._next()
            if self._is_comparison():
                self._read_threshold()
            elif has_comma:
                self._expected("a threshold such as 'critical > 95'")
            else:
                self._read_clause(start)
        if not {"warning_threshold", "critical_threshold"} & self._found.keys():
            self._expected("a threshold such as '> 85'")
        return self._found

    def _read_metric(self) -> None:
        start = self._next()
        aggregate = self._match(_WORD) or self._expected(f"a function such as in '{EXAMPLE}'")
        if aggregate not in FUNCTIONS:
            self._fail(f"unknown function {aggregate!r}; use {', '.join(FUNCTIONS)}", at=start)
        self._found["aggregate"] = aggregate
        self._require("(", "'('")
        self._read_fields()
        if self._take("{"):
            self._found["filters"] = self._filters()
        self._require(")", "')'")

    def _read_fields(self) -> None:
        measurement, self._found["field"] = self._read_field()
        self._found["measurement"] = measurement
        start = self._next()
        operator = self._match(_OPERATOR)
        if operator:
            start = self._next()
            other, self._found["other_field"] = self._read_field()
            self._found["operator"] = operator
            if other != measurement:
                self._fail(f"both fields must be of {measurement!r}", at=start)

    def _read_field(self) -> tuple[str, str]:
        self._next()
        if (quoted := self._quoted()) is not None:
            self._require(".", "'.' and a field")
            measurement, field = quoted, self._match(_WORD) or self._expected("a field")
        else:
            start = self._at
            metric = self._match(_WORD) or self._expected("a metric such as gpu.power_watts")
            measurement, _, field = metric.partition(".")
            if not field:
                self._fail(
                    f"{metric!r} is not a metric; use MEASUREMENT.FIELD, such as gpu.power_watts",
                    at=start,
                )
        return measurement, field

    def _filters(self) -> dict[str, list[str]]:
        filters: dict[str, list[str]] = {}
        while not self._take("}"):
            if filters:
                self._require(",", "',' or '}'")
            start = self._next()
            tag = self._tag()
            if tag in filters:
                self._fail(f"the filter on {tag!r} is repeated; join values with '|'", at=start)
            self._require("=", "'=' and a value")
            filters[tag] = [self._filter_value()]
            while self._take("|"):
                filters[tag].append(self._filter_value())
        return filters

    def _filter_value(self) -> str:
        self._next()
        quoted = self._quoted()
        return self._match(_BARE_VALUE) or self._expected("a value") if quoted is None else quoted

    def _read_clause(self, start: int) -> None:
        clause = self._match(_WORD)
        if clause not in _CLAUSES:
            self._at = start
            self._expected(f"a threshold such as '> 85', or {', '.join(_CLAUSES)}")
        name = {
            "over": "window_seconds",
            "by": "group_by",
            "for": "for_seconds",
            "keep_firing_for": "keep_firing_seconds",
            "no_data": "no_data",
            "ahead": "ahead_seconds",
            "every": "interval_seconds",
        }[clause]
        if name in self._found:
            self._fail(f"{clause!r} is repeated", at=start)
        if clause == "by":
            self._found[name] = self._tags()
        elif clause == "no_data":
            self._found[name] = self._policy()
        else:
            self._next()
            duration = self._match(_DURATION) or self._expected("a duration such as 30s, 5m or 1h")
            self._found[name] = self._seconds(duration)

    def _tags(self) -> tuple[str, ...]:
        tags = [self._tag()]
        while True:
            before = self._at
            if not self._take(","):
                return tuple(dict.fromkeys(tags))
            self._next()
            if self._is_comparison():
                self._at = before
                return tuple(dict.fromkeys(tags))
            tags.append(self._tag())

    def _tag(self) -> str:
        start = self._next()
        quoted = self._quoted()
        if quoted is not None:
            return quoted
        tag = self._match(_WORD) or self._expected("a tag such as gpu")
        if tag in _KEYWORDS:
            self._fail(f"expected a tag; quote {tag!r} if it is one", at=start)
        return tag

    def _policy(self) -> NoDataPolicy:
        start = self._next()
        word = self._match(_WORD) or ""
        try:
            return NoDataPolicy(word)
        except ValueError:
            self._at = start
            self._expected(" or ".join(NoDataPolicy))

    def _is_comparison(self) -> bool:
        """Whether a threshold comes next: `> 85` or `critical > 95`."""
        severities = "|".join(Severity)
        is_next = re.compile(rf"(?:(?:{severities})\s*)?[<>=!]").match(self._text, self._at)
        return is_next is not None

    def _read_threshold(self) -> None:
        start = self._at
        severity = self._match(_WORD) or Severity.WARNING
        if f"{severity}_threshold" in self._found:
            self._fail(f"the {severity} threshold is repeated", at=start)
        self._found["comparison"] = self._comparison()
        self._found[f"{severity}_threshold"] = self._value()
        self._next()
        if self._text.startswith("reset", self._at):
            self._match(_WORD)
            self._found[f"{severity}_reset"] = self._value()

    def _comparison(self) -> Comparison:
        start = self._next()
        sign = self._match(_COMPARISON)
        if sign not in set(Comparison):
            self._fail(f"{sign!r} is not supported; use > or <", at=start)
        if self._found.get("comparison", sign) != sign:
            self._fail("both thresholds need the same comparison", at=start)
        return Comparison(sign)

    def _value(self) -> float:
        start, field = self._next(), unit_field(RuleRequest(name="", **self._found))
        duration = self._match(_DURATION) if unit_of(field).symbol == "s" else ""
        if duration:
            return self._seconds(duration)
        text = self._match(_VALUE) or self._expected("a number such as 85")
        try:
            return parse_value(field, text)
        except ValueError as error:
            self._fail(str(error), at=start)

    def _seconds(self, duration: str) -> float:
        try:
            return parse_duration(duration)
        except ValueError as error:
            self._fail(str(error), at=self._at - len(duration))

    def _next(self) -> int:
        """Skip white space; return the position."""
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._at

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[0]

    def _quoted(self) -> str | None:
        start = self._at
        text = self._match(_QUOTED)
        try:
            return str(json.loads(text, strict=False)) if text else None
        except ValueError:
            self._fail("the quoted text has an invalid escape", at=start)

    def _take(self, sign: str) -> bool:
        self._next()
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _require(self, sign: str, what: str) -> None:
        if not self._take(sign):
            self._expected(what)

    def _expected(self, what: str) -> NoReturn:
        rest = self._text[self._at :].split(maxsplit=1)
        got = f"got {rest[0][:40]!r}" if rest else "but the text ends"
        self._fail(f"expected {what}, {got}", at=self._at)

    def _fail(self, message: str, *, at: int) -> NoReturn:
        text = f"Column {at + 1}: {message}."
        raise InvalidInputError(text, errors={"expression": [text]})
