"""Range queries: which statements answer one, and its series from their rows.

A number's aggregates are InfluxQL's own. It has none for booleans but `count` and `last`: theirs
come from how many are true. Quantiles of numbers take two requests, see `influxdb_quantiles`.
"""

from collections.abc import Callable, Iterator, Sequence

from core.errors import InvalidInputError
from timeseries.influxdb.http import ResultSeries, Value
from timeseries.influxdb.names import plain, stored_key
from timeseries.influxdb.ql import (
    BOOLEAN,
    STRING,
    Shape,
    aggregate,
    condition,
    field_of,
    grouping,
    select,
    source,
)
from timeseries.influxdb.quantiles import COUNT, Quantiles, quantile_of_flags
from timeseries.store import Aggregate, RangeQuery, Series

Ask = Callable[[Sequence[str]], Iterator[tuple[int, ResultSeries]]]
Group = tuple[str, ...]
Windows = dict[tuple[Group, int], dict[str, Value]]

MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
QUANTILES = {Aggregate.P50: 0.5, Aggregate.P95: 0.95, Aggregate.P99: 0.99}
_FOR_ANY_TYPE = frozenset({Aggregate.COUNT, Aggregate.LAST})
_TRUE, _ALL = "t", "n"


def group_of(series: ResultSeries, tags: Sequence[str]) -> Group:
    """Return the plain values of the tags that a series of an answer is grouped by."""
    return tuple(plain(series.tags.get(stored_key(tag), "")) for tag in tags)


def range_series(query: RangeQuery, shape: Shape, ask: Ask) -> list[Series]:
    """Answer a range query.

    Args:
        shape: what the measurement is like.
        ask: runs statements; yields the number of each and its series.

    Raises:
        InvalidInputError: a window of no width, or an average of text.
    """
    by = grouping(query)
    names = sorted(shape.fields.keys() & set(query.fields))
    for name in names:
        _check(name, shape.fields[name], query.aggregate)
    where = condition(query, shape, start_ns=query.start_ns, end_ns=query.end_ns)
    if where is None or not names:
        return []
    asking = _Asking(query, where, by, ask)
    flags = [name for name in names if shape.fields[name] == BOOLEAN]
    if query.aggregate in _FOR_ANY_TYPE:
        flags = []
    found = asking.flags(flags)
    numbers = [name for name in names if name not in flags]
    if query.aggregate in (Aggregate.P95, Aggregate.P99):
        found |= asking.quantiles(numbers)
    else:
        found |= asking.aggregates(numbers)
    return [series for name in names for series in _series(query, name, found.get(name, {}))]


class _Asking:
    """One range query on its way; each method returns the values of fields by window."""

    def __init__(self, query: RangeQuery, where: str, by: str, ask: Ask) -> None:
        self._query = query
        self._where = where
        self._by = by
        self._ask = ask

    def aggregates(self, names: Sequence[str]) -> dict[str, dict[tuple[Group, int], float]]:
        """Ask for an aggregate that InfluxQL has, of all fields at once."""
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
        """Count the windows of each field, then ask for the ranks around the quantile."""
        counts = self._windows(
            [self._select({COUNT: aggregate(Aggregate.COUNT, name)}) for name in names],
            count=len(names),
        )
        ratio = QUANTILES[self._query.aggregate]
        wanted = {
            name: Quantiles.of(ratio, {_number(row[COUNT]) for row in windows.values()})
            for name, windows in zip(names, counts, strict=True)
            if windows
        }
        ranks = self._windows(
            [self._select(quantiles.columns(name)) for name, quantiles in wanted.items()],
            count=len(wanted),
        )
        return {
            name: {
                at: value
                for at, row in windows.items()
                if (value := quantiles.value(row)) is not None
            }
            for (name, quantiles), windows in zip(wanted.items(), ranks, strict=True)
        }

    def flags(self, names: Sequence[str]) -> dict[str, dict[tuple[Group, int], float]]:
        """Count the values of boolean fields and those that are true."""
        counts = {name: aggregate(Aggregate.COUNT, name) for name in names}
        alls = [self._select({_ALL: count}) for count in counts.values()]
        trues = [
            self._select({_TRUE: count}, f"AND {field_of(name)} = true")
            for name, count in counts.items()
        ]
        answers = self._windows([*alls, *trues], count=2 * len(names))
        found = {}
        for index, name in enumerate(names):
            true = answers[len(names) + index]
            found[name] = {
                at: _of_flags(
                    self._query.aggregate,
                    true=_number(true[at][_TRUE]) if at in true else 0,
                    total=_number(row[_ALL]),
                )
                for at, row in answers[index].items()
            }
        return found

    def _select(self, columns: dict[str, str], more: str = "") -> str:
        return select(columns, source(self._query.measurement), self._where, more, self._by)

    def _windows(self, statements: Sequence[str], *, count: int) -> list[Windows]:
        """Return the rows of each statement by group and window start."""
        answers: list[Windows] = [{} for _ in range(count)]
        for number, series in self._ask(statements):
            group = group_of(series, self._query.group_by)
            names = series.columns[1:]
            for time_ns, *values in series.values:
                start_ns = _number(time_ns) if self._query.step_ns else self._start_ns
                answers[number][group, start_ns] = dict(zip(names, values, strict=True))
        return answers

    @property
    def _start_ns(self) -> int:
        return max(MIN_INT64, min(MAX_INT64, self._query.start_ns))


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


def _check(name: str, kind: str, function: Aggregate) -> None:
    if kind == STRING and function is not Aggregate.COUNT:
        raise InvalidInputError(
            f"Field {name!r} holds text, which has no {function}; "
            "count it, or read its newest value instead.",
            errors={"aggregate": [f"{function} is not possible for text; use count"]},
        )


def _of_flags(function: Aggregate, *, true: int, total: int) -> float:
    if function in QUANTILES:
        return quantile_of_flags(QUANTILES[function], false=total - true, true=true)
    return {
        Aggregate.AVG: true / total,
        Aggregate.SUM: float(true),
        Aggregate.MIN: float(true == total),
        Aggregate.MAX: float(true > 0),
    }[function]


def _number(value: Value) -> int:
    if not isinstance(value, int):
        raise TypeError(f"InfluxDB answered {value!r} for a whole number")
    return value
