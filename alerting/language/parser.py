"""The parser of rules as text; the text is that of `rule_text`, which has the examples."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from alerting.language.matchers import Matcher, split_matcher
from alerting.rule_request import LEVEL_FIELDS, RuleRequest, unit_field
from alerting.states import FUNCTIONS, Comparison, NoDataPolicy, Operator, Severity
from core.errors import InvalidInputError
from core.quantities import parse_duration, parse_value, unit_of

EXAMPLE = "avg(gpu.temperature_celsius) over 5m by appliance, gpu > 85"
MAX_LENGTH = 4000
CLAUSES = {
    "over": "window_seconds",
    "ahead": "ahead_seconds",
    "by": "group_by",
    "for": "for_seconds",
    "keep_firing_for": "keep_firing_seconds",
    "no_data": "no_data",
    "every": "interval_seconds",
}
_COMPARAND_CLAUSES = {"over": "window_seconds", "offset": "offset_seconds"}
_PROMQL_CLAUSES = {name: CLAUSES[name] for name in ("for", "keep_firing_for", "every")}
_CONDITION_CLAUSES = ("over", "ahead", "by")
KEYWORDS = frozenset({*CLAUSES, *Severity, "reset", "and", "offset"})
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_PROMQL = re.compile(r"promql\s*\(")
_NO_PARENTHESIS = re.compile(
    r"(?:[^()\"'`]|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`)+", re.DOTALL
)
_PARENTHESIS = re.compile(r"[()]")
_BARE_VALUE = re.compile(r'[^\s,|{}()"=]+')
_OPERATOR = re.compile(r"[+*/-]")
_AND = re.compile(r"and\b")
_TAG_OPERATOR = re.compile(r"=~|!~|!=|=")
_COMPARISON = re.compile(r"[<>=!]+")
_KEYWORD = "|".join(sorted(KEYWORDS))
_VALUE = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    rf"(?:\s*(?!(?:{_KEYWORD})\b)[A-Za-z°%/]+)?"
)
_DURATION = re.compile(
    r"[0-9]+(?:\.[0-9]+)?\s*[smhd](?:\s*[0-9]+(?:\.[0-9]+)?\s*[smhd])*(?![A-Za-z])"
)


class ExpressionParser:
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

    def selector(self) -> dict[str, Any]:
        """Read a text that is only a metric with filters."""
        self._read_selector()
        if self._next() < len(self._text):
            self._expected("the end of the series")
        return self._found

    def rule(self) -> dict[str, Any]:
        """Read the whole text; return the fields of a rule request."""
        self._next()
        if self._match(_PROMQL):
            return self._read_promql()
        self._read_metric()
        while (start := self._next()) < len(self._text):
            has_comma = self._take(",")
            self._next()
            if self._is_comparison():
                if "and_condition" in self._found:
                    self._fail("the thresholds of the rule come before 'and'", at=self._at)
                self._read_threshold()
            elif has_comma:
                self._expected("a threshold such as 'critical > 95'")
            elif self._match(_AND):
                self._read_once("and_condition", self._read_condition, at=start)
            elif _OPERATOR.match(self._text, self._at):
                self._read_once("compared_with", self._read_comparand, at=start)
            else:
                self._read_clause(start)
        if not self._found.keys() & set(LEVEL_FIELDS):
            self._expected("a threshold such as '> 85'")
        return self._found

    def comparand(self) -> tuple[Operator, dict[str, Any]]:
        """Read a text that is only an operator and another aggregate, and what is read of it."""
        self._next()
        comparand = self._read_comparand()
        if self._next() < len(self._text):
            self._expected("'over' or 'offset'")
        return comparand

    def condition(self) -> dict[str, Any]:
        """Read a text that is only a condition: an aggregate and a threshold."""
        fields = self._read_condition()
        if self._next() < len(self._text):
            self._expected("'over', 'by' or 'ahead'")
        return fields

    def _read_promql(self) -> dict[str, Any]:
        """Read a rule in PromQL after its opening parenthesis."""
        opened_at, depth = self._at - 1, 1
        while depth:
            sign = self._match(_NO_PARENTHESIS) or self._match(_PARENTHESIS)
            if not sign:
                self._fail("this parenthesis is not closed", at=opened_at)
            depth += {"(": 1, ")": -1}.get(sign, 0)
        self._found["promql"] = self._text[opened_at + 1 : self._at - 1].strip()
        while (start := self._next()) < len(self._text):
            word = self._word_ahead()
            if word in set(Severity) and not self._found.keys() & set(LEVEL_FIELDS):
                self._match(_WORD)
                self._found[f"{word}_threshold"] = 0.0
            elif word == "labels" and "labels" not in self._found:
                self._match(_WORD)
                self._found["labels"] = self._read_labels()
            elif word in _PROMQL_CLAUSES:
                self._read_clause(start, _PROMQL_CLAUSES)
            else:
                self._expected(f"a severity, labels, {', '.join(_PROMQL_CLAUSES)} or the end")
        if not self._found.keys() & set(LEVEL_FIELDS):
            self._found["warning_threshold"] = 0.0
        return self._found

    def _read_labels(self) -> dict[str, str]:
        labels: dict[str, str] = {}
        self._require("{", "'{'")
        while not self._take("}"):
            if labels:
                self._require(",", "',' or '}'")
            name = self._tag()
            self._require("=", "'='")
            labels[name] = self._filter_value()
        return labels

    def _read_once(self, name: str, read: Callable[[], object], *, at: int) -> None:
        """Read a part of the text, and find the text itself."""
        if name in self._found:
            self._fail("the expression has a part of this kind already", at=at)
        start = self._next()
        read()
        self._found[name] = self._text[start : self._at].strip()

    def _read_comparand(self) -> tuple[Operator, dict[str, Any]]:
        sign = self._match(_OPERATOR) or self._expected("one of + - * /")
        with self._apart() as fields:
            self._read_metric()
            while self._word_ahead() in _COMPARAND_CLAUSES:
                self._read_clause(self._next(), _COMPARAND_CLAUSES)
        return Operator(sign), fields

    def _read_condition(self) -> dict[str, Any]:
        with self._apart() as fields:
            self._read_metric()
            while True:
                start = self._next()
                if self._is_comparison() and "warning_threshold" not in fields:
                    self._read_threshold()
                elif _OPERATOR.match(self._text, self._at):
                    self._read_once("compared_with", self._read_comparand, at=start)
                elif self._word_ahead() in _CONDITION_CLAUSES:
                    self._read_clause(start)
                else:
                    break
            if "warning_threshold" not in fields:
                self._expected("a threshold such as '> 85'")
            if "warning_reset" in fields:
                self._fail("a second condition has no 'reset'", at=start)
        return fields

    @contextmanager
    def _apart(self) -> Iterator[dict[str, Any]]:
        """Find what is read meanwhile apart from the rule."""
        rule, self._found = self._found, {}
        try:
            yield self._found
        finally:
            self._found = rule

    def _word_ahead(self) -> str:
        match = _WORD.match(self._text, self._next())
        return "" if match is None else match[0]

    def _read_metric(self) -> None:
        start = self._next()
        aggregate = self._match(_WORD) or self._expected(f"a function such as in '{EXAMPLE}'")
        if aggregate not in FUNCTIONS:
            self._fail(f"unknown function {aggregate!r}; use {', '.join(FUNCTIONS)}", at=start)
        self._found["aggregate"] = aggregate
        self._require("(", "'('")
        self._read_selector()
        self._require(")", "')'")

    def _read_selector(self) -> None:
        self._read_fields()
        if self._take("{"):
            self._read_filters()

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

    def _read_filters(self) -> None:
        filters: dict[str, list[str]] = {}
        matchers: list[str] = []
        while not self._take("}"):
            if filters or matchers:
                self._require(",", "',' or '}'")
            start = self._next()
            tag = self._tag()
            self._next()
            sign = self._match(_TAG_OPERATOR) or self._expected("'=', !=, =~ or !~ and a value")
            if sign != "=":
                matchers.append(self._matcher(tag, sign))
                continue
            if tag in filters:
                self._fail(f"the filter on {tag!r} is repeated; join values with '|'", at=start)
            filters[tag] = [self._filter_value()]
            while self._take("|"):
                filters[tag].append(self._filter_value())
        self._found |= {"filters": filters} if filters else {}
        self._found |= {"matchers": tuple(matchers)} if matchers else {}

    def _matcher(self, tag: str, sign: str) -> str:
        start = self._next()
        matcher = Matcher(tag, sign, self._filter_value())
        if split_matcher(str(matcher)) != matcher:
            self._fail("the value must not begin or end with a space, or be in quotes", at=start)
        return str(matcher)

    def _filter_value(self) -> str:
        self._next()
        quoted = self._quoted()
        return self._match(_BARE_VALUE) or self._expected("a value") if quoted is None else quoted

    def _read_clause(self, start: int, clauses: Mapping[str, str] = CLAUSES) -> None:
        clause = self._match(_WORD)
        if clause not in clauses:
            self._at = start
            self._expected(f"a threshold such as '> 85', or {', '.join([*CLAUSES, 'and'])}")
        name = clauses[clause]
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
        if tag in KEYWORDS:
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
        """Return whether a threshold comes next: `> 85` or `critical > 95`."""
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
            self._fail(f"{sign!r} is not supported; use one of {' '.join(Comparison)}", at=start)
        if self._found.get("comparison", sign) != sign:
            self._fail("all thresholds need the same comparison", at=start)
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
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[0]

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

    def _require(self, sign: str, expected: str) -> None:
        if not self._take(sign):
            self._expected(expected)

    def _expected(self, expected: str) -> NoReturn:
        words = self._text[self._at :].split(maxsplit=1)
        got = f"got {words[0][:40]!r}" if words else "but the text ends"
        self._fail(f"expected {expected}, {got}", at=self._at)

    def _fail(self, message: str, *, at: int) -> NoReturn:
        text = f"Column {at + 1}: {message}."
        raise InvalidInputError(text, errors={"expression": [text]})
