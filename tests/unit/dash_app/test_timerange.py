from datetime import timedelta

import pytest

from core.clock import NS_PER_SECOND, to_ns
from dash_app.timerange import RANGES, Controls, span_between, step_seconds
from tests.cast import NOON


def test_the_query_string_is_read_back_as_it_was_written() -> None:
    controls = Controls(range_key="6h", refresh_key="off")
    assert Controls.parse(controls.search) == controls


@pytest.mark.parametrize("search", [None, "", "?range=9y&refresh=now", "?range="])
def test_an_unknown_choice_falls_back_to_the_default(search: str | None) -> None:
    assert Controls.parse(search) == Controls(range_key="1h", refresh_key="5s")


@pytest.mark.parametrize("key", RANGES)
def test_a_range_has_at_most_about_300_points_and_no_step_under_a_sample(key: str) -> None:
    span = Controls(range_key=key).span(NOON)
    step = span.step_ns // NS_PER_SECOND
    assert step >= 10
    assert (span.end_ns - span.start_ns) / span.step_ns <= 301


def test_a_span_starts_on_the_start_of_a_window() -> None:
    span = Controls(range_key="6h").span(NOON + timedelta(seconds=7))
    assert span.start_ns % span.step_ns == 0


def test_a_life_of_seconds_is_shown_as_a_minute() -> None:
    span = span_between(NOON, NOON + timedelta(seconds=3))
    assert span.end_ns == to_ns(NOON + timedelta(minutes=1))


def test_a_month_has_a_step_of_hours() -> None:
    assert step_seconds(30 * 24 * 3600) == 4 * 3600
