"""The InfluxQL of each read: names and values of callers only ever as quoted text.

A tag and a field may have one name, so every name says which it is (`"model"::tag`). Columns are
named by ourselves: `f0` is the first field asked for, `t0` the first tag.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from core.errors import InvalidInputError
from timeseries.influxdb.names import identifier, literal, stored, stored_key
from timeseries.store import TENANT_TAG, Aggregate, LatestQuery, RangeQuery, ScanQuery

# What InfluxDB can hold: two of the 64 bit numbers at either end are its own.
MIN_TIME_NS = -(2**63) + 2
MAX_TIME_NS = 2**63 - 2
BOOLEAN, STRING, FLOAT, INTEGER = "boolean", "string", "float", "integer"

_FUNCTIONS = {
    Aggregate.AVG: "mean",
    Aggregate.MIN: "min",
    Aggregate.MAX: "max",
    Aggregate.SUM: "sum",
    Aggregate.COUNT: "count",
    Aggregate.LAST: "last",
    Aggregate.P50: "median",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What the server knows of one measurement, by plain names; `fields` holds the types."""

    fields: Mapping[str, str] = field(default_factory=dict)
    tags: AbstractSet[str] = frozenset()


def source(measurement: str) -> str:
    """Return the FROM clause of a measurement."""
    return f"FROM {identifier(stored(measurement))}"


def tenants_condition(tenants: Sequence[str] | None) -> str | None:
    """Return the condition that keeps to these tenants, "" for all; None if none can match."""
    if tenants is None:
        return ""
    return _any_of(TENANT_TAG, [tenant for tenant in tenants if tenant])


def condition(
    query: RangeQuery | LatestQuery | ScanQuery, shape: Shape, *, start_ns: int, end_ns: int
) -> str | None:
    """Return the WHERE clause of a query over `[start_ns, end_ns)`; None if nothing can match."""
    clauses = [tenants_condition(query.tenants)]
    for tag, values in query.filters.items():
        if tag in shape.tags:
            clauses.append(_any_of(tag, values))
        else:
            # No sample has the tag, so all have its empty value.
            clauses.append("" if "" in values else None)
    if None in clauses or start_ns > MAX_TIME_NS or end_ns <= max(start_ns, MIN_TIME_NS):
        return None
    times = [f"time >= {max(start_ns, MIN_TIME_NS)}"]
    times.append(f"time < {end_ns}" if end_ns <= MAX_TIME_NS else f"time <= {MAX_TIME_NS}")
    return "WHERE " + " AND ".join([*times, *filter(None, clauses)])


def grouping(query: RangeQuery | LatestQuery) -> str:
    """Return the GROUP BY clause, empty groups left out."""
    parts = [_tag(tag) for tag in query.group_by]
    step_ns = query.step_ns if isinstance(query, RangeQuery) else None
    if step_ns is not None:
        if step_ns <= 0:
            raise InvalidInputError(
                f"step_ns is {step_ns}; a window must be wider than 0.",
                errors={"step_ns": ["must be > 0"]},
            )
        parts.append(f"time({int(step_ns)}ns)")
    if not parts:
        return ""
    return f"GROUP BY {', '.join(parts)}" + ("" if step_ns is None else " fill(none)")


def aggregate(function: Aggregate, name: str) -> str:
    """Return an aggregate of a field that InfluxQL has."""
    return f"{_FUNCTIONS[function]}({field_of(name)})"


def percentile(name: str, percent: float) -> str:
    """Return the value of a field at the nearest rank to a percentage."""
    return f"percentile({field_of(name)}, {percent:.12f})"


def select(columns: Mapping[str, str], *clauses: str) -> str:
    """Return a SELECT of expressions by their names."""
    wanted = ", ".join(f"{what} AS {identifier(name)}" for name, what in columns.items())
    return " ".join([f"SELECT {wanted}", *filter(None, clauses)])


def field_of(name: str) -> str:
    """Return a field as an expression."""
    return f"{identifier(stored_key(name))}::field"


def scan_statement(query: ScanQuery, shape: Shape, *, tags: Sequence[str]) -> str:
    """Return the statement that reads samples with all fields and these tags; "" for none."""
    where = condition(query, shape, start_ns=query.start_ns, end_ns=query.end_ns)
    if where is None or not shape.fields:
        return ""
    columns = {f"f{index}": field_of(name) for index, name in enumerate(shape.fields)}
    columns |= {f"t{index}": _tag(tag) for index, tag in enumerate(tags)}
    return select(columns, source(query.measurement), where)


def extent_statements(query: ScanQuery, shape: Shape) -> list[str]:
    """Return the statements for the first point, the last point, and each series' counts.

    InfluxQL counts the values of a field and never points. Empty where nothing can match.
    """
    where = condition(query, shape, start_ns=query.start_ns, end_ns=query.end_ns)
    if where is None or not shape.fields:
        return []
    columns = {f"f{index}": field_of(name) for index, name in enumerate(shape.fields)}
    counts = {name: f"count({what})" for name, what in columns.items()}
    of = source(query.measurement)
    return [
        select(columns, of, where, "LIMIT 1"),
        select(columns, of, where, "ORDER BY time DESC LIMIT 1"),
        select(counts, of, where, "GROUP BY *"),
    ]


def first_value_statement(measurement: str, name: str, where: str) -> str:
    """Return the statement that finds one value of a field under a condition."""
    return select({"v": field_of(name)}, source(measurement), f"WHERE {where}", "LIMIT 1")


def tag_keys_statement(measurement: str, where: str) -> str:
    """Return the statement that lists the tags of a measurement under a condition."""
    return f"SHOW TAG KEYS {source(measurement)} WHERE {where}"


def shape_statements(measurement: str) -> list[str]:
    """Return the statements that list the fields and the tags of a measurement."""
    return [f"SHOW FIELD KEYS {source(measurement)}", f"SHOW TAG KEYS {source(measurement)}"]


def measurements_statement(where: str) -> str:
    """Return the statement that lists the measurements which meet a condition."""
    return f"SHOW MEASUREMENTS WHERE {where}" if where else "SHOW MEASUREMENTS"


def tag_values_statement(measurement: str, tag: str, where: str) -> str:
    """Return the statement that lists the values of a tag under a condition."""
    listing = f"SHOW TAG VALUES {source(measurement)} WITH KEY = {identifier(stored_key(tag))}"
    return f"{listing} WHERE {where}" if where else listing


def drop_tenant_statement(tenant: str) -> str:
    """Return the statement that drops every series of a tenant (1.x)."""
    return f"DROP SERIES FROM /.*/ WHERE {identifier(TENANT_TAG)} = {literal(stored(tenant))}"


def delete_before_statement(before_ns: int) -> str:
    """Return the statement that deletes all samples before an instant (1.x)."""
    return f"DELETE FROM /.*/ WHERE time < {min(before_ns, MAX_TIME_NS)}"  # noqa: S608 - a number


def _any_of(tag: str, values: Sequence[str]) -> str | None:
    if not values:
        return None
    name = _tag(tag)
    return "(" + " OR ".join(f"{name} = {literal(stored(value))}" for value in values) + ")"


def _tag(name: str) -> str:
    return f"{identifier(stored_key(name))}::tag"
