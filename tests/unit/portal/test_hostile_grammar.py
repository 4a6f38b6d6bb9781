"""Inputs of all grammars that users write: none takes long, much memory, or fails with a 500.

A few inputs, the same ones, in every run, and many others each night.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from alerting.compatibility.prometheus_rules import Metric, convert_rules
from alerting.language.annotations import annotation_errors, render_annotation
from alerting.language.checks import rule_errors
from alerting.language.matchers import parse_matcher
from alerting.language.text import parse_expression
from core.clock import to_ns
from core.errors import VedetteError
from core.quantities import parse_duration, parse_size, parse_value
from core.schedule_times import check_schedule, times_between
from core.untrusted_yaml import load_untrusted_yaml
from dash_app.callback_requests import MAX_TEXT_LENGTH
from dash_app.parameters import parameter_problem
from dash_app.routes import parse_path
from dash_app.timerange import Controls
from jobqueue.jobs.relations import parse_array
from tests import hostile_grammars as grammars
from tests.costs import check_cost
from tests.unit.portal.conftest import Browser
from timeseries.influxql.columns import check_columns
from timeseries.influxql.conditions import divided
from timeseries.influxql.parser import parse as parse_influxql
from timeseries.influxql.syntax import Select

pytestmark = pytest.mark.timeout(900)

FEW, MANY = 12, 2000
NOW, LATER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
VALUES: dict[str, object] = {
    "value": 1e300,
    "value_text": "x" * 5000,
    "labels": {f"label_{number}": "gpu node " * 200 for number in range(30)},
}
Parse = Callable[[str], object]


def _annotate(text: str) -> None:
    annotation_errors(text)
    render_annotation(text, VALUES)


def _schedule(text: str) -> None:
    check_schedule(text)
    list(times_between(text, "America/New_York", first=NOW, until=LATER, max_count=20))


def _quantities(text: str) -> None:
    for parse in (parse_size, parse_duration, parse_array, lambda part: parse_value("b", part)):
        refusing(parse)(text)


def _address(text: str) -> None:
    short = text[:MAX_TEXT_LENGTH]
    Controls.parse(short)
    parameter_problem(short, names=["gpu"])
    parse_path(short)


def _prometheus(text: str) -> None:
    metrics = [Metric("gpu", "temperature_celsius", ["gpu"])]
    convert_rules([{"rules": [{"alert": "a", "expr": text}]}], metrics)


def _influxql(text: str) -> None:
    for statement in parse_influxql(text):
        divided(statement.condition, now_ns=to_ns(NOW))
        if isinstance(statement, Select):
            check_columns(statement)


def refusing(parse: Parse) -> Parse:
    """Return a parser whose own errors are right answers; Python's limit of digits is not."""

    def call(text: str) -> str:
        try:
            parse(text)
        except (ValueError, VedetteError) as error:
            return str(error)
        return ""

    return call


GRAMMARS: dict[str, tuple[grammars.Texts, Parse]] = {
    "annotation": (grammars.TEMPLATES, _annotate),
    "expression": (grammars.EXPRESSIONS.map(lambda text: "{{" + text + "}}"), _annotate),
    "rule": (grammars.RULES, lambda text: rule_errors(parse_expression(text))),
    "schedule": (grammars.SCHEDULES, _schedule),
    "YAML": (grammars.YAML, load_untrusted_yaml),
    "matcher": (grammars.MATCHERS, parse_matcher),
    "quantity": (grammars.QUANTITIES, _quantities),
    "address": (grammars.ADDRESSES, _address),
    "Prometheus rule": (grammars.PROMQL, _prometheus),
    "InfluxQL": (grammars.INFLUXQL, _influxql),
}


def for_each(texts: grammars.Texts, check: Callable[[str], None], *, examples: int) -> None:
    """Call a check with so many texts."""

    @settings(
        max_examples=examples,
        derandomize=examples <= FEW,
        database=None,
        deadline=None,
        phases=[Phase.generate] if examples <= FEW else [Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(text=texts)
    def checked(text: str) -> None:
        check(text)

    checked()


@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", GRAMMARS)
def test_no_text_of_a_grammar_takes_long(name: str, examples: int) -> None:
    texts, parse = GRAMMARS[name]

    def check(text: str) -> None:
        assert "set_int_max_str_digits" not in str(refusing(parse)(text))
        check_cost(lambda: refusing(parse)(text))

    for_each(texts, check, examples=examples)


@pytest.mark.parametrize("examples", [6, pytest.param(MANY // 10, marks=pytest.mark.nightly)])
def test_no_text_of_a_grammar_is_an_error_of_the_server(alice: Browser, examples: int) -> None:
    def preview(**fields: str) -> int:
        body = {"expression": "avg(gpu.power_watts) over 5m > 1", **fields}
        return alice.call("POST", "/api/v1/rules/preview", body).status_code

    def load(text: str) -> int:
        return alice.post("/custom-dashboards/import", {"text": text}).status_code

    def get(path: str, query: str) -> int:
        # nginx accepts request lines of this length.
        return alice.get(f"{path}?{quote(query[:MAX_TEXT_LENGTH], safe='=&%')}").status_code

    requests: list[tuple[grammars.Texts, Callable[[str], int]]] = [
        (grammars.TEMPLATES, lambda text: preview(annotation=text)),
        (grammars.RULES, lambda text: preview(expression=text)),
        (grammars.YAML, load),
        (grammars.ADDRESSES, lambda text: get("/api/v1/query", text)),
        (grammars.ADDRESSES, lambda text: get("/jobs", text)),
        (grammars.ADDRESSES, lambda text: get("/alerts", text)),
    ]
    for texts, send in requests:
        for_each(texts, partial(_check_status, send), examples=examples)


def _check_status(send: Callable[[str], int], text: str) -> None:
    assert send(text) < HTTPStatus.INTERNAL_SERVER_ERROR
