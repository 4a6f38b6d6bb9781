"""Aggregates for programs: a range query with checked names, bounded, and paged by group.

A *group* is one combination of the values of `group_by`. Names are checked against those of the
query's tenants, so a suggestion never reveals another tenant's. Long ranges are read in parts of
whole windows, and given up between two of them when they take too long.

Source: docs/decisions/0012-sample-queries.md.
"""

import csv
import difflib
import io
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC

import pyarrow as pa

from core.clock import NS_PER_SECOND, from_ns
from core.csv_cells import guarded
from core.errors import InvalidInputError
from timeseries.store import IDENTITY_TAGS, Aggregate, RangeQuery, Store
from timeseries.validation import check_aggregate

MAX_SPAN_DAYS = 732
MAX_WINDOWS = 10_000
MAX_GROUPS = 10_000
MAX_VALUES = 50_000
MAX_SECONDS = 30.0
MAX_FIELDS = 20
MAX_TAGS = 8
_MAX_LISTED = 10
_MAX_PARTS = 16
_NS_PER_DAY = 86_400 * NS_PER_SECOND

GroupKey = tuple[str, ...]
ValuesByField = dict[str, dict[int, float]]
"""A group's values by field and by start of the window."""
Errors = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Group:
    """The values of one group: a column for each field, None where a window has none."""

    tags: Mapping[str, str]
    times_ns: Sequence[int]
    values: Mapping[str, Sequence[float | None]]


def query_groups(
    store: Store,
    query: RangeQuery,
    *,
    page: int,
    page_size: int,
    seconds: Callable[[], float] = time.monotonic,
) -> tuple[list[Group], int]:
    """Return the groups of a page, ordered by their tags, and the number of all groups.

    `seconds` is a clock that only counts.

    Raises:
        InvalidInputError: a name is unknown, or the query exceeds a limit; reports all errors.
    """
    deadline = seconds() + MAX_SECONDS

    def check_time() -> None:
        if seconds() > deadline:
            message = (
                f"The query takes longer than {MAX_SECONDS:g} s. Use a shorter range, a larger "
                "step, fewer fields or a filter."
            )
            raise_errors({"since": [message]})

    raise_errors(_name_errors(store, query) | _limit_errors(query))
    has_windows = query.step_ns is not None and bool(query.group_by)
    # One count for each group tells which belong to the page; only these are read by window.
    counting = replace(query, aggregate=Aggregate.COUNT, step_ns=None) if has_windows else query
    values_of = _read(store, counting, check_time)
    keys = sorted(values_of)
    _check_groups(len(keys))
    shown = keys[(page - 1) * page_size : page * page_size]
    _check_values(query, len(shown))
    if has_windows and shown:
        values_of = _read(store, _narrowed(query, shown), check_time)
    return [_group(query, key, values_of[key]) for key in shown if key in values_of], len(keys)


def to_csv(query: RangeQuery, groups: Iterable[Group]) -> str:
    """Return groups as CSV: a row for each group and window, with time, tags and fields.

    A field with the name of a tag, or `time`, becomes `field_<name>`, a tag `time` becomes
    `tag_time`, and text that a spreadsheet would run starts with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(map(guarded, _columns(query)))
    for group in groups:
        named = [guarded(value) for value in group.tags.values()]
        columns = [group.values[name] for name in query.fields]
        for time_ns, *values in zip(group.times_ns, *columns, strict=True):
            cells = ["" if value is None else repr(value) for value in values]
            writer.writerow([rfc3339(time_ns), *named, *cells])
    return text.getvalue()


def to_arrow(query: RangeQuery, groups: Iterable[Group]) -> bytes:
    """Return groups as a stream of Arrow's IPC format, with the columns of `to_csv`.

    Times are nanoseconds in UTC, tags strings and fields floats.
    """
    columns: list[list[object]] = [[] for _ in _columns(query)]
    for group in groups:
        count = len(group.times_ns)
        tags = ([value] * count for value in group.tags.values())
        values = (group.values[name] for name in query.fields)
        for column, cells in zip(columns, [group.times_ns, *tags, *values], strict=True):
            column.extend(cells)
    types = [pa.timestamp("ns", tz="UTC")]
    types += [pa.string()] * len(query.group_by) + [pa.float64()] * len(query.fields)
    schema = pa.schema(zip(_columns(query), types, strict=True))
    arrays = [pa.array(cells, kind) for cells, kind in zip(columns, types, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue())


def _columns(query: RangeQuery) -> list[str]:
    """Return the names of columns: a field never has the name of a tag."""
    reserved = {"time", *query.group_by}
    tags = ["tag_time" if tag == "time" else tag for tag in query.group_by]
    fields = [f"field_{name}" if name in reserved else name for name in query.fields]
    return ["time", *tags, *fields]


def rfc3339(time_ns: int) -> str:
    """Return an instant as in `2026-03-01T12:00:00Z`."""
    return from_ns(time_ns).astimezone(UTC).isoformat().replace("+00:00", "Z")


def raise_errors(errors: Mapping[str, Sequence[str]]) -> None:
    """Raise `InvalidInputError` with all errors, if there are any."""
    if errors:
        details = " ".join(error for messages in errors.values() for error in messages)
        raise InvalidInputError(f"The query is invalid. {details}", errors=errors)


def _limit_errors(query: RangeQuery) -> Errors:
    span_ns = query.end_ns - query.start_ns
    if span_ns <= 0:
        return {"since": [f"'since' ({rfc3339(query.start_ns)}) must be before 'until'."]}
    errors: Errors = {}
    if span_ns > MAX_SPAN_DAYS * _NS_PER_DAY:
        days = math.ceil(span_ns / _NS_PER_DAY)
        errors["since"] = [
            f"The time range has {days} days. Query at most {MAX_SPAN_DAYS} days at once."
        ]
    elif _windows(query) > MAX_WINDOWS:
        message = (
            f"The range has {_windows(query):,} windows, more than {MAX_WINDOWS:,}. "
            f"Use a shorter range, or a step of {_larger(span_ns, MAX_WINDOWS)}."
        )
        errors["step"] = [message]
    for name, names, limit in (
        ("fields", query.fields, MAX_FIELDS),
        ("group_by", query.group_by, MAX_TAGS),
        ("filter", query.filters, MAX_TAGS),
    ):
        if len(names) > limit:
            errors[name] = [f"{len(names)} are too many. Use at most {limit}."]
    return errors


def _name_errors(store: Store, query: RangeQuery) -> Errors:
    kinds = store.fields(query.measurement, tenants=query.tenants)
    if not kinds:
        measurements = store.measurements(tenants=query.tenants)
        return {"measurement": [unknown_name("measurement", query.measurement, measurements)]}
    errors: Errors = {}
    for name in query.fields:
        if name not in kinds:
            errors.setdefault("fields", []).append(unknown_name("field", name, kinds))
            continue
        try:
            check_aggregate(name, kinds[name], query.aggregate)
        except InvalidInputError as error:
            errors.setdefault("aggregate", []).append(error.message)
    if query.group_by or query.filters:
        tags = {*store.tags(query.measurement, tenants=query.tenants), *IDENTITY_TAGS}
        for where, names in (("group_by", query.group_by), ("filter", tuple(query.filters))):
            unknown = [unknown_name("tag", name, tags) for name in names if name not in tags]
            if unknown:
                errors[where] = unknown
    return errors


def unknown_name(kind: str, name: str, valid_names: Iterable[str]) -> str:
    """Return the error for a name that is not known, with a suggestion."""
    names = sorted(valid_names)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"Unknown {kind} {name!r}. Did you mean {near[0]!r}?"
    if not names:
        return f"Unknown {kind} {name!r}. There are no samples yet."
    ellipsis = ", ..." if len(names) > _MAX_LISTED else ""
    return f"Unknown {kind} {name!r}. Use one of {', '.join(names[:_MAX_LISTED])}{ellipsis}."


def _read(
    store: Store, query: RangeQuery, check_time: Callable[[], None]
) -> dict[GroupKey, ValuesByField]:
    groups: dict[GroupKey, ValuesByField] = {}
    for part in _parts(query):
        for series in store.query_range(part):
            group = groups.setdefault(tuple(series.tags.values()), {})
            values = group.setdefault(series.field, {})
            values.update(zip(series.times_ns, series.values, strict=True))
        check_time()
    return groups


def _parts(query: RangeQuery) -> Iterator[RangeQuery]:
    """Yield a query of windows over more than a day in parts of whole windows."""
    step_ns = query.step_ns
    if step_ns is None or query.end_ns - query.start_ns <= _NS_PER_DAY:
        yield query
        return
    width_ns = -(-_windows(query) // _MAX_PARTS) * step_ns
    start_ns = query.start_ns
    while start_ns < query.end_ns:
        end_ns = min(start_ns // step_ns * step_ns + width_ns, query.end_ns)
        yield replace(query, start_ns=start_ns, end_ns=end_ns)
        start_ns = end_ns


def _narrowed(query: RangeQuery, shown: Sequence[GroupKey]) -> RangeQuery:
    """Return the query with filters that allow the groups shown, and few others."""
    filters = dict(query.filters)
    for tag, values in zip(query.group_by, zip(*shown, strict=True), strict=True):
        filters[tag] = tuple(sorted(set(values)))
    return replace(query, filters=filters)


def _group(query: RangeQuery, key: GroupKey, values_of: ValuesByField) -> Group:
    times_ns = sorted({at for values in values_of.values() for at in values})
    columns = {name: values_of.get(name, {}) for name in query.fields}
    return Group(
        dict(zip(query.group_by, key, strict=True)),
        times_ns,
        {name: [_finite(values.get(at)) for at in times_ns] for name, values in columns.items()},
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _check_groups(groups: int) -> None:
    if groups > MAX_GROUPS:
        message = (
            f"The query has {groups:,} groups, more than {MAX_GROUPS:,}. "
            "Group by fewer tags, or add a filter."
        )
        raise_errors({"group_by": [message]})


def _check_values(query: RangeQuery, groups: int) -> None:
    values = groups * len(query.fields) * _windows(query)
    if values > MAX_VALUES:
        max_windows = MAX_VALUES // (groups * len(query.fields))
        step = (
            f"a step of {_larger(query.end_ns - query.start_ns, max_windows)}, "
            if max_windows
            else ""
        )
        message = (
            f"The page has up to {values:,} values (groups: {groups:,}, fields: "
            f"{len(query.fields)}, windows: {_windows(query):,}), more than {MAX_VALUES:,}. "
            f"Use {step}a shorter range or a smaller page_size."
        )
        raise_errors({"page_size": [message]})


def _windows(query: RangeQuery) -> int:
    if query.step_ns is None:
        return 1
    return -(-query.end_ns // query.step_ns) - query.start_ns // query.step_ns


def _larger(span_ns: int, windows: int) -> str:
    """Return the smallest step in whole minutes that gives at most these windows."""
    minutes = math.ceil(span_ns / max(1, windows - 1) / (60 * NS_PER_SECOND))
    return f"at least {minutes}m"
