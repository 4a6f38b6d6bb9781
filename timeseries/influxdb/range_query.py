"""Range queries: the statements that answer one, and the series from their rows.

Aggregates of numbers are those of InfluxQL. For booleans it has only `count` and `last`; the others
are calculated from the number of true values.

InfluxQL's `percentile` takes the nearest rank. To interpolate, the windows are counted first; for
each size, the values at the two ranks around the quantile are then requested, and the result lies
between them as in PostgreSQL's `percentile_cont`. Windows of one range have nearly all the same
size; of more than `MAX_SIZES` sizes, up to `MAX_SAMPLES` samples are read and sorted here. Above
that, the largest windows use the nearest rank.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from timeseries.influxdb.client import ResultSeries, Value
from timeseries.influxdb.influxql import (
    MeasurementSchema,
    aggregate,
    decode_name,
    encode_key,
    field_expression,
    group_by_clause,
    percentile,
    select,
    where_clause,
)
from timeseries.lineprotocol.grammar import MAX_INT64, MIN_INT64
from timeseries.store import Aggregate, RangeQuery, Series
from timeseries.successive import SUCCESSIVE, SuccessiveValues
from timeseries.validation import FieldType, check_aggregate

RunQuery = Callable[[Sequence[str]], Iterator[tuple[int, ResultSeries]]]
Group = tuple[str, ...]
Windows = dict[tuple[Group, int], dict[str, Value]]
QUANTILES = {Aggregate.P50: 0.5, Aggregate.P95: 0.95, Aggregate.P99: 0.99}
_FOR_ANY_TYPE = frozenset({Aggregate.COUNT, Aggregate.LAST})
_TRUE, _ALL = "t", "n"
MAX_SIZES = 16
MAX_SAMPLES = 200_000
COUNT, NEAREST = "n", "near"


def group_of(series: ResultSeries, tags: Sequence[str]) -> Group:
    """Return the decoded values of the tags that a result is grouped by."""
    return tuple(decode_name(series.tags.get(encode_key(tag), "")) for tag in tags)


def range_series(query: RangeQuery, schema: MeasurementSchema, run: RunQuery) -> list[Series]:
    """Answer a range query.

    Args:
        schema: the fields and tags of the measurement.
        run: runs statements; yields series with the index of their statement.

    Raises:
        InvalidInputError: the step is not positive, or the aggregate is not possible for text.
    """
    by = group_by_clause(query)
    names = sorted(schema.fields.keys() & set(query.fields))
    for name in names:
        check_aggregate(name, schema.fields[name], query.aggregate)
    where = where_clause(query, schema, start_ns=query.start_ns, end_ns=query.end_ns)
    if where is None or not names:
        return []
    read = _RangeRead(query, f"{schema.source} {where}", by, run)
    booleans = [name for name in names if schema.fields[name] == FieldType.BOOLEAN]
    if query.aggregate in _FOR_ANY_TYPE:
        booleans = []
    if query.aggregate in SUCCESSIVE:
        return [
            series
            for name in names
            for series in _series(query, name, _successive(query, schema, name, where, run))
        ]
    values_of = read.booleans(booleans)
    numbers = [name for name in names if name not in booleans]
    if query.aggregate in (Aggregate.P95, Aggregate.P99):
        values_of |= read.quantiles(numbers)
    else:
        values_of |= read.aggregates(numbers)
    return [series for name in names for series in _series(query, name, values_of.get(name, {}))]


class _RangeRead:
    """The requests of one range query; each method returns the values of fields by window."""

    def __init__(self, query: RangeQuery, source: str, by: str, run: RunQuery) -> None:
        self._query = query
        self._source = source
        self._by = by
        self._run = run

    def aggregates(self, names: Sequence[str]) -> dict[str, dict[tuple[Group, int], float]]:
        """Read an aggregate that InfluxQL has, of all fields in one statement."""
        function = self._query.aggregate
        columns = {f"f{index}": aggregate(function, name) for index, name in enumerate(names)}
        (windows,) = self._windows([self._select(columns)] if names else [], count=1)
        return {
            name: {
                at: float(value)
                for at, row in windows.items()
                if (value := row[f"f{index}"]) is not None
            }
            for index, name in enumerate(names)
        }

    def quantiles(self, names: Sequence[str]) -> dict[str, dict[tuple[Group, int], float]]:
        """Count the values of each window, then read the ranks around the quantile."""
        counts = self._windows(
            [self._select({COUNT: aggregate(Aggregate.COUNT, name)}) for name in names],
            count=len(names),
        )
        ratio = QUANTILES[self._query.aggregate]
        sizes_of = {
            name: [_number(row[COUNT]) for row in windows.values()]
            for name, windows in zip(names, counts, strict=True)
            if windows
        }
        uneven = [
            name
            for name, sizes in sizes_of.items()
            if len(set(sizes)) > MAX_SIZES and sum(sizes) <= MAX_SAMPLES
        ]
        quantiles_of = {
            name: Quantiles.of(ratio, sizes)
            for name, sizes in sizes_of.items()
            if name not in uneven
        }
        ranks = self._windows(
            [self._select(quantiles.columns(name)) for name, quantiles in quantiles_of.items()],
            count=len(quantiles_of),
        )
        values_of = {
            name: {
                at: value
                for at, row in windows.items()
                if (value := quantiles.value(row)) is not None
            }
            for (name, quantiles), windows in zip(quantiles_of.items(), ranks, strict=True)
        }
        return values_of | {name: self._sorted_quantiles(name, ratio) for name in uneven}

    def _sorted_quantiles(self, name: str, ratio: float) -> dict[tuple[Group, int], float]:
        values: dict[tuple[Group, int], list[float]] = {}
        for window, _, _, value in _samples(self._query, self._source, name, self._run):
            values.setdefault(window, []).append(value)
        quantiles = {}
        for window, numbers in values.items():
            low, high, share = _ranks(ratio, len(numbers))
            numbers.sort()
            quantiles[window] = numbers[low] + (numbers[high] - numbers[low]) * share
        return quantiles

    def booleans(self, names: Sequence[str]) -> dict[str, dict[tuple[Group, int], float]]:
        """Count the values of boolean fields, and the true ones."""
        counts = {name: aggregate(Aggregate.COUNT, name) for name in names}
        alls = [self._select({_ALL: count}) for count in counts.values()]
        trues = [
            self._select({_TRUE: count}, f"AND {field_expression(name)} = true")
            for name, count in counts.items()
        ]
        answers = self._windows([*alls, *trues], count=2 * len(names))
        aggregates = {}
        for index, name in enumerate(names):
            true = answers[len(names) + index]
            aggregates[name] = {
                at: _boolean_aggregate(
                    self._query.aggregate,
                    true=_number(true[at][_TRUE]) if at in true else 0,
                    total=_number(row[_ALL]),
                )
                for at, row in answers[index].items()
            }
        return aggregates

    def _select(self, columns: dict[str, str], condition: str = "") -> str:
        return select(columns, self._source, condition, self._by)

    def _windows(self, statements: Sequence[str], *, count: int) -> list[Windows]:
        """Return the rows of each statement by group and window start."""
        answers: list[Windows] = [{} for _ in range(count)]
        for number, series in self._run(statements):
            group = group_of(series, self._query.group_by)
            names = series.columns[1:]
            for time_ns, *values in series.values:
                start_ns = _number(time_ns) if self._query.step_ns else self._start_ns
                answers[number][group, start_ns] = dict(zip(names, values, strict=True))
        return answers

    @property
    def _start_ns(self) -> int:
        return max(MIN_INT64, min(MAX_INT64, self._query.start_ns))


def _successive(
    query: RangeQuery, schema: MeasurementSchema, name: str, where: str, run: RunQuery
) -> dict[tuple[Group, int], float]:
    """Read the samples of a field, series by series, for an aggregate that needs each of them."""
    values = SuccessiveValues(query.aggregate)
    for window, series, at_ns, value in _samples(query, f"{schema.source} {where}", name, run):
        values.add(window, series, at_ns, value)
    return values.windows()


def _samples(
    query: RangeQuery, source: str, name: str, run: RunQuery
) -> Iterator[tuple[tuple[Group, int], Group, int, float]]:
    """Yield the samples of a field, series by series: window, series, time and value."""
    statement = select({"f0": field_expression(name)}, source, "GROUP BY *")
    for _, series in run([statement]):
        group = group_of(series, query.group_by)
        tags = tuple(text for pair in sorted(series.tags.items()) for text in pair)
        for time_ns, value in series.values:
            if value is not None:
                at_ns = _number(time_ns)
                start_ns = at_ns - at_ns % query.step_ns if query.step_ns else query.start_ns
                yield (group, start_ns), tags, at_ns, float(value)


def _series(
    query: RangeQuery, name: str, windows: dict[tuple[Group, int], float]
) -> Iterator[Series]:
    groups: dict[Group, list[tuple[int, float]]] = {}
    for (group, start_ns), value in windows.items():
        groups.setdefault(group, []).append((start_ns, value))
    for group, points in sorted(groups.items()):
        points.sort()
        yield Series(
            name,
            dict(zip(query.group_by, group, strict=True)),
            [start_ns for start_ns, _ in points],
            [value for _, value in points],
        )


def _boolean_aggregate(function: Aggregate, *, true: int, total: int) -> float:
    if function in QUANTILES:
        return boolean_quantile(QUANTILES[function], false=total - true, true=true)
    return {
        Aggregate.AVG: true / total,
        Aggregate.SUM: float(true),
        Aggregate.MIN: float(true == total),
        Aggregate.MAX: float(true > 0),
    }[function]


def _number(value: Value) -> int:
    if not isinstance(value, int):
        raise TypeError(f"InfluxDB returned {value!r} instead of an integer")
    return value


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The expressions for a quantile of windows of some sizes.

    Attributes:
        ratio: the quantile, from 0 to 1.
        sizes: the numbers of values of the windows; each has two columns.
    """

    ratio: float
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, ratio: float, sizes: Iterable[int]) -> "Quantiles":
        """Return the expressions for the smallest of these sizes."""
        return cls(ratio, tuple(sorted(set(sizes))[:MAX_SIZES]))

    def columns(self, field: str) -> dict[str, str]:
        """Return the expressions by column name."""
        from_ranks = {
            f"{side}{size}": percentile(field, 100 * (rank + 1) / size)
            for size in self.sizes
            for side, rank in zip("lh", _ranks(self.ratio, size)[:2], strict=True)
        }
        return {
            COUNT: aggregate(Aggregate.COUNT, field),
            NEAREST: percentile(field, 100 * self.ratio),
            **from_ranks,
        }

    def value(self, row: Mapping[str, Value]) -> float | None:
        """Return the quantile of a window from its row."""
        size = int(row[COUNT] or 0)
        low, high = row.get(f"l{size}"), row.get(f"h{size}")
        if low is None or high is None:
            # Above MAX_SIZES, or a sample arrived between the two requests.
            low = high = row[NEAREST]
        if low is None or high is None:
            return None
        return float(low) + (float(high) - float(low)) * _ranks(self.ratio, size)[2]


def boolean_quantile(ratio: float, *, false: int, true: int) -> float:
    """Return the quantile of a number of zeros and ones."""
    low, high, share = _ranks(ratio, false + true)
    first, second = float(low >= false), float(high >= false)
    return first + (second - first) * share


def _ranks(ratio: float, size: int) -> tuple[int, int, float]:
    """Return the ranks around a quantile, from 0, and its distance from the lower one."""
    rank = ratio * (size - 1)
    low = math.floor(rank)
    return low, math.ceil(rank), rank - low
