"""Maintenance changes no answer, whether a backend moves samples and keeps roll-ups or not."""

from itertools import product

import pytest

from tests.contract.store.samples import (
    ACME,
    GLOBEX,
    SECOND_NS,
    START_NS,
    gpu,
    series_of_columns,
)
from timeseries.store import DAY_NS, Aggregate, RangeQuery, Series, Store, write

HOUR_NS = 3600 * SECOND_NS
HOURS = 3
PERCENTILES = (Aggregate.P50, Aggregate.P95, Aggregate.P99)


def write_hours(store: Store, *, first_second: int = 0) -> None:
    """Write a sample every five minutes to each of two tenants."""
    seconds = range(first_second, HOURS * 3600, 300)
    for identity in (ACME, GLOBEX):
        points = [gpu(second, power_watts=300.0 + second % 700) for second in seconds]
        assert write(store, points, identity=identity) == []


def ask(store: Store, aggregate: Aggregate, step_ns: int | None) -> list[Series]:
    """Return an aggregate by tenant over two whole hours and parts of two more."""
    query = RangeQuery(
        measurement="gpu",
        fields=("power_watts",),
        start_ns=START_NS,
        end_ns=START_NS + HOURS * HOUR_NS,
        aggregate=aggregate,
        step_ns=step_ns,
        tenants=None,
        group_by=("tenant",),
    )
    series_list = store.query_range(query)
    assert series_of_columns(store.query_columns(query), query.group_by) == series_list
    return series_list


def test_answers_are_the_same_after_maintenance(store: Store) -> None:
    questions = list(product(Aggregate, [None, HOUR_NS, 300 * SECOND_NS]))
    write_hours(store)
    before = [ask(store, *question) for question in questions]

    store.maintain(now_ns=START_NS + 2 * DAY_NS)

    for question, expected in zip(questions, before, strict=True):
        answer = ask(store, *question)
        assert [(series.tags, series.times_ns) for series in answer] == [
            (series.tags, series.times_ns) for series in expected
        ], question
        relative = 0.01 if question[0] in PERCENTILES else 1e-9
        for series, other in zip(answer, expected, strict=True):
            assert series.values == pytest.approx(other.values, rel=relative), question


def test_late_samples_count_before_and_after_maintenance(store: Store) -> None:
    write_hours(store)
    store.maintain(now_ns=START_NS + 2 * DAY_NS)
    write_hours(store, first_second=60)

    # One every five minutes, from 0 s and from 60 s on, for each tenant.
    assert [series.values for series in ask(store, Aggregate.COUNT, None)] == [[72], [72]]
    store.maintain(now_ns=START_NS + 2 * DAY_NS)
    assert [series.values for series in ask(store, Aggregate.COUNT, None)] == [[72], [72]]


def test_a_deleted_tenant_is_not_in_the_roll_ups(store: Store) -> None:
    write_hours(store)
    store.maintain(now_ns=START_NS + 2 * DAY_NS)

    store.delete_tenant("acme")

    assert [series.tags for series in ask(store, Aggregate.COUNT, None)] == [{"tenant": "globex"}]
