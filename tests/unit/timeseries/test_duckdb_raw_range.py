"""A query in fine steps for one appliance gives the same values as one for several."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.memory_stores import memory_store
from timeseries.duckdb.query import range_query
from timeseries.duckdb.query.range_query import reads_raw_rows
from timeseries.duckdb.query.row_groups import MAX_ROWS
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import FieldValue, Point
from timeseries.store import Aggregate, RangeQuery, Series, write

ACME = {"tenant": "acme", "appliance": "a1"}
SECOND_NS = 1_000_000_000
START_NS = 1_700_000_000 * SECOND_NS
PLAIN = [Aggregate.AVG, Aggregate.MIN, Aggregate.MAX]
QUERY = RangeQuery(
    measurement="gpu",
    fields=("busy", "watts", "share"),
    start_ns=START_NS,
    end_ns=START_NS + 600 * SECOND_NS,
    step_ns=10 * SECOND_NS,
    tenants=("acme",),
    filters={"appliance": ("a1",)},
    group_by=("gpu", "host"),
)
POINTS = st.lists(
    st.tuples(
        st.sampled_from("01"),
        st.integers(0, 600),
        st.dictionaries(
            st.sampled_from(["busy", "watts"]), st.integers(-100, 100), min_size=1, max_size=2
        ),
    ),
    min_size=1,
    max_size=60,
    unique_by=lambda sample: sample[:2],
)


def gpu(second: float, gpu: str = "0", **fields: FieldValue) -> Point:
    return Point("gpu", {"gpu": gpu}, fields, START_NS + int(second * SECOND_NS))


def of_several(store: DuckDBStore, query: RangeQuery) -> list[Series]:
    """Query one more appliance without samples, so that the database aggregates."""
    several = replace(query, filters={"appliance": ("a1", "nobody")})
    assert not reads_raw_rows(several)
    return store.query_range(several)


@given(points=POINTS)
def test_windows_match_those_of_the_database(points: list[tuple[str, int, dict[str, int]]]) -> None:
    store = memory_store()
    try:
        samples = [gpu(second, name, **fields) for name, second, fields in points]
        write(store, samples, identity=ACME)
        for aggregate in PLAIN:
            query = replace(QUERY, aggregate=aggregate)
            assert reads_raw_rows(query)
            answer, expected = store.query_range(query), of_several(store, query)
            assert [(series.field, series.tags, series.times_ns) for series in answer] == [
                (series.field, series.tags, series.times_ns) for series in expected
            ]
            assert [series.values for series in answer] == [
                pytest.approx(series.values) for series in expected
            ]
    finally:
        store.close()


def test_a_boolean_counts_as_one_or_zero(store: DuckDBStore) -> None:
    write(store, [gpu(0, busy=True), gpu(1, busy=False)], identity=ACME)
    (series,) = store.query_range(QUERY)
    assert (series.times_ns, series.values) == ([START_NS], [0.5])


def test_another_tenant_sees_nothing_of_the_appliance(store: DuckDBStore) -> None:
    write(store, [gpu(0, busy=1)], identity=ACME)
    assert store.query_range(replace(QUERY, tenants=("globex",))) == []


def test_the_database_answers_for_many_samples(store: DuckDBStore) -> None:
    watts = [gpu(number / 100, watts=number) for number in range(MAX_ROWS + 1)]
    write(store, watts, identity=ACME)
    (series,) = store.query_range(QUERY)
    assert series.values[:2] == [499.5, 1499.5]
    assert len(series.values) == 21


@pytest.mark.parametrize(
    "changed",
    [
        {"aggregate": Aggregate.COUNT},
        {"aggregate": Aggregate.LAST},
        {"step_ns": None},
        {"step_ns": 61 * SECOND_NS},
        {"end_ns": START_NS + 10 * SECOND_NS * (range_query.MAX_WINDOWS + 1)},
        {"start_ns": -1},
        {"filters": {}},
        {"filters": {"appliance": ("",)}},
    ],
)
def test_the_database_answers_other_queries(changed: dict[str, object]) -> None:
    assert not reads_raw_rows(replace(QUERY, **changed))  # type: ignore[arg-type]


def test_no_samples_give_no_series(store: DuckDBStore) -> None:
    write(store, [gpu(-1, busy=1)], identity=ACME)
    assert store.query_range(QUERY) == []
