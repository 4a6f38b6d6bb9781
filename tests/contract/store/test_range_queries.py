import dataclasses
from typing import Any

import numpy as np
import pytest

from core.errors import InvalidInputError
from tests.contract.store.backends import Capabilities
from tests.contract.store.samples import (
    ACME,
    ACME_2,
    FIVE_MINUTES_NS,
    GLOBEX,
    SECOND_NS,
    START_NS,
    gpu,
    gpu_with,
    power,
    series_of_columns,
    write_powers,
)
from timeseries.points import Point
from timeseries.store import Aggregate, RangeQuery, Series, Store, TagMatcher, write

HOUR = RangeQuery(
    measurement="gpu",
    fields=("power_watts",),
    start_ns=START_NS,
    end_ns=START_NS + 3600 * SECOND_NS,
    tenants=None,
)


def write_three_gpus(store: Store) -> None:
    """Write one watt of GPU 0, two of GPU 1, which has a job, and four of GPU 2."""
    job = gpu(0, gpu="1", tags={"job": "j1"}, power_watts=2.0)
    others = [gpu(0, gpu="0", power_watts=1.0), gpu(0, gpu="2", power_watts=4.0)]
    write(store, [job, *others], identity=ACME)


def sums(store: Store, **changes: Any) -> list[float]:  # noqa: ANN401 - of the query
    """Return the sums of an hour."""
    query = dataclasses.replace(HOUR, aggregate=Aggregate.SUM, **changes)
    return [value for series in store.query_range(query) for value in series.values]


OF_THE_RANGE = [
    (Aggregate.AVG, 40.0),
    (Aggregate.MIN, 10.0),
    (Aggregate.MAX, 100.0),
    (Aggregate.SUM, 200.0),
    (Aggregate.COUNT, 5.0),
    (Aggregate.LAST, 40.0),
    (Aggregate.P50, 30.0),
    # Between the 4th and 5th of 5 sorted values: 40 + 0.8 x 60 and 40 + 0.96 x 60.
    (Aggregate.P95, 88.0),
    (Aggregate.P99, 97.6),
    # From the mean 40: sqrt((30^2 + 20^2 + 10^2 + 60^2 + 0^2) / 5).
    (Aggregate.STDDEV, 1000**0.5),
    (Aggregate.CHANGE, 30.0),
    # 10 + 10 + 70, and 40 after the counter restarted; over 4 seconds.
    (Aggregate.INCREASE, 130.0),
    (Aggregate.RATE, 32.5),
]


@pytest.mark.parametrize("kind", [float, int])
def test_an_aggregate_over_the_whole_range_is_one_value_at_its_start(
    store: Store, kind: type[float]
) -> None:
    write_powers(store, *map(kind, (10, 20, 30, 100, 40)))

    for aggregate, expected in OF_THE_RANGE:
        (series,) = power(store, aggregate)

        assert series.times_ns == [START_NS], aggregate
        assert series.values == [pytest.approx(expected)], aggregate
        assert type(series.values[0]) is float


def test_windows_are_aligned_to_the_epoch_and_empty_ones_are_left_out(store: Store) -> None:
    points = [gpu(seconds, power_watts=seconds) for seconds in (100.0, 299.0, 300.0, 900.0)]
    write(store, points, identity=ACME)

    (series,) = store.query_range(
        dataclasses.replace(HOUR, start_ns=START_NS + 60 * SECOND_NS, step_ns=FIVE_MINUTES_NS)
    )

    assert series.times_ns == [START_NS, START_NS + FIVE_MINUTES_NS, START_NS + 3 * FIVE_MINUTES_NS]
    assert series.values == [199.5, 300.0, 900.0]


OF_CUT_WINDOWS = [
    (Aggregate.AVG, [2.0, 20.0, 300.0]),
    (Aggregate.SUM, [4.0, 40.0, 600.0]),
    (Aggregate.LAST, [3.0, 30.0, 400.0]),
    # Halfway between two values; and 1 + 0.95 x 2, 10 + 0.95 x 20, 200 + 0.95 x 200.
    (Aggregate.P50, [2.0, 20.0, 300.0]),
    (Aggregate.P95, [2.9, 29.0, 390.0]),
    (Aggregate.STDDEV, [1.0, 10.0, 100.0]),
]


def test_a_range_that_cuts_windows_takes_the_part_inside_over_all_series_of_a_group(
    store: Store,
) -> None:
    seconds_and_watts = [(10, 999.0), (100, 1.0), (400, 10.0), (700, 200.0), (800, 999.0)]
    first = [gpu(at, gpu="0", power_watts=watts) for at, watts in seconds_and_watts]
    later = [(11, 999.0), (101, 3.0), (401, 30.0), (701, 400.0), (801, 999.0)]
    second = [gpu(at, gpu="1", power_watts=watts) for at, watts in later]
    write(store, first + second, identity=ACME)
    query = dataclasses.replace(
        HOUR,
        start_ns=START_NS + 60 * SECOND_NS,
        end_ns=START_NS + 750 * SECOND_NS,
        step_ns=FIVE_MINUTES_NS,
        group_by=("appliance",),
    )

    for aggregate, expected in OF_CUT_WINDOWS:
        (series,) = store.query_range(dataclasses.replace(query, aggregate=aggregate))

        assert series.times_ns == [START_NS + window * FIVE_MINUTES_NS for window in range(3)]
        assert series.values == [pytest.approx(value) for value in expected], aggregate


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        # GPU 0 grows from 5 to 25 in 100 s, then from 0 to 10 after a restart; GPU 1 from 1 to 2.
        (Aggregate.INCREASE, [20.0 + 10.0 + 1.0, 3.0]),
        (Aggregate.RATE, [30.0 / 200 + 1.0 / 50, 3.0 / 10]),
        (Aggregate.CHANGE, [10.0 - 5.0 + 1.0, 3.0]),
    ],
)
def test_growth_is_that_of_each_series_of_a_group_added_up(
    store: Store, aggregate: Aggregate, expected: list[float]
) -> None:
    first = [(10, 5.0), (110, 25.0), (210, 10.0), (310, 7.0), (320, 10.0)]
    second = [(20, 1.0), (70, 2.0), (305, 9.0)]
    for name, samples in (("0", first), ("1", second)):
        points = [gpu(at, gpu=name, power_watts=watts) for at, watts in samples]
        write(store, points, identity=ACME)

    (series,) = store.query_range(
        dataclasses.replace(
            HOUR, step_ns=FIVE_MINUTES_NS, aggregate=aggregate, group_by=("appliance",)
        )
    )

    assert series.times_ns == [START_NS, START_NS + FIVE_MINUTES_NS]
    assert series.values == [pytest.approx(value) for value in expected]


def test_windows_before_1970_start_at_or_before_their_samples(
    store: Store, capabilities: Capabilities
) -> None:
    before = Point("gpu", {}, {"power_watts": 1.0}, -SECOND_NS)

    rejected = write(store, [before, gpu(0, power_watts=1.0)], identity=ACME)

    (series,) = store.query_range(
        dataclasses.replace(HOUR, start_ns=-(2**70), end_ns=2**70, step_ns=FIVE_MINUTES_NS)
    )
    if capabilities.keeps_before_1970:
        assert series.times_ns == [-FIVE_MINUTES_NS, START_NS]
    else:
        assert series.times_ns == [START_NS]
        assert [("older than" in rejection.reason) for rejection in rejected] == [True]


def test_the_start_is_inside_the_range_and_the_end_is_not(store: Store) -> None:
    write(store, [gpu(0, power_watts=1.0), gpu(3600, power_watts=2.0)], identity=ACME)

    (series,) = store.query_range(dataclasses.replace(HOUR, aggregate=Aggregate.COUNT))

    assert series.values == [1.0]


def test_series_come_by_field_and_then_by_group(store: Store) -> None:
    reading = {"power_watts": 1.0, "fan_percent": 2.0}
    write(store, [gpu_with(reading, tags={"gpu": name}) for name in "10"], identity=ACME_2)
    write(store, [gpu(0, gpu="0", power_watts=3.0)], identity=ACME)

    query = dataclasses.replace(
        HOUR, fields=("power_watts", "fan_percent"), group_by=("appliance", "gpu")
    )
    series_list = store.query_range(query)

    assert series_of_columns(store.query_columns(query), query.group_by) == series_list
    assert series_list == [
        Series("fan_percent", {"appliance": "a2", "gpu": "0"}, [START_NS], [2.0]),
        Series("fan_percent", {"appliance": "a2", "gpu": "1"}, [START_NS], [2.0]),
        Series("power_watts", {"appliance": "a1", "gpu": "0"}, [START_NS], [3.0]),
        Series("power_watts", {"appliance": "a2", "gpu": "0"}, [START_NS], [1.0]),
        Series("power_watts", {"appliance": "a2", "gpu": "1"}, [START_NS], [1.0]),
    ]


def test_a_sample_without_the_tag_is_in_the_group_of_the_empty_value(store: Store) -> None:
    busy = gpu(0, tags={"job": "j1"}, power_watts=300.0)
    write(store, [busy, gpu(1, power_watts=50.0)], identity=ACME)

    series_list = store.query_range(dataclasses.replace(HOUR, group_by=("job",)))

    assert [(series.tags, series.values) for series in series_list] == [
        ({"job": ""}, [50.0]),
        ({"job": "j1"}, [300.0]),
    ]


def test_grouping_by_an_unknown_tag_gives_one_group(store: Store) -> None:
    write_powers(store, 1.0, 3.0)

    (series,) = store.query_range(dataclasses.replace(HOUR, group_by=("rack",)))

    assert (series.tags, series.values) == ({"rack": ""}, [2.0])


FILTERED: list[tuple[dict[str, tuple[str, ...]], list[float]]] = [
    ({"gpu": ("0",)}, [1.0]),
    ({"gpu": ("0", "1")}, [3.0]),
    ({"gpu": ("0", "1"), "job": ("j1",)}, [2.0]),
    ({"job": ("",)}, [5.0]),
    ({"job": ("", "j1")}, [7.0]),
    ({"rack": ("",)}, [7.0]),
    ({"rack": ("r1",)}, []),
    ({"gpu": ()}, []),
    ({"gpu": ("' OR 1=1 --",)}, []),
]


def test_filters_keep_the_samples_whose_tags_have_one_of_the_values(store: Store) -> None:
    write_three_gpus(store)

    for filters, expected in FILTERED:
        assert sums(store, filters=filters) == expected, filters


MATCHED: list[tuple[list[TagMatcher], list[float]]] = [
    ([("gpu", "!=", "0")], [6.0]),
    ([("gpu", "!=", "0"), ("gpu", "!=", "1")], [4.0]),
    ([("gpu", "=~", "0|2")], [5.0]),
    ([("gpu", "=~", "[01]"), ("job", "!=", "")], [2.0]),
    ([("job", "=", "")], [5.0]),
    ([("job", "!~", "j.*|a/b")], [5.0]),
    ([("job", "=~", "j")], []),
    ([("job", "=~", ".*")], [7.0]),
    ([("rack", "!=", "r1")], [7.0]),
    ([("rack", "=~", ".+")], []),
    ([("rack", "!~", "r.")], [7.0]),
    ([("gpu", "=~", "' OR 1=1 --|/")], []),
]


def test_matchers_keep_the_samples_whose_tags_match(store: Store) -> None:
    write_three_gpus(store)

    for matchers, expected in MATCHED:
        assert sums(store, matchers=tuple(matchers)) == expected, matchers


SEEN: list[tuple[tuple[str, ...] | None, list[float]]] = [
    (("acme",), [1.0]),
    (("globex",), [2.0]),
    (("acme", "globex"), [3.0]),
    (None, [3.0]),
    ((), []),
    (("",), []),
    (("stranger",), []),
]


def test_a_query_sees_only_the_tenants_it_names(store: Store) -> None:
    write(store, [gpu(0, power_watts=1.0)], identity=ACME)
    write(store, [gpu(0, power_watts=2.0)], identity=GLOBEX)

    for tenants, expected in SEEN:
        assert sums(store, tenants=tenants) == expected, tenants


def test_a_filter_on_the_tenant_tag_cannot_widen_what_is_seen(store: Store) -> None:
    write(store, [gpu(0, power_watts=2.0)], identity=GLOBEX)

    query = dataclasses.replace(HOUR, tenants=("acme",), filters={"tenant": ("globex",)})

    assert store.query_range(query) == []


def test_booleans_count_as_zero_and_one(store: Store) -> None:
    points = [gpu(i, throttled=value) for i, value in enumerate((True, False, True, True))]
    write(store, points, identity=ACME)

    (series,) = store.query_range(dataclasses.replace(HOUR, fields=("throttled",)))

    assert series.values == [0.75]


def test_text_can_be_counted_where_it_is_kept(store: Store, capabilities: Capabilities) -> None:
    write(store, [gpu(0, message="a"), gpu(1, message="b")], identity=ACME)

    series_list = store.query_range(
        dataclasses.replace(HOUR, fields=("message",), aggregate=Aggregate.COUNT)
    )

    assert [series.values for series in series_list] == (
        [[2.0]] if capabilities.stores_text else []
    )


def test_an_average_of_text_is_refused_by_name(store: Store, capabilities: Capabilities) -> None:
    write(store, [gpu(0, message="a")], identity=ACME)
    average = dataclasses.replace(HOUR, fields=("message",))

    if capabilities.stores_text:
        with pytest.raises(InvalidInputError, match="'message' is text"):
            store.query_range(average)
    else:
        assert store.query_range(average) == []


def test_a_step_of_zero_is_refused(store: Store) -> None:
    write_powers(store, 1.0)

    with pytest.raises(InvalidInputError, match="step_ns is 0"):
        store.query_range(dataclasses.replace(HOUR, step_ns=0))


@pytest.mark.parametrize(
    "query",
    [
        dataclasses.replace(HOUR, measurement="unknown"),
        dataclasses.replace(HOUR, fields=("unknown",)),
        dataclasses.replace(HOUR, fields=()),
        dataclasses.replace(HOUR, end_ns=START_NS - 1),
    ],
)
def test_an_unknown_or_empty_selection_gives_an_empty_answer(
    store: Store, query: RangeQuery
) -> None:
    write_powers(store, 1.0)

    assert store.query_range(query) == []


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [(Aggregate.SUM, 30.0), (Aggregate.COUNT, 2.0), (Aggregate.MAX, 20.0), (Aggregate.LAST, 20.0)],
)
def test_a_delivery_that_was_retried_changes_no_total(
    store: Store, aggregate: Aggregate, expected: float
) -> None:
    write_powers(store, 10.0, 20.0)
    write_powers(store, 10.0, 20.0)

    assert power(store, aggregate)[0].values == [expected]


def test_values_above_or_below_a_level_are_never_left_out(store: Store) -> None:
    points = [gpu(second, x=float(second), gpu=str(second)) for second in range(4)]
    assert write(store, points, identity=ACME) == []
    for aggregate in (Aggregate.MAX, Aggregate.STDDEV, Aggregate.INCREASE):
        asked = RangeQuery(
            measurement="gpu",
            fields=("x",),
            start_ns=START_NS,
            end_ns=START_NS + 60 * SECOND_NS,
            aggregate=aggregate,
            tenants=("acme",),
            group_by=("gpu",),
        )
        every = {series.tags["gpu"]: series.values for series in store.query_range(asked)}
        above, below = (
            dataclasses.replace(asked, above=1.0),
            dataclasses.replace(asked, below=1.0),
        )
        for query, wanted in ((above, ["2", "3"]), (below, ["0"])):
            selected = store.query_range(query)
            values_by_gpu = {series.tags["gpu"]: series.values for series in selected}
            assert values_by_gpu.items() <= every.items()
            if aggregate is Aggregate.MAX:
                assert values_by_gpu.keys() >= set(wanted)


@pytest.mark.parametrize("aggregate", [Aggregate.MAX, Aggregate.RATE])
def test_levels_leave_out_nothing_of_whole_appliances(store: Store, aggregate: Aggregate) -> None:
    points = [
        gpu(second, x=float(number * second), gpu=str(number))
        for number in range(4)
        for second in (1, 2)
    ]
    for appliance in ("a1", "a2", "a3"):
        assert write(store, points, identity={"tenant": "acme", "appliance": appliance}) == []
    query = RangeQuery(
        measurement="gpu",
        fields=("x",),
        start_ns=START_NS,
        end_ns=START_NS + 60 * SECOND_NS,
        aggregate=aggregate,
        tenants=("acme",),
        group_by=("appliance", "gpu"),
        above=2.5,
        whole_appliances=("a1", "a3"),
    )
    groups = {(series.tags["appliance"], series.tags["gpu"]) for series in store.query_range(query)}
    all_groups = {(appliance, str(gpu)) for appliance in ("a1", "a3") for gpu in range(4)}
    assert groups >= all_groups | {("a2", "3")}


def test_percentiles_of_small_windows_lie_between_two_values(store: Store) -> None:
    """Windows of 1 to 24 samples give NumPy's results: more sizes than one statement has."""
    sizes = range(1, 25)
    points = [
        gpu(60 * size + at, power_watts=float(at * at % 97)) for size in sizes for at in range(size)
    ]
    assert write(store, points, identity=ACME) == []

    (series,) = power(store, Aggregate.P95, step_ns=60 * SECOND_NS)

    expected = [np.quantile([at * at % 97 for at in range(size)], 0.95) for size in sizes]
    assert series.values == pytest.approx(expected)
