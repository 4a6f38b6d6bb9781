"""What InfluxQL refuses, its bounds, and whose samples it reads."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.memory_stores import memory_store
from timeseries.influxql import results
from timeseries.influxql.queries import answers
from timeseries.influxql.syntax import InfluxQLError
from timeseries.points import Point
from timeseries.promql.selection import QueryTimeoutError, Source
from timeseries.store import Store, write

NOW_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    opened = memory_store()
    points = [
        Point(
            "gpu",
            {"gpu": name, "my-tag": "x"},
            {"power_watts": watts, "is_on": True, "name": "H100"},
            NOW_NS - seconds * SECOND_NS,
        )
        for seconds in (10, 70)
        for name, watts in (("0", 300.0), ("1", 400.0))
    ]
    for tenant, appliance in (("acme", "0a1"), ("globex", "9b1")):
        write(opened, points, identity={"tenant": tenant, "appliance": appliance})
    yield opened
    opened.close()


def answer(store: Store, text: str, **settings: Any) -> dict[str, Any]:  # noqa: ANN401 - of Source
    source = Source(store, settings.pop("tenants", ("acme",)), **settings)
    (result,) = answers(source, text, now_ns=NOW_NS)
    return result


def values(store: Store, text: str, **settings: Any) -> list[list[Any]]:  # noqa: ANN401 - of Source
    series = answer(store, text, **settings).get("series", [])
    return [row for line in series for row in line["values"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT power_watts FROM gpu WHERE power_watts = '5'", "is a field"),
        ("SELECT power_watts FROM gpu WHERE gpu =~ /(/", "not valid"),
        ("SELECT power_watts FROM gpu WHERE time > 'noon'", "'noon' is not a time"),
        ("SELECT power_watts FROM gpu WHERE time != 5", "compared by !="),
        ("SELECT power_watts FROM gpu WHERE now()", "compares a tag"),
        ("SELECT holt_winters(power_watts) FROM gpu", "holt_winters() is not supported"),
        ("SELECT percentile(power_watts) FROM gpu", "invalid number of arguments"),
        ("SELECT percentile(power_watts, 99999999999999999999) FROM gpu", "from 0 to 100"),
        ("SELECT mean(power_watts, 2) FROM gpu", "invalid number of arguments"),
        ("SELECT mean(max(power_watts)) FROM gpu", "expected field argument in mean()"),
        ("SELECT difference(mean(power_watts)) FROM gpu", "requires a GROUP BY interval"),
        ("SELECT moving_average(power_watts, 1) FROM gpu", "integer from 2"),
        ("SELECT derivative(power_watts, 5) FROM gpu", "must be a duration"),
        ("SELECT mean(power_watts), gpu FROM gpu", "mixing aggregate and non-aggregate"),
        ("SELECT power_watts FROM gpu GROUP BY time(1m)", "at least one aggregate function"),
        (
            "SELECT mean(power_watts) FROM gpu WHERE time > 0 GROUP BY time(1s)",
            "windows, more than",
        ),
        ("SELECT 1 FROM gpu", "at least one variable"),
        ("SELECT distinct(power_watts), gpu FROM gpu", "mixing aggregate and non-aggregate"),
        ("SELECT top(power_watts, 2), max(power_watts) FROM gpu", "cannot be combined"),
        ("SELECT distinct(power_watts) * 2 FROM gpu", "cannot be combined"),
        ("SELECT top(power_watts) FROM gpu", "invalid number of arguments"),
        ("SELECT top(power_watts, 0) FROM gpu", "an integer from 1 to 10,000"),
        ("SELECT bottom(power_watts, 1.5) FROM gpu", "must be an integer"),
        ("SELECT top(power_watts, 3, 2) FROM gpu", "only tags are allowed"),
        ("SELECT distinct(*) FROM gpu", "expected field argument"),
        ("SELECT integral(power_watts, 5) FROM gpu", "must be a duration above 0"),
        (
            "SELECT derivative(distinct(power_watts)) FROM gpu GROUP BY time(1m)",
            "is not supported inside",
        ),
        ("SELECT max(watts) FROM (SELECT holt_winters(power_watts) FROM gpu)", "not supported"),
    ],
)
def test_what_is_not_there_is_refused_by_name(store: Store, text: str, message: str) -> None:
    assert message in answer(store, text)["error"]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SELECT top(P, 1) FROM gpu", [[70, 400]]),
        ("SELECT top(P, gpu, 2) FROM gpu", [[70, 300, "0"], [70, 400, "1"]]),
        ("SELECT bottom(P, 3) FROM gpu", [[70, 300], [70, 400], [10, 300]]),
        ("SELECT bottom(P, 3) FROM gpu ORDER BY time DESC LIMIT 1", [[10, 300]]),
        ("SELECT distinct(P) AS w FROM gpu WHERE SPAN", [[100, 300], [100, 400]]),
        ("SELECT count(distinct(P)) FROM gpu WHERE SPAN", [[100, 2]]),
        ("SELECT integral(P) FROM gpu WHERE gpu = '0' AND SPAN", [[100, 18_000]]),
        ("SELECT sum(w) FROM (SELECT max(P) AS w FROM gpu GROUP BY gpu) WHERE SPAN", [[100, 700]]),
        (
            "SELECT a FROM (SELECT mean(w) AS a FROM (SELECT P AS w FROM gpu)) WHERE SPAN",
            [[100, 350]],
        ),
        ("SELECT max(w) FROM (SELECT P AS w FROM gpu) WHERE w < 350 AND SPAN", [[70, 300]]),
        ("SELECT max(w) FROM (SELECT P AS w FROM none) WHERE SPAN", []),
    ],
)
def test_rows_of_a_window_and_subqueries(store: Store, text: str, rows: list[list[object]]) -> None:
    span = f"time >= {NOW_NS - 100 * SECOND_NS}"
    statement = re.sub(r"\bP\b", "power_watts", text).replace("SPAN", span)
    (result,) = answers(Source(store, ("acme",)), statement, now_ns=NOW_NS, epoch="s")
    series: Any = result.get("series", [])
    listed = [[NOW_NS // SECOND_NS - row[0], *row[1:]] for own in series for row in own["values"]]
    assert listed == rows, result


def test_subqueries_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = "SELECT power_watts FROM gpu"
    with pytest.raises(InfluxQLError, match="more than 20 subqueries"):
        answer(store, f"SELECT power_watts FROM {', '.join([f'({inner})'] * 21)}")
    text = f"SELECT max(power_watts) FROM ({inner})"
    assert "reads more than 3 samples" in answer(store, text, max_samples=3)["error"]
    monkeypatch.setattr(results, "MAX_VALUES", 7)
    assert "more than 7 values" in answer(store, text)["error"]


@pytest.mark.parametrize("window", ["999999999999999w", "1m, 999999999999999w"])
def test_windows_of_more_than_64_bits_are_refused(store: Store, window: str) -> None:
    with pytest.raises(InfluxQLError, match="at most 73 years"):
        answer(store, f"SELECT mean(power_watts) FROM gpu GROUP BY time({window})")


def test_a_comment_without_an_end_is_refused_at_once(store: Store) -> None:
    assert answer(store, "SELECT power_watts /* in W */ FROM gpu")["series"]
    # Looking through the rest of the text for the end of each took a minute.
    with pytest.raises(InfluxQLError, match=r"Unexpected '/\*"):
        answer(store, "SELECT " + "/* " * 33_000)


def test_a_tenant_sees_neither_others_nor_its_own_tag(store: Store) -> None:
    assert values(store, "SELECT count(power_watts) FROM gpu") == [["1970-01-01T00:00:00Z", 4]]
    assert values(store, "SELECT power_watts FROM gpu WHERE tenant = 'globex'") == []
    assert len(values(store, "SELECT power_watts FROM gpu WHERE tenant = ''")) == 4
    assert ["tenant"] not in values(store, "SHOW TAG KEYS")
    assert values(store, "SHOW TAG VALUES WITH KEY = tenant") == []
    grouped = "SELECT count(power_watts) FROM gpu GROUP BY tenant"
    assert len(answer(store, grouped)["series"]) == 1
    assert len(answer(store, grouped, tenants=None)["series"]) == 2


def test_appliances_have_names_in_conditions_and_answers(store: Store) -> None:
    names = {"0a1": "node-7"}
    listed = values(store, "SHOW TAG VALUES WITH KEY = appliance", names=names)
    assert listed == [["appliance", "node-7"]]
    for condition, count in (
        ("appliance = 'node-7'", 4),
        ("appliance = '0a1'", 0),
        ("appliance =~ /^0/", 0),
        ("appliance !~ /^0/", 4),
        ("appliance != 'node-7'", 0),
        ("(appliance = 'x' OR appliance = 'node-7')", 4),
        ("(appliance = 'node-7' AND gpu = '0' OR gpu = 'x')", 2),
    ):
        for function in ("mean", "first"):
            text = f"SELECT {function}(power_watts), count(power_watts) FROM gpu WHERE {condition}"
            windows = f"{text} AND time > {NOW_NS - 100 * SECOND_NS} GROUP BY time(1h) fill(none)"
            assert [row[2] for row in values(store, windows, names=names)] == [count] * bool(count)


def test_booleans_are_numbers_and_texts_are_missing(store: Store) -> None:
    rows = values(store, "SELECT is_on, \"name\" FROM gpu WHERE gpu = '1' AND \"my-tag\" = 'x'")
    assert [row[1:] for row in rows] == [[1, None]] * 2
    assert values(store, 'SELECT count("name") FROM gpu') == []


def test_answers_and_reads_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = "SELECT power_watts FROM gpu"
    assert "reads more than 3 samples" in answer(store, raw, max_samples=3)["error"]
    monkeypatch.setattr(results, "MAX_VALUES", 7)
    assert "more than 7 values" in answer(store, raw)["error"]
    assert len(values(store, f"{raw} LIMIT 3")) == 3
    with pytest.raises(QueryTimeoutError):
        answer(store, raw, max_seconds=-1.0)
