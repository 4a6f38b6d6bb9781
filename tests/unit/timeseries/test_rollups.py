"""Roll-ups of the DuckDB store give the answers that the samples give."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import timeseries.duckdb.rollups as rolling
from tests.unit.timeseries.rollup_samples import (
    ACME,
    ACME_2,
    GLOBEX,
    HOUR_NS,
    IDENTITIES,
    MINUTE_NS,
    START_NS,
    ask,
    gpu,
    random_points,
    seeded,
    write_all,
)
from timeseries.duckdb.store import MEMORY, DuckDBStore
from timeseries.points import Point
from timeseries.store import Aggregate, Resolution, Series

QUANTILES = (Aggregate.P50, Aggregate.P95, Aggregate.P99)
EXACT = tuple(aggregate for aggregate in Aggregate if aggregate not in QUANTILES)
END_NS = START_NS + 4 * HOUR_NS
STEPS_NS = (None, HOUR_NS, 5 * MINUTE_NS, MINUTE_NS, 7 * MINUTE_NS, 10 * 1_000_000_000)
SPANS = ((0, 4), (0.3, 3.71), (1.01, 2.5), (-1, 9))

# Ten appliances over an hour; the process waits to be killed between two steps of that hour.
_STOPS_IN_THE_MIDDLE = """
import sys, threading
from pathlib import Path
import timeseries.duckdb.rollups as rolling
from tests.unit.timeseries.rollup_samples import ACME, HOUR_NS, MINUTE_NS, START_NS, gpu, write_all
from timeseries.duckdb.store import DuckDBStore
from timeseries.duckdb.writer import DuckDBWriter

rolling.MAX_BUILD_VALUES = 1_000
store = DuckDBStore(Path(sys.argv[1]))
for number in range(10):
    points = [gpu(START_NS + i * MINUTE_NS, power_watts=1.0) for i in range(60)]
    write_all(store, points, ACME | {"appliance": f"a{number}"})
run, steps = DuckDBWriter.run, []

def run_twice(self, work):
    if len(steps) == 2:
        print("in the middle", flush=True)
        threading.Event().wait()
    steps.append(work)
    return run(self, work)

DuckDBWriter.run = run_twice
store.roll_up(now_ns=START_NS + 2 * HOUR_NS)
"""


@dataclass(frozen=True)
class Pair:
    """Two stores with the same samples, one of which is rolled up."""

    plain: DuckDBStore
    rolled: DuckDBStore

    def write(self, points: list[Point], identity: dict[str, str]) -> None:
        """Write points to both."""
        for store in (self.plain, self.rolled):
            write_all(store, points, identity)


@pytest.fixture
def pair() -> Iterator[Pair]:
    stores = Pair(DuckDBStore(MEMORY), DuckDBStore(MEMORY))
    yield stores
    stores.plain.close()
    stores.rolled.close()


@pytest.fixture
def store() -> Iterator[DuckDBStore]:
    opened = DuckDBStore(MEMORY)
    yield opened
    opened.close()


def assert_same(got: list[Series], expected: list[Series], *, relative: float) -> None:
    assert [(one.field, one.tags, one.times_ns) for one in got] == [
        (one.field, one.tags, one.times_ns) for one in expected
    ]
    for one, other in zip(got, expected, strict=True):
        assert one.values == pytest.approx(other.values, rel=relative, abs=1e-6)


def rows_of(store: DuckDBStore, table: str) -> int:
    (row,) = store._fetch(f"SELECT count(*) FROM {table}", [])  # noqa: SLF001, S608
    return int(row[0])


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_those_of_the_samples_also_with_late_ones(pair: Pair, seed: int) -> None:
    rng = seeded(seed)
    for identity in IDENTITIES:
        pair.write(random_points(rng, hours=(0, 3), amount=300), identity)
    pair.rolled.roll_up(now_ns=START_NS + int(2.4 * HOUR_NS))
    pair.write(random_points(rng, hours=(-1, 4), amount=50), rng.choice(IDENTITIES))
    questions = list(itertools.product(EXACT, STEPS_NS, SPANS, ((), ("appliance", "gpu"))))
    for is_late in (True, False):
        for aggregate, step_ns, span, group_by in rng.sample(questions, 30):
            expected = ask(pair.plain, aggregate, hours=span, step_ns=step_ns, group_by=group_by)
            got = ask(pair.rolled, aggregate, hours=span, step_ns=step_ns, group_by=group_by)
            assert_same(got, expected, relative=1e-9)
        if is_late:
            assert pair.rolled.roll_up(now_ns=END_NS) > 0


@pytest.mark.parametrize("aggregate", QUANTILES)
def test_percentiles_of_hours_are_within_a_hundredth(pair: Pair, aggregate: Aggregate) -> None:
    rng = seeded(7)
    for identity in IDENTITIES:
        times = rng.sample(range(START_NS, END_NS), 2_000)
        pair.write([gpu(time, power_watts=rng.gauss(300, 60)) for time in times], identity)
    pair.rolled.roll_up(now_ns=END_NS + HOUR_NS)

    for step_ns in (None, HOUR_NS):
        for span in SPANS:
            for group_by in ((), ("appliance",)):
                expected = ask(
                    pair.plain, aggregate, hours=span, step_ns=step_ns, group_by=group_by
                )
                got = ask(pair.rolled, aggregate, hours=span, step_ns=step_ns, group_by=group_by)
                assert_same(got, expected, relative=0.01)


def test_percentiles_of_minutes_are_exact_while_the_samples_are_kept(pair: Pair) -> None:
    rng = seeded(8)
    pair.write(random_points(rng, hours=(0, 4), amount=500), ACME)
    pair.rolled.roll_up(now_ns=END_NS + HOUR_NS)

    expected = ask(pair.plain, Aggregate.P95, step_ns=10 * MINUTE_NS)
    assert ask(pair.rolled, Aggregate.P95, step_ns=10 * MINUTE_NS) == expected


def test_a_constant_has_exact_percentiles(store: DuckDBStore) -> None:
    write_all(store, [gpu(START_NS + i, power_watts=300.0) for i in range(10)], ACME)
    store.roll_up(now_ns=END_NS)

    (series,) = ask(store, Aggregate.P95)

    assert series.values == [300.0]


@pytest.mark.parametrize("step_ns", [None, HOUR_NS, MINUTE_NS])
@pytest.mark.parametrize("aggregate", EXACT)
def test_long_ranges_answer_when_the_samples_are_gone(
    pair: Pair, aggregate: Aggregate, step_ns: int | None
) -> None:
    rng = seeded(9)
    pair.write(random_points(rng, hours=(0, 4), amount=500), ACME)
    pair.rolled.roll_up(now_ns=END_NS + HOUR_NS)
    pair.rolled.delete_before(END_NS)

    assert rows_of(pair.rolled, "m_gpu") == 0
    expected = ask(pair.plain, aggregate, step_ns=step_ns)
    assert_same(ask(pair.rolled, aggregate, step_ns=step_ns), expected, relative=1e-9)


def test_hours_answer_when_samples_and_minutes_are_gone(pair: Pair) -> None:
    pair.write(random_points(seeded(10), hours=(0, 4), amount=500), ACME)
    pair.rolled.roll_up(now_ns=END_NS + HOUR_NS)
    pair.rolled.delete_before(END_NS)
    pair.rolled.delete_before(END_NS, resolution=Resolution.MINUTE)

    expected = ask(pair.plain, Aggregate.MAX, step_ns=HOUR_NS)
    assert ask(pair.rolled, Aggregate.MAX, step_ns=MINUTE_NS) == expected
    pair.rolled.delete_before(END_NS, resolution=Resolution.HOUR)
    assert ask(pair.rolled, Aggregate.MAX) == []


def test_samples_that_come_when_the_others_are_deleted_are_added(pair: Pair) -> None:
    rng = seeded(11)
    pair.write(random_points(rng, hours=(0, 4), amount=300), ACME)
    pair.rolled.roll_up(now_ns=END_NS + HOUR_NS)
    pair.rolled.delete_before(START_NS + 2 * HOUR_NS)
    pair.write(random_points(rng, hours=(0, 4), amount=100), ACME)
    pair.rolled.roll_up(now_ns=END_NS + HOUR_NS)

    for aggregate in EXACT:
        expected = ask(pair.plain, aggregate, step_ns=HOUR_NS)
        assert_same(ask(pair.rolled, aggregate, step_ns=HOUR_NS), expected, relative=1e-9)


def test_samples_delivered_twice_count_once(store: DuckDBStore) -> None:
    points = [gpu(START_NS + i * MINUTE_NS, power_watts=float(i)) for i in range(10)]
    write_all(store, points, ACME)
    write_all(store, points, ACME)
    store.roll_up(now_ns=END_NS)
    write_all(store, points[3:5], ACME)
    store.roll_up(now_ns=END_NS)

    assert ask(store, Aggregate.COUNT)[0].values == [10]
    assert ask(store, Aggregate.SUM)[0].values == [45]


def test_rolling_up_again_changes_nothing(store: DuckDBStore) -> None:
    write_all(store, random_points(seeded(1), hours=(0, 3), amount=300), ACME)
    assert store.roll_up(now_ns=END_NS) > 0
    before = rows_of(store, "r1m_gpu"), rows_of(store, "r1h_gpu")

    assert store.roll_up(now_ns=END_NS) == 0
    assert store.roll_up(now_ns=START_NS) == 0
    assert (rows_of(store, "r1m_gpu"), rows_of(store, "r1h_gpu")) == before


def test_an_hour_is_rolled_up_in_parts_where_it_is_large(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling, "MAX_STEP_VALUES", 200)
    monkeypatch.setattr(rolling, "MAX_BUILD_VALUES", 200)
    rng = seeded(2)
    for number in range(12):
        identity = {"tenant": "acme", "appliance": f"a{number}"}
        pair.write(random_points(rng, hours=(0, 3), amount=40), identity)
    pair.rolled.roll_up(now_ns=END_NS)
    for number in range(12):
        identity = {"tenant": "acme", "appliance": f"a{number}"}
        pair.write(random_points(rng, hours=(0, 3), amount=4), identity)
    pair.rolled.roll_up(now_ns=END_NS)

    expected = ask(pair.plain, Aggregate.SUM, step_ns=HOUR_NS, group_by=("appliance",))
    got = ask(pair.rolled, Aggregate.SUM, step_ns=HOUR_NS, group_by=("appliance",))
    assert_same(got, expected, relative=1e-9)


def test_new_tags_and_fields_join_the_roll_ups(store: DuckDBStore) -> None:
    write_all(store, [gpu(START_NS, power_watts=1.0)], ACME)
    store.roll_up(now_ns=START_NS + 2 * HOUR_NS)
    late = Point("gpu", {"gpu": "0", "job": "j1"}, {"count": 5, "note": "text"}, START_NS + 1)
    write_all(store, [late], ACME)
    store.roll_up(now_ns=START_NS + 2 * HOUR_NS)
    store.delete_before(START_NS + HOUR_NS)

    found = ask(store, Aggregate.SUM, group_by=("job",))

    assert [(one.field, one.tags["job"], one.values) for one in found] == [
        ("count", "j1", [5.0]),
        ("power_watts", "", [1.0]),
    ]


@pytest.mark.parametrize("name", ['a"b', "a'b", "a\x00b", "温度", "?", "{0}"])
def test_any_name_is_only_a_name(store: DuckDBStore, name: str) -> None:
    identity = {"tenant": name, "appliance": name}
    point = Point("gpu", {name: name}, {"power_watts": 1.0, name: 2.0}, START_NS)
    write_all(store, [point], identity)
    store.roll_up(now_ns=END_NS)
    write_all(store, [point], identity)
    store.roll_up(now_ns=END_NS)

    (series,) = ask(store, Aggregate.P50, tenants=(name,), group_by=(name,))

    assert (series.tags, series.values) == ({name: name}, [1.0])


def test_deleting_a_tenant_takes_its_roll_ups_and_no_others(store: DuckDBStore) -> None:
    for identity in (ACME, ACME_2, GLOBEX):
        write_all(store, [gpu(START_NS, power_watts=1.0)], identity)
    store.roll_up(now_ns=END_NS)

    store.delete_tenant("acme")

    assert ask(store, Aggregate.COUNT, tenants=("acme",)) == []
    assert ask(store, Aggregate.COUNT, tenants=None)[0].values == [1]
    assert rows_of(store, "r1h_gpu") == rows_of(store, "r1m_gpu") == 1


def test_samples_that_are_not_rolled_up_yet_outlive_retention(store: DuckDBStore) -> None:
    points = [gpu(START_NS + hour * HOUR_NS, power_watts=1.0) for hour in range(4)]
    write_all(store, points, ACME)
    store.roll_up(now_ns=START_NS + 2 * HOUR_NS + 2 * MINUTE_NS)

    store.delete_before(START_NS + 4 * HOUR_NS)

    assert rows_of(store, "m_gpu") == 2
    assert ask(store, Aggregate.COUNT)[0].values == [4]


def test_late_hours_are_remembered_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "samples.duckdb"
    store = DuckDBStore(path)
    write_all(store, [gpu(START_NS, power_watts=1.0)], ACME)
    store.roll_up(now_ns=END_NS)
    write_all(store, [gpu(START_NS + 1, power_watts=2.0)], ACME)
    store.close()

    store = DuckDBStore(path)
    assert ask(store, Aggregate.SUM)[0].values == [3.0]
    assert rows_of(store, "rollup_late") == 1
    assert store.roll_up(now_ns=END_NS) == 2
    assert rows_of(store, "rollup_late") == 0
    assert ask(store, Aggregate.SUM)[0].values == [3.0]
    store.close()


def test_a_kill_9_in_the_middle_of_a_roll_up_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "samples.duckdb"
    child = subprocess.Popen(
        [sys.executable, "-c", _STOPS_IN_THE_MIDDLE, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "in the middle\n"
        child.kill()

    store = DuckDBStore(path)
    assert rows_of(store, "r1m_gpu") > 0
    for _ in range(2):
        assert ask(store, Aggregate.COUNT, hours=(0, 2), tenants=None)[0].values == [600]
        store.roll_up(now_ns=END_NS)
    assert rows_of(store, "r1h_gpu") == 10
    store.close()


def test_samples_from_before_1970_and_from_the_future_are_read_as_they_are(
    store: DuckDBStore,
) -> None:
    far = [gpu(time, power_watts=1.0) for time in (-(2**63), -1, 2**63 - 1)]
    write_all(store, [*far, gpu(START_NS, power_watts=1.0)], ACME)
    store.roll_up(now_ns=END_NS)

    # From 174 years before 1970 on: the oldest is not in it.
    (series,) = ask(store, Aggregate.COUNT, hours=(-2_000_000, 2_000_000))

    assert series.values == [2]


def test_what_was_delivered_twice_weighs_once_in_the_samples_once_it_is_rolled_up(
    pair: Pair,
) -> None:
    point = gpu(START_NS, power_watts=100.0)
    others = [gpu(START_NS, count=3), gpu(START_NS + 1, power_watts=400.0)]
    for points in ([point, *others], [point]):
        write_all(pair.rolled, points, ACME)
    pair.rolled.roll_up(now_ns=END_NS)

    (mean,) = (
        series.values
        for series in ask(pair.rolled, Aggregate.AVG, hours=(0, 0.5))
        if series.field == "power_watts"
    )
    assert mean == [250.0]
    (count,) = (
        series.values
        for series in ask(pair.rolled, Aggregate.COUNT, hours=(0, 0.5))
        if series.field == "count"
    )
    assert count == [1.0]
