"""The arithmetic of the benchmarks: medians, ratios, percentiles, promises."""

from datetime import UTC, datetime

from benchmarks.figures import Promise, document, median, medians, percentile, ratio, rounded


def test_the_median_of_an_even_number_of_values_lies_between_the_two_in_the_middle() -> None:
    assert median([1.0, 2.0, 4.0, 100.0]) == 3.0


def test_what_was_not_measured_is_left_out_of_a_median() -> None:
    assert median([None, 5.0, None]) == 5.0
    assert median([None, None]) is None


def test_medians_are_taken_figure_by_figure() -> None:
    readings = [{"cpu": 1.0, "memory": 9.0}, {"cpu": 3.0, "memory": 7.0}, {"cpu": 2.0}]
    assert medians(readings) == {"cpu": 2.0, "memory": 8.0}


def test_a_ratio_says_how_many_times_theirs_ours_is() -> None:
    assert ratio(3.0, 2.0) == 1.5


def test_there_is_no_ratio_to_nothing() -> None:
    assert ratio(3.0, 0.0) is None
    assert ratio(None, 2.0) is None
    assert ratio(3.0, None) is None


def test_figures_have_four_digits() -> None:
    assert rounded(123.456789) == 123.5
    assert rounded(0.00012345678) == 0.0001235


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 50) == 50.0
    assert percentile(values, 99) == 99.0
    assert percentile(values, 100) == 100.0
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 50) is None


def test_a_promise_is_kept_up_to_its_bound() -> None:
    assert Promise(name="cpu", bound=1.5, measured=1.5, unit="times").is_kept
    assert not Promise(name="cpu", bound=1.5, measured=1.51, unit="times").is_kept


def test_a_promise_that_was_not_measured_is_not_kept() -> None:
    assert not Promise(name="cpu", bound=1.5, measured=None, unit="times").is_kept


def test_a_document_says_what_was_run_where_and_when() -> None:
    found = document(
        "plugins",
        started_at=datetime(2026, 3, 1, 12, tzinfo=UTC),
        settings={"readings": 5},
        results={"cpu": {"points": 1}},
        promises=[Promise(name="cpu", bound=1.0, measured=0.5, unit="times")],
    )
    assert found["benchmark"] == "plugins"
    assert found["started_at"] == "2026-03-01T12:00:00Z"
    assert found["promises"] == [
        {"name": "cpu", "bound": 1.0, "measured": 0.5, "unit": "times", "is_kept": True}
    ]
    machine = found["machine"]
    assert isinstance(machine, dict)
    assert machine["memory_bytes"] > 0
    assert machine.keys() == {
        "cpu_model", "cpu_count", "memory_bytes", "kernel", "python", "load1",
    }  # fmt: skip
