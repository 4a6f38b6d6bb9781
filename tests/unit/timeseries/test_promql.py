"""What PromQL refuses, and whose samples it reads; its values are compared with Prometheus'."""

import json
import random
from calendar import monthrange
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from core.errors import VedetteError
from tests.fixtures.memory_stores import memory_store
from timeseries.points import Point
from timeseries.promql import selection
from timeseries.promql.operators import Matching, of_sets
from timeseries.promql.patterns import full_matches
from timeseries.promql.queries import query_instant, query_range
from timeseries.promql.render import rendered
from timeseries.promql.selection import QueryTimeoutError, Source
from timeseries.promql.values import Grid, Vector
from timeseries.store import Resolution, Store, TooManySamplesError, write

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    opened = memory_store()
    at_ns = (NOW_MS - 10_000) * 1_000_000
    own = [
        Point("gpu", {"gpu": name}, {"power_watts": watts, "is_on": True, "name": "H100"}, at_ns)
        for name, watts in (("0", 300.0), ("1", 400.0))
    ]
    ingested = [Point("node_load1", {"job": "node", "my-tag": "x"}, {"value": 1.5}, at_ns)]
    dotted = [Point("my.app", {}, {"queue-depth": 7}, at_ns)]
    write(opened, [*own, *ingested, *dotted], identity={"tenant": "acme", "appliance": "a1"})
    write(opened, own, identity={"tenant": "globex", "appliance": "g1"})
    yield opened
    opened.close()


def values(store: Store, text: str, *, tenants: tuple[str, ...] | None = ("acme",)) -> Any:  # noqa: ANN401 - JSON
    data = json.loads(rendered(query_instant(Source(store, tenants), text, at_ms=NOW_MS)))
    if data["resultType"] != "vector":
        return data["result"]
    return {json.dumps(row["metric"], sort_keys=True): row["value"][1] for row in data["result"]}


def test_a_field_has_the_name_of_its_measurement_and_itself(store: Store) -> None:
    assert values(store, 'gpu_power_watts{gpu="1"}') == {
        '{"__name__": "gpu_power_watts", "appliance": "a1", "gpu": "1"}': "400"
    }
    assert values(store, "sum(gpu_is_on)") == {"{}": "2"}
    assert values(store, "gpu_name") == {}


def test_the_field_value_has_the_name_of_its_measurement(store: Store) -> None:
    assert values(store, 'node_load1{my_tag=~"x|y"}') == {
        '{"__name__": "node_load1", "appliance": "a1", "job": "node", "my_tag": "x"}': "1.5"
    }


def test_characters_that_prometheus_has_not_are_underscores(store: Store) -> None:
    assert values(store, "sum(my_app_queue_depth)") == {"{}": "7"}


def test_names_match_patterns(store: Store) -> None:
    assert values(store, 'count by (__name__) ({__name__=~"gpu_.+",gpu!="0"})') == {
        '{"__name__": "gpu_is_on"}': "1",
        '{"__name__": "gpu_power_watts"}': "1",
    }


def test_a_tenant_sees_neither_others_nor_its_own_tag(store: Store) -> None:
    assert values(store, "count by (tenant) (gpu_power_watts)") == {"{}": "2"}
    assert values(store, 'gpu_power_watts{tenant="globex"}') == {}
    assert values(store, 'count(gpu_power_watts{tenant=""})') == {"{}": "2"}
    assert values(store, "count by (tenant) (gpu_power_watts)", tenants=None) == {
        '{"tenant": "acme"}': "2",
        '{"tenant": "globex"}': "2",
    }


def test_values_that_are_no_finite_numbers_are_text(store: Store) -> None:
    assert values(store, "1 / 0") == [NOW_MS // 1000, "+Inf"]
    assert values(store, "-1 / 0")[1] == "-Inf"
    assert values(store, "0 / 0")[1] == "NaN"
    assert values(store, '"text"') == [NOW_MS // 1000, "text"]


@pytest.mark.parametrize(
    ("pattern", "replaced"),
    [
        ("[(]*(.*)", "a1"),
        (r"[[:alpha:](]+(\\d)", "1"),
        (r"\\Q(\\E*(?:a)(?P<n>.*)", "1"),
        ("[(]*.*", None),
        (r"[]\\](]*.*", None),
    ],
)
def test_only_groups_of_a_pattern_are_references(
    store: Store, pattern: str, replaced: str | None
) -> None:
    text = f'label_replace(gpu_power_watts{{gpu="0"}}, "x", "$1", "appliance", "{pattern}")'

    ((labels, _),) = values(store, text).items()

    assert json.loads(labels).get("x") == replaced


def test_calendars_are_those_of_datetime(store: Store) -> None:
    parts: dict[str, Callable[[datetime], int]] = {
        "minute": lambda at: at.minute,
        "hour": lambda at: at.hour,
        "day_of_week": lambda at: at.isoweekday() % 7,
        "day_of_month": lambda at: at.day,
        "day_of_year": lambda at: at.timetuple().tm_yday,
        "days_in_month": lambda at: monthrange(at.year, at.month)[1],
        "month": lambda at: at.month,
        "year": lambda at: at.year,
    }
    chance = random.Random(1)  # noqa: S311 - not for secrets
    seconds = [chance.randrange(-62_135_596_800, 253_402_300_800) for _ in range(20)]
    for second in [0, -1, -62_135_596_800, 253_402_300_799, 951_782_400, *seconds]:
        at = datetime.fromtimestamp(second, UTC)
        for name, part in parts.items():
            assert values(store, f"{name}(vector({second}))") == {"{}": str(part(at))}, (name, at)
    assert values(store, "year(vector(1e300))") == {"{}": "NaN"}


def test_averages_of_five_minutes_count_where_samples_have_expired() -> None:
    opened = memory_store()
    start_ms = NOW_MS - NOW_MS % HOUR_MS - 30 * 24 * HOUR_MS
    # Enough that roll-ups by five minutes are worth a file.
    chance = random.Random(1)  # noqa: S311 - not for secrets
    points = [
        Point(
            "gpu",
            {"gpu": str(gpu)},
            {"energy_joules": at + chance.random()},
            (start_ms + at * 1000) * 1_000_000,
        )
        for at in range(0, 3 * 3600, 10)
        for gpu in range(20)
    ]
    write(opened, points, identity={"tenant": "acme", "appliance": "a1"})
    grid = Grid(start_ms + HOUR_MS, 600_000, 6)

    def increases() -> list[float]:
        answer = query_range(
            Source(opened, ("acme",)), "avg(increase(gpu_energy_joules[30m]))", grid
        )
        (row,) = json.loads(rendered(answer))["result"]
        return [float(value) for _, value in row["values"]]

    exact = increases()
    opened.maintain(now_ns=NOW_MS * 1_000_000)
    assert increases() == pytest.approx(exact, rel=1e-12)
    opened.delete_before((start_ms + 24 * HOUR_MS) * 1_000_000, resolution=Resolution.RAW)
    assert increases() == pytest.approx(exact, rel=0.01)
    opened.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate(up)", "expected type matrix in call to function 'rate'"),
        ("holt_winters(up[5m], 0.5, 0.5)", "'holt_winters' (column 1)"),
        ("up + limitk(1, up)", "The aggregation limitk is not supported (column 6)."),
        ("sum(up @ 5)", "The modifier @ is not supported (column 8)."),
        ('up{a="1" or b="2"}', "alternative of matchers by or is not supported (column 10)."),
        ("sum(up", "unclosed left parenthesis"),
        ('up{a=~"("}', "illegal regex"),
        ("(" * 41 + "1" + ")" * 41, "nests more than 40"),
        ("1" + "+1" * 151, "more than 150 operators"),
        ("u" * 8_001, "longer than 8,000"),
        ("avg_over_time(up[1y:1s])", "A subquery has 31,536,001 steps"),
        ("up / on () gpu_power_watts", "Several series on the right side match"),
        ('label_replace(gpu_power_watts, "gpu", "x", "gpu", ".*")', "the same labels"),
        ('count_values("a b", up)', "'a b' is not the name of a label"),
        ('"a" > 1', "binary expression must contain only scalar and instant vector"),
    ],
)
def test_an_error_names_what_is_refused(store: Store, text: str, message: str) -> None:
    with pytest.raises(VedetteError) as refused:
        query_instant(Source(store, ("acme",)), text, at_ms=NOW_MS)

    assert refused.value.status in {400, 422}
    assert message in refused.value.message


def test_a_pattern_is_compiled_once_for_all_series(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = list[str]()

    def counted(texts: Sequence[str], pattern: str) -> list[bool]:
        compiled.append(pattern)
        return full_matches(texts, pattern)

    monkeypatch.setattr(selection, "full_matches", counted)
    labels = [{"uuid": f"GPU-{number}"} for number in range(50)]
    rows = selection.matching_rows(labels, (("uuid", "=~", "GPU-.?"), ("uuid", "!~", ".*[3-9]")))
    assert rows == [0, 1, 2]
    assert compiled == ["GPU-.?", ".*[3-9]"]


def test_a_query_is_bounded_in_memory(store: Store) -> None:
    grid = Grid(NOW_MS - 10_000_000, 1_000, 11_000)
    many_values = 'count_values by (gpu) ("v", gpu_power_watts + time() % 900)'
    with pytest.raises(VedetteError, match="A part of the expression has 602 series"):
        query_range(Source(store, ("acme",)), many_values, grid)
    labels = [{"series": str(number)} for number in range(300)]
    shape = (len(labels), grid.steps)
    vector = Vector(labels, np.broadcast_to(1.0, shape), np.ones(shape, dtype=bool))
    with pytest.raises(VedetteError, match="A part of the expression has 600 series"):
        of_sets("or", vector, vector, Matching())


def test_a_query_is_bounded_in_steps_samples_and_time(store: Store) -> None:
    with pytest.raises(VedetteError, match="11,001 steps, more than 11,000"):
        query_range(Source(store, ("acme",)), "1", Grid(NOW_MS, 1_000, 11_001))
    with pytest.raises(TooManySamplesError, match="more than 3 samples"):
        query_instant(
            Source(store, ("acme",), max_samples=3), "gpu_is_on + gpu_power_watts", at_ms=NOW_MS
        )
    ticks = iter(range(1_000))
    source = Source(store, ("acme",), max_seconds=2, seconds=lambda: float(next(ticks)))
    with pytest.raises(QueryTimeoutError, match="longer than 2 s"):
        query_instant(source, "gpu_is_on", at_ms=NOW_MS)
