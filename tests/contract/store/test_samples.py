import numpy as np
import pytest

from tests.contract.store.samples import ACME, ACME_2, GLOBEX, SECOND_NS, START_NS, gpu
from timeseries.store import SampleQuery, Store, TagMatcher, TooManySamplesError, write

Read = dict[tuple[str, ...], list[tuple[int, float]]]


def read(
    store: Store,
    *fields: str,
    seconds: int = 10,
    matchers: tuple[TagMatcher, ...] = (),
    max_samples: int = 1_000,
) -> Read:
    """Return acme's samples by field and by values of the sorted tags, oldest first."""
    query = SampleQuery(
        measurement="gpu",
        fields=fields,
        start_ns=START_NS,
        end_ns=START_NS + seconds * SECOND_NS,
        tenants=("acme",),
        matchers=matchers,
        max_samples=max_samples,
    )
    samples: Read = {}
    for columns in store.samples(query):
        ends = np.cumsum(columns.lengths).tolist()
        for tags, start, end in zip(columns.tags, [0, *ends], ends, strict=False):
            seconds_of = ((columns.times_ns[start:end] - START_NS) // SECOND_NS).tolist()
            own = tuple(text for tag, text in sorted(tags.items()) if tag != "tenant")
            pairs = zip(seconds_of, columns.values[start:end].tolist(), strict=True)
            samples[columns.field, *own] = sorted(pairs)
    return samples


def test_samples_are_the_numbers_themselves_by_series(store: Store) -> None:
    points = [gpu(2, power_watts=3.5), gpu(0, power_watts=1.5, level=40, is_on=True)]
    write(store, [*points, gpu(10, power_watts=9.0)], identity=ACME)
    write(store, [gpu(1, gpu="7", power_watts=2.5)], identity=ACME_2)
    write(store, [gpu(1, power_watts=8.0)], identity=GLOBEX)

    assert read(store, "is_on", "level", "power_watts", "unknown") == {
        ("is_on", "a1", "0"): [(0, 1.0)],
        ("level", "a1", "0"): [(0, 40.0)],
        ("power_watts", "a1", "0"): [(0, 1.5), (2, 3.5)],
        ("power_watts", "a2", "7"): [(1, 2.5)],
    }


@pytest.mark.parametrize(
    ("matcher", "gpus"),
    [
        (("gpu", "=", "1"), ["1"]),
        (("gpu", "!=", "1"), ["0", "10"]),
        (("gpu", "=~", "1.*"), ["1", "10"]),
        (("gpu", "!~", "1.+|0"), ["1"]),
        (("rack", "=", ""), ["0", "1", "10"]),
        (("rack", "!=", ""), []),
    ],
)
def test_samples_are_those_whose_tags_match(
    store: Store, matcher: TagMatcher, gpus: list[str]
) -> None:
    write(store, [gpu(0, gpu=name, x=1.0) for name in ("0", "1", "10")], identity=ACME)

    assert [name for _, _, name in sorted(read(store, "x", matchers=(matcher,)))] == gpus


def test_more_samples_than_a_query_may_read_are_refused(store: Store) -> None:
    write(store, [gpu(at, x=1.0, y=2.0) for at in range(6)], identity=ACME)

    assert len(read(store, "x", max_samples=6)[("x", "a1", "0")]) == 6
    with pytest.raises(TooManySamplesError, match="more than 11 samples of 'gpu'"):
        read(store, "x", "y", max_samples=11)
