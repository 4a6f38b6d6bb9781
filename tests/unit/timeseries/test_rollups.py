"""Roll-ups of the DuckDB store give the answers that the samples give."""

import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.fixtures.memory_stores import memory_store
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
from timeseries.duckdb.cold import maintenance, sealing
from timeseries.duckdb.query import percentiles, units
from timeseries.duckdb.schema import quoted, table_name
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Point
from timeseries.store import DAY_NS, Aggregate, Detail, Resolution, Series
from timeseries.successive import SUCCESSIVE

QUANTILES = (Aggregate.P50, Aggregate.P95, Aggregate.P99)
EXACT = tuple(aggregate for aggregate in Aggregate if aggregate not in SUCCESSIVE.union(QUANTILES))
END_NS = START_NS + 4 * HOUR_NS
# By then every hour is settled, but not the day: small segments are not merged yet.
LATER_NS = END_NS + HOUR_NS
STEPS_NS = (None, HOUR_NS, 5 * MINUTE_NS, MINUTE_NS, 7 * MINUTE_NS, 10 * 1_000_000_000)
SPANS = ((0, 4), (0.3, 3.71), (1.01, 2.5), (-1, 9))


def mostly_nightly(chosen: Aggregate) -> list[ParameterSet]:
    """Return all quantiles, of which those that are not chosen are for the night."""
    return [
        pytest.param(quantile, marks=() if quantile is chosen else pytest.mark.nightly)
        for quantile in QUANTILES
    ]


@dataclass(frozen=True)
class Pair:
    """Two stores with the same samples, one of which is rolled up."""

    plain: DuckDBStore
    rolled: DuckDBStore

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator["Pair"]:
        """Open two stores for the length of the block."""
        with closing(memory_store()) as plain, closing(memory_store()) as rolled:
            yield cls(plain, rolled)

    def write(self, points: list[Point], identity: dict[str, str]) -> None:
        """Write points to both."""
        for store in (self.plain, self.rolled):
            write_all(store, points, identity)


@pytest.fixture(scope="module", autouse=True)
def few_samples_are_worth_a_file() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(units, "MIN_ROWS", 1)
        monkeypatch.setattr(sealing, "MAX_SHARE", 100)
        monkeypatch.setattr(maintenance, "MAX_PAUSE_SECONDS", 0.0)
        yield


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair.opened() as stores:
        yield stores


@pytest.fixture(scope="module")
def settled_pair() -> Iterator[Pair]:
    """Stores that tests only read, with every hour of a few appliances settled."""
    rng = seeded(7)
    with Pair.opened() as stores:
        for identity in IDENTITIES:
            times = rng.sample(range(START_NS, END_NS), 2_000)
            stores.write([gpu(time, power_watts=rng.gauss(300, 60)) for time in times], identity)
        stores.rolled.maintain(now_ns=LATER_NS)
        yield stores


@pytest.fixture(scope="module")
def expired_pair() -> Iterator[Pair]:
    """Stores that tests only read, one of which has no samples any more."""
    with Pair.opened() as stores:
        stores.write(random_points(seeded(9), hours=(0, 4), amount=500), ACME)
        stores.rolled.maintain(now_ns=LATER_NS)
        stores.rolled.delete_before(END_NS)
        yield stores


def assert_same(got: list[Series], expected: list[Series], *, relative: float) -> None:
    assert [(series.field, series.tags, series.times_ns) for series in got] == [
        (series.field, series.tags, series.times_ns) for series in expected
    ]
    for series, other in zip(got, expected, strict=True):
        assert series.values == pytest.approx(other.values, rel=relative, abs=1e-6)


def hot_rows(store: DuckDBStore) -> int:
    tables = [quoted(table_name(key)) for key in store.writer.schema]
    counted = " UNION ALL ".join(f"SELECT count(*) FROM {table}" for table in tables)  # noqa: S608
    return sum(rows for (rows,) in store.fetch(counted, []))


def files_of(store: DuckDBStore) -> list[str]:
    folder = store.database.folder
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 10))]
)
def test_answers_are_those_of_the_samples_also_with_late_ones(pair: Pair, seed: int) -> None:
    rng = seeded(seed)
    for identity in IDENTITIES:
        pair.write(random_points(rng, hours=(0, 3), amount=300), identity)
    pair.rolled.maintain(now_ns=START_NS + int(2.4 * HOUR_NS))
    pair.write(random_points(rng, hours=(-1, 4), amount=50), rng.choice(IDENTITIES))
    questions = list(itertools.product(EXACT, STEPS_NS, SPANS, ((), ("appliance", "gpu"))))
    for is_late in (True, False):
        for aggregate, step_ns, span, group_by in rng.sample(questions, 15):
            expected = ask(pair.plain, aggregate, hours=span, step_ns=step_ns, group_by=group_by)
            got = ask(pair.rolled, aggregate, hours=span, step_ns=step_ns, group_by=group_by)
            assert_same(got, expected, relative=1e-9)
        if is_late:
            assert pair.rolled.maintain(now_ns=LATER_NS) > 0


@pytest.mark.parametrize("aggregate", mostly_nightly(Aggregate.P50))
def test_percentiles_of_hours_are_within_a_hundredth(
    settled_pair: Pair, aggregate: Aggregate
) -> None:
    pair = settled_pair
    for step_ns in (None, HOUR_NS):
        for span in SPANS:
            for group_by in ((), ("appliance",)):
                expected = ask(
                    pair.plain, aggregate, hours=span, step_ns=step_ns, group_by=group_by
                )
                got = ask(pair.rolled, aggregate, hours=span, step_ns=step_ns, group_by=group_by)
                assert_same(got, expected, relative=0.01)


@pytest.mark.parametrize("aggregate", mostly_nightly(Aggregate.P99))
def test_percentiles_of_days_are_within_a_hundredth(pair: Pair, aggregate: Aggregate) -> None:
    rng = seeded(13)
    midnight_ns = START_NS // DAY_NS * DAY_NS
    for identity in IDENTITIES:
        times = rng.sample(range(midnight_ns, midnight_ns + 3 * DAY_NS), 1_000)
        pair.write([gpu(time, power_watts=rng.gauss(300, 60)) for time in times], identity)
    pair.rolled.maintain(now_ns=midnight_ns + 3 * DAY_NS + HOUR_NS)
    assert all(Resolution.DAY in segment.sizes for segment in pair.rolled.manifest.of("gpu"))
    since = (midnight_ns - START_NS) / HOUR_NS
    whole = (since, since + 72)
    for step_ns, span in itertools.product(
        (None, DAY_NS, HOUR_NS), (whole, (since + 5.5, since + 60.25), (since + 30, since + 31))
    ):
        expected = ask(pair.plain, aggregate, hours=span, step_ns=step_ns, group_by=("appliance",))
        got = ask(pair.rolled, aggregate, hours=span, step_ns=step_ns, group_by=("appliance",))
        assert_same(got, expected, relative=0.01)
    for resolution in (Resolution.RAW, Resolution.FIVE_MINUTES):
        pair.rolled.delete_before(midnight_ns + 3 * DAY_NS, resolution=resolution)
    expected = ask(pair.plain, aggregate, hours=whole, step_ns=DAY_NS)
    assert_same(ask(pair.rolled, aggregate, hours=whole, step_ns=DAY_NS), expected, relative=0.01)


def test_percentiles_of_minutes_are_exact_until_the_samples_expire(pair: Pair) -> None:
    rng = seeded(8)
    pair.write(random_points(rng, hours=(0, 4), amount=500), ACME)
    pair.rolled.maintain(now_ns=LATER_NS)

    expected = ask(pair.plain, Aggregate.P95, step_ns=10 * MINUTE_NS)
    assert ask(pair.rolled, Aggregate.P95, step_ns=10 * MINUTE_NS) == expected


@pytest.mark.parametrize("aggregate", mostly_nightly(Aggregate.P95))
def test_the_database_merges_the_sketches_that_need_much_memory(
    settled_pair: Pair, monkeypatch: pytest.MonkeyPatch, aggregate: Aggregate
) -> None:
    queries = list(itertools.product(SPANS, (None, HOUR_NS, 2 * HOUR_NS), ((), ("appliance",))))
    answers = [
        ask(settled_pair.rolled, aggregate, hours=hours, step_ns=step_ns, group_by=group_by)
        for hours, step_ns, group_by in queries
    ]
    assert any(answers)

    monkeypatch.setattr(percentiles, "MAX_CELLS", 0)

    for (hours, step_ns, group_by), got in zip(queries, answers, strict=True):
        expected = ask(
            settled_pair.rolled, aggregate, hours=hours, step_ns=step_ns, group_by=group_by
        )
        assert_same(got, expected, relative=1e-9)


def test_a_constant_has_exact_percentiles(store: DuckDBStore) -> None:
    write_all(store, [gpu(START_NS + i, power_watts=300.0) for i in range(10)], ACME)
    store.maintain(now_ns=LATER_NS)

    (series,) = ask(store, Aggregate.P95)

    assert series.values == [300.0]


@pytest.mark.parametrize(
    ("aggregate", "step_ns"),
    [
        (aggregate, step_ns)
        for aggregate in EXACT
        for step_ns in (None, HOUR_NS, 10 * MINUTE_NS)
        if (aggregate, step_ns) != (Aggregate.LAST, 10 * MINUTE_NS)
    ],
)
def test_long_ranges_answer_when_the_samples_are_gone(
    expired_pair: Pair, aggregate: Aggregate, step_ns: int | None
) -> None:
    assert hot_rows(expired_pair.rolled) == 0
    expected = ask(expired_pair.plain, aggregate, step_ns=step_ns)
    assert_same(ask(expired_pair.rolled, aggregate, step_ns=step_ns), expected, relative=1e-9)


def test_fields_in_less_detail_answer_from_samples_and_later_by_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "MIN_EXPIRED", 2)
    details = {"power_watts": Detail.ALL, "count": Detail.MEANS, "busy": Detail.HOURS}
    path = tmp_path / "samples.duckdb"
    pair = Pair(
        memory_store(),
        DuckDBStore(path, detail_of=lambda _, name: details.get(name, Detail.ALL)),
    )
    rng = seeded(12)
    for hour in (0, 2):
        pair.write(random_points(rng, hours=(hour, hour + 2), amount=300), ACME)
        pair.rolled.maintain(now_ns=START_NS + (hour + 3) * HOUR_NS)

    for aggregate, step_ns in itertools.product(EXACT + QUANTILES, (10 * MINUTE_NS, HOUR_NS)):
        expected = ask(pair.plain, aggregate, step_ns=step_ns)
        relative = 0.01 if aggregate in QUANTILES else 1e-9
        assert_same(ask(pair.rolled, aggregate, step_ns=step_ns), expected, relative=relative)

    pair.rolled.delete_before(END_NS)
    pair.rolled.maintain(now_ns=LATER_NS)
    pair.rolled.close()
    pair = Pair(pair.plain, DuckDBStore(path))
    assert len(pair.rolled.manifest.of("gpu")) == 1
    finest = {
        Aggregate.AVG: {"power_watts", "count"},
        Aggregate.MAX: {"power_watts"},
        Aggregate.LAST: set[str](),
    }
    for aggregate, names in finest.items():
        by_step = {
            step_ns: {
                series.field: series for series in ask(pair.plain, aggregate, step_ns=step_ns)
            }
            for step_ns in (10 * MINUTE_NS, HOUR_NS)
        }
        expected = [
            by_step[10 * MINUTE_NS if name in names else HOUR_NS][name] for name in sorted(details)
        ]
        got = ask(pair.rolled, aggregate, step_ns=10 * MINUTE_NS)
        assert_same(got, expected, relative=1e-9)
    (percentile,) = ask(pair.rolled, Aggregate.P95, step_ns=HOUR_NS)
    assert percentile.field == "power_watts"
    for store in (pair.plain, pair.rolled):
        store.close()


def test_hours_answer_when_samples_and_minutes_are_gone(pair: Pair) -> None:
    pair.write(random_points(seeded(10), hours=(0, 4), amount=500), ACME)
    pair.rolled.maintain(now_ns=LATER_NS)
    pair.rolled.delete_before(END_NS)
    pair.rolled.delete_before(END_NS, resolution=Resolution.FIVE_MINUTES)

    expected = ask(pair.plain, Aggregate.MAX, step_ns=HOUR_NS)
    assert ask(pair.rolled, Aggregate.MAX, step_ns=MINUTE_NS) == expected
    pair.rolled.delete_before(END_NS, resolution=Resolution.HOUR)
    assert ask(pair.rolled, Aggregate.MAX) == []


def test_samples_that_come_when_the_others_are_deleted_are_added(pair: Pair) -> None:
    rng = seeded(11)
    pair.write(random_points(rng, hours=(0, 4), amount=300), ACME)
    pair.rolled.maintain(now_ns=LATER_NS)
    pair.rolled.delete_before(START_NS + 2 * HOUR_NS)
    pair.write(random_points(rng, hours=(0, 4), amount=100), ACME)
    pair.rolled.maintain(now_ns=LATER_NS)

    for aggregate in EXACT:
        expected = ask(pair.plain, aggregate, step_ns=HOUR_NS)
        assert_same(ask(pair.rolled, aggregate, step_ns=HOUR_NS), expected, relative=1e-9)


def test_samples_delivered_twice_count_once(store: DuckDBStore) -> None:
    points = [gpu(START_NS + i * MINUTE_NS, power_watts=float(i)) for i in range(10)]
    write_all(store, points, ACME)
    write_all(store, points, ACME)
    store.maintain(now_ns=LATER_NS)
    write_all(store, points[3:5], ACME)
    store.maintain(now_ns=LATER_NS)

    assert ask(store, Aggregate.COUNT)[0].values == [10]
    assert ask(store, Aggregate.SUM)[0].values == [45]


def test_rolling_up_again_changes_nothing(store: DuckDBStore) -> None:
    write_all(store, random_points(seeded(1), hours=(0, 3), amount=300), ACME)
    assert store.maintain(now_ns=LATER_NS) > 0
    before = files_of(store)

    assert store.maintain(now_ns=LATER_NS) == 0
    assert store.maintain(now_ns=START_NS) == 0
    assert files_of(store) == before


def test_an_hour_is_rolled_up_in_parts_where_it_is_large(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "MAX_ROWS", 40)
    rng = seeded(2)
    for number in range(5):
        identity = {"tenant": "acme", "appliance": f"a{number}"}
        pair.write(random_points(rng, hours=(0, 3), amount=40), identity)
    pair.rolled.maintain(now_ns=LATER_NS)
    for number in range(5):
        identity = {"tenant": "acme", "appliance": f"a{number}"}
        pair.write(random_points(rng, hours=(0, 3), amount=4), identity)
    pair.rolled.maintain(now_ns=LATER_NS)

    expected = ask(pair.plain, Aggregate.SUM, step_ns=HOUR_NS, group_by=("appliance",))
    got = ask(pair.rolled, Aggregate.SUM, step_ns=HOUR_NS, group_by=("appliance",))
    assert_same(got, expected, relative=1e-9)


def test_new_tags_and_fields_join_the_roll_ups(store: DuckDBStore) -> None:
    write_all(store, [gpu(START_NS, power_watts=1.0)], ACME)
    store.maintain(now_ns=START_NS + 2 * HOUR_NS)
    late = Point("gpu", {"gpu": "0", "job": "j1"}, {"count": 5, "note": "text"}, START_NS + 1)
    write_all(store, [late], ACME)
    store.maintain(now_ns=START_NS + 2 * HOUR_NS)
    store.delete_before(START_NS + HOUR_NS)

    answer = ask(store, Aggregate.SUM, group_by=("job",))

    assert [(series.field, series.tags["job"], series.values) for series in answer] == [
        ("count", "j1", [5.0]),
        ("power_watts", "", [1.0]),
    ]


def test_any_name_is_only_a_name(store: DuckDBStore) -> None:
    name = "a\"b'c\x00温度?{0}"
    identity = {"tenant": name, "appliance": name}
    point = Point("gpu", {name: name}, {"power_watts": 1.0, name: 2.0}, START_NS)
    write_all(store, [point], identity)
    store.maintain(now_ns=LATER_NS)
    write_all(store, [point], identity)
    store.maintain(now_ns=LATER_NS)

    (series,) = ask(store, Aggregate.P50, tenants=(name,), group_by=(name,))

    assert (series.tags, series.values) == ({name: name}, [1.0])


def test_deleting_a_tenant_takes_its_roll_ups_and_no_others(store: DuckDBStore) -> None:
    for identity in (ACME, ACME_2, GLOBEX):
        write_all(store, [gpu(START_NS, power_watts=1.0)], identity)
    store.maintain(now_ns=LATER_NS)

    store.delete_tenant("acme")

    assert ask(store, Aggregate.COUNT, tenants=("acme",)) == []
    assert ask(store, Aggregate.COUNT, tenants=None)[0].values == [1]
    assert {path.partition("/")[0] for path in files_of(store)} == {"globex"}


def test_samples_from_before_1970_and_from_the_future_are_read_as_they_are(
    store: DuckDBStore,
) -> None:
    far = [gpu(time, power_watts=1.0) for time in (-(2**63), -1, 2**63 - 1)]
    write_all(store, [*far, gpu(START_NS, power_watts=1.0)], ACME)
    store.maintain(now_ns=LATER_NS)

    # From 174 years before 1970 on: the oldest is not in it.
    (series,) = ask(store, Aggregate.COUNT, hours=(-2_000_000, 2_000_000))

    assert series.values == [2]


def test_a_point_that_was_delivered_twice_counts_once_in_the_roll_up(
    pair: Pair,
) -> None:
    point = gpu(START_NS, power_watts=100.0)
    others = [gpu(START_NS, count=3), gpu(START_NS + 1, power_watts=400.0)]
    for points in ([point, *others], [point]):
        write_all(pair.rolled, points, ACME)
    pair.rolled.maintain(now_ns=LATER_NS)

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
