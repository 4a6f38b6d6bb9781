"""Sketches are within 1 % of exact quantiles, whatever the values."""

import math
import random
from collections.abc import Callable

import pytest

from tests.unit.timeseries.rollup_samples import seeded
from timeseries.sketch import (
    ACCURACY_RATIO,
    SMALLEST,
    key_of,
    merged,
    quantile,
    sketch_of,
    value_of,
)

Q = (0.0, 0.01, 0.5, 0.95, 0.99, 1.0)
DISTRIBUTIONS: dict[str, Callable[[random.Random], float]] = {
    "watts": lambda rng: rng.gauss(300, 40),
    "bytes": lambda rng: rng.paretovariate(0.5),
    "negative": lambda rng: -rng.expovariate(0.01),
    "tiny": lambda rng: 1e-9 * rng.random() + 1e-11,
    "constant": lambda _: 42.0,
    "zero": lambda _: 0.0,
    "zeros and positive": lambda rng: rng.choice([0.0, rng.uniform(1, 2)]),
}


def exact(values: list[float], q: float) -> float:
    """Return the quantile interpolated between the two nearest ranks."""
    ordered = sorted(values)
    rank = q * (len(ordered) - 1)
    low, high = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    return low + (high - low) * (rank - math.floor(rank))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("amount", [1, 2, 7, 5_000])
def test_quantiles_are_within_the_accuracy(name: str, amount: int) -> None:
    rng = seeded(amount)
    values = [DISTRIBUTIONS[name](rng) for _ in range(amount)]
    sketch = sketch_of(values)

    for q in Q:
        assert quantile(sketch, q) == pytest.approx(
            exact(values, q), rel=ACCURACY_RATIO * (1 + 1e-9), abs=SMALLEST
        )


@pytest.mark.parametrize(
    "value", [5e-324, 1e-12, 1e-3, 0.99, 1.0, 1.01, 7.5e10, 1.7976931348623157e308]
)
def test_a_bucket_stands_for_each_of_its_values(value: float) -> None:
    for signed in (value, -value):
        assert value_of(key_of(signed)) == pytest.approx(
            signed, rel=ACCURACY_RATIO * (1 + 1e-9), abs=SMALLEST
        )


def test_keys_are_in_the_order_of_the_values() -> None:
    rng = seeded(1)
    values = sorted(rng.gauss(0, 1) * 10 ** rng.randint(-15, 15) for _ in range(1_000))

    keys = [key_of(value) for value in values]

    assert keys == sorted(keys)


def test_a_merged_sketch_is_that_of_all_the_values() -> None:
    rng = seeded(2)
    one = [rng.gauss(0, 5) for _ in range(100)]
    other = [rng.gauss(3, 5) for _ in range(50)]

    assert merged([sketch_of(one), sketch_of(other)]) == sketch_of(one + other)


def test_nothing_has_no_quantile() -> None:
    assert quantile({}, 0.5) is None
