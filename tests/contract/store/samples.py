"""The samples that the store contract writes, from `START_NS` on."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from timeseries.columns import SeriesColumns
from timeseries.points import FieldValue, Point
from timeseries.store import Aggregate, RangeQuery, Series, Store, write

SECOND_NS = 1_000_000_000
FIVE_MINUTES_NS = 300 * SECOND_NS
# A multiple of five minutes: 300 x 5,666,666 seconds.
START_NS = 1_699_999_800 * SECOND_NS

ACME = {"tenant": "acme", "appliance": "a1"}
ACME_2 = {"tenant": "acme", "appliance": "a2"}
GLOBEX = {"tenant": "globex", "appliance": "g1"}


def gpu(
    seconds: float, *, gpu: str = "0", tags: Mapping[str, str] | None = None, **fields: FieldValue
) -> Point:
    """Return a point of measurement `gpu`, some seconds after `START_NS`."""
    return gpu_with(fields, seconds=seconds, tags={"gpu": gpu, **(tags or {})})


def gpu_with(
    fields: Mapping[str, FieldValue], *, seconds: float = 0, tags: Mapping[str, str] | None = None
) -> Point:
    """Return such a point with fields of any name."""
    return Point("gpu", tags or {}, fields, START_NS + int(seconds * SECOND_NS))


def power(store: Store, aggregate: Aggregate, *, step_ns: int | None = None) -> list[Series]:
    """Return an aggregate of acme's `gpu.power_watts` over the first hour."""
    return store.query_range(
        RangeQuery(
            measurement="gpu",
            fields=("power_watts",),
            start_ns=START_NS,
            end_ns=START_NS + 3600 * SECOND_NS,
            aggregate=aggregate,
            step_ns=step_ns,
            tenants=("acme",),
        )
    )


def write_powers(store: Store, *watts: FieldValue) -> None:
    """Write one value of `gpu.power_watts` a second for acme."""
    points = [gpu(second, power_watts=value) for second, value in enumerate(watts)]
    assert write(store, points, identity=ACME) == []


def series_of_columns(columns: Iterable[SeriesColumns], tags: Sequence[str]) -> list[Series]:
    """Return columns as series in the order of `query_range`."""
    series_list = []
    for column in columns:
        ends = np.cumsum(column.lengths)
        for group, end, length in zip(column.groups, ends, column.lengths, strict=True):
            part = slice(end - length, end)
            pairs = sorted(
                zip(column.times_ns[part].tolist(), column.values[part].tolist(), strict=True)
            )
            if pairs:
                times, values = map(list, zip(*pairs, strict=True))
                series_list.append(
                    Series(column.field, dict(zip(tags, group, strict=True)), times, values)
                )
    return sorted(series_list, key=lambda series: (series.field, list(series.tags.values())))
