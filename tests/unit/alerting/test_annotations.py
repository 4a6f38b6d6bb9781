"""Annotations: templates of a sentence, which can't take the server's time or memory."""

import pytest

from alerting.language.annotations import annotation_errors, render_annotation
from tests.costs import check_cost

VALUES: dict[str, object] = {
    "value": 7260.0,
    "value_text": "2h 1m",
    "severity": "critical",
    "labels": {"appliance": "gpu-01", "gpu": "3"},
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("", ""),
        (
            "GPU {{ labels.gpu }} of {{ labels.appliance }}: {{ value_text }}",
            "GPU 3 of gpu-01: 2h 1m",
        ),
        ("{{ (value / 3600)|round|int }} hours", "2 hours"),
        ("{{ value * 2 }}", "14520.0"),
        ("{% if labels.mount %}{{ labels.mount }}{% else %}no mount{% endif %}", "no mount"),
        ("{{ 'page' if severity == 'critical' else 'look' }}", "page"),
        ("{{ labels.__class__.__mro__ }}", ""),
    ],
)
def test_an_annotation_is_a_sentence_with_values(template: str, text: str) -> None:
    assert annotation_errors(template) == []
    assert render_annotation(template, VALUES).startswith(text)


@pytest.mark.parametrize(
    "template",
    [
        "{{ labels.gpu",
        "{% for i in range(100000) %}x{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{{ 10 ** 1000000 }}",
        "{{ labels.gpu.upper() }}",
        "{% macro m() %}{{ m() }}{% endmacro %}",
        "{% set x = 1 %}",
        "{{ 'aa'|center(100000000) }}",
        "{% include 'rules.html' %}",
        "{{ 1|round(2500000,'ceil') }}",
        "{{ 10|int|round(-2500000) }}",
        "{{ 1|round(true ~ 2500000) }}",
        "{{ 1|round('x' * 1000000000) }}",
        "{{ value" + "+value" * 160 + " }}",
        "{{ " + "(" * 490 + "1" + ")" * 490 + " }}",
        "{{ value" + ".a" * 400 + " }}",
        "{{ " + "-" * 900 + "1 }}",
        "{{ " + "[" * 900 + " }}",
        "{{ 1e999|int }}",
        "{{ value < " + "9" * 900 + " }}",
        "{{ a" + "~a" * 490 + " }}",
        r'{{ "\ud800" }}',
        "x" * 1001,
    ],
)
def test_what_is_no_sentence_is_refused(template: str) -> None:
    def annotate() -> None:
        assert len(annotation_errors(template)) == 1
        assert render_annotation(template, VALUES) == template

    check_cost(annotate)


def test_a_filter_reads_no_more_of_a_text_than_an_annotation_shows() -> None:
    labels = {f"label_{number}": "gpu node " * 1000 for number in range(50)}
    template = "{{ (" + "labels~" * 100 + "labels)" + "|title" * 10 + " }}"
    assert annotation_errors(template) == []
    check_cost(lambda: render_annotation(template, VALUES | {"labels": labels}))


def test_an_annotation_that_fails_shows_itself_with_the_error() -> None:
    assert "ZeroDivisionError" in render_annotation("{{ value / 0 }}", VALUES)
