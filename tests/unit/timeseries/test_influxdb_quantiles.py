import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeseries.influxdb.range_query import MAX_SIZES, Quantiles, boolean_quantile


def nearest_rank(values: list[float], percent: float) -> float:
    """Do as InfluxQL's percentile does."""
    rank = math.floor(len(values) * percent / 100 + 0.5) - 1
    assert 0 <= rank < len(values)
    return sorted(values)[rank]


def interpolated(values: list[float], ratio: float) -> float:
    place = ratio * (len(values) - 1)
    low, high = sorted(values)[math.floor(place)], sorted(values)[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


@given(
    values=st.lists(st.integers(-1000, 1000).map(float), min_size=2, max_size=5_000),
    ratio=st.sampled_from([0.5, 0.95, 0.99]),
)
def test_the_ranks_around_a_quantile_are_requested(values: list[float], ratio: float) -> None:
    quantiles = Quantiles.of(ratio, {len(values)})
    row: dict[str, float] = {"n": len(values)}
    for name, expression in quantiles.columns("x").items():
        if name[0] in "lh":
            row[name] = nearest_rank(values, float(expression.partition(", ")[2].rstrip(")")))
    row["near"] = -1.0

    assert quantiles.value(row) == pytest.approx(interpolated(values, ratio))


def test_only_the_smallest_sizes_have_columns_of_their_own() -> None:
    quantiles = Quantiles.of(0.95, range(1, 1000))

    assert quantiles.sizes == tuple(range(1, MAX_SIZES + 1))


def test_a_window_of_an_unforeseen_size_takes_the_nearest_rank() -> None:
    assert Quantiles.of(0.95, {3}).value({"n": 4, "near": 7, "l3": 1, "h3": 2}) == 7.0


@pytest.mark.parametrize(
    ("false", "true", "expected"), [(1, 1, 0.5), (3, 1, 0.0), (1, 3, 1.0), (0, 1, 1.0), (1, 0, 0.0)]
)
def test_the_median_of_flags_lies_between_them(false: int, true: int, expected: float) -> None:
    assert boolean_quantile(0.5, false=false, true=true) == expected
