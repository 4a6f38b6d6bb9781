"""Sketches are within 1 % of exact quantiles, whatever the values."""

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from tests.unit.timeseries.rollup_samples import seeded
from timeseries.sketch import (
    ACCURACY_RATIO,
    KEY_OFFSET,
    LOG_GAMMA,
    SMALLEST,
    bucket_quantile,
    bucket_value,
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


def bucket_key(value: float) -> int:
    """Return the key of the bucket of a value, as the SQL of the roll-ups does."""
    if abs(value) < SMALLEST:
        return 0
    return int(math.copysign(math.ceil(math.log(abs(value)) / LOG_GAMMA) + KEY_OFFSET, value))


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
    sketch = Counter(map(bucket_key, values))
    keys = sorted(sketch)
    counts = [sketch[key] for key in keys]

    for q in Q:
        assert bucket_quantile(keys, counts, q) == pytest.approx(
            exact(values, q), rel=ACCURACY_RATIO * (1 + 1e-9), abs=SMALLEST
        )


@pytest.mark.parametrize(
    "value", [5e-324, 1e-12, 1e-3, 0.99, 1.0, 1.01, 7.5e10, 1.7976931348623157e308]
)
def test_a_bucket_represents_each_of_its_values(value: float) -> None:
    for signed in (value, -value):
        assert bucket_value(bucket_key(signed)) == pytest.approx(
            signed, rel=ACCURACY_RATIO * (1 + 1e-9), abs=SMALLEST
        )


def test_keys_are_in_the_order_of_the_values() -> None:
    rng = seeded(1)
    values = sorted(rng.gauss(0, 1) * 10 ** rng.randint(-15, 15) for _ in range(1_000))

    keys = [bucket_key(value) for value in values]

    assert keys == sorted(keys)


def test_an_empty_sketch_has_no_quantile() -> None:
    assert bucket_quantile([], [], 0.5) is None
