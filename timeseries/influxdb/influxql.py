"""InfluxQL statements, with names and values of callers only as quoted text.

A tag and a field may have the same name, so every name has its kind (`"model"::tag`). Columns have
our own names: `f0` is the first requested field, `t0` the first tag.

InfluxDB can't store every name: a newline ends a line, InfluxQL reads a NUL as the end of the
statement and a carriage return as a newline, a backslash before a comma, a space, an equals sign, a
quote or the end escapes what follows, a `#` or a tab at the start is skipped, and no tag or field
may be called `time`. In such a name the character is stored as `%` and two hex digits.
"""

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from timeseries.lineprotocol.grammar import MAX_TIME_NS, MIN_TIME_NS
from timeseries.store import (
    TENANT_TAG,
    Aggregate,
    LatestQuery,
    RangeQuery,
    SampleQuery,
    ScanQuery,
    TagMatcher,
)
from timeseries.validation import check_step

_FUNCTIONS = {
    Aggregate.AVG: "mean",
    Aggregate.MIN: "min",
    Aggregate.MAX: "max",
    Aggregate.SUM: "sum",
    Aggregate.COUNT: "count",
    Aggregate.LAST: "last",
    Aggregate.P50: "median",
}
# A percent sign is only escaped where it would look like an escape.
_ESCAPES = {
    "\x00": "%00",
    "\t": "%09",
    "\n": "%0A",
    "\r": "%0D",
    "#": "%23",
    "%": "%25",
    "\\": "%5C",
}
_TIME, _STORED_TIME = "time", "%74ime"
_UNSTORABLE = re.compile(r"[\x00\n\r]|^[#\t]|\\(?=[\\, =\"]|\Z)|%(?=(?:00|09|0A|0D|23|25|5C|74))")


@dataclass(frozen=True, slots=True)
class MeasurementSchema:
    """The fields with their types, and the tags, of a measurement, by decoded names.

    `source` is its FROM clause.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    tags: AbstractSet[str] = frozenset()
    source: str = ""


def from_clause(measurement: str, databases: Sequence[str] = (), *, policy: str = "") -> str:
    """Return the FROM clause of a measurement.

    Args:
        measurement: its name.
        databases: those to read as one; "" is that of the request, and alone by default.
        policy: the retention policy of the databases; by default that of each.
    """
    name = identifier(encode_name(measurement))
    if not any(databases):
        return f"FROM {name}"
    within = f".{identifier(policy)}." if policy else ".."
    return "FROM " + ", ".join(f"{identifier(database)}{within}{name}" for database in databases)


def tenants_condition(tenants: Sequence[str] | None) -> str | None:
    """Return the condition for these tenants, "" for all; None if nothing can match."""
    if tenants is None:
        return ""
    return _any_of(TENANT_TAG, [tenant for tenant in tenants if tenant])


def where_of(condition: str) -> str:
    """Return the WHERE clause of a condition, "" for none."""
    return f"WHERE {condition}" if condition else ""


def where_clause(
    query: RangeQuery | LatestQuery | ScanQuery | SampleQuery,
    shape: MeasurementSchema,
    *,
    start_ns: int,
    end_ns: int,
) -> str | None:
    """Return the WHERE clause of a query over `[start_ns, end_ns)`; None if nothing can match."""
    clauses = [tenants_condition(query.tenants)]
    filters = {} if isinstance(query, SampleQuery) else query.filters
    for tag, values in filters.items():
        if tag in shape.tags:
            clauses.append(_any_of(tag, values))
        else:
            # No sample has the tag, so all have its empty value.
            clauses.append("" if "" in values else None)
    if isinstance(query, RangeQuery | SampleQuery):
        clauses += map(_matching, query.matchers)
    if None in clauses or start_ns > MAX_TIME_NS or end_ns <= max(start_ns, MIN_TIME_NS):
        return None
    times = [f"time >= {max(start_ns, MIN_TIME_NS)}"]
    times.append(f"time < {end_ns}" if end_ns <= MAX_TIME_NS else f"time <= {MAX_TIME_NS}")
    return "WHERE " + " AND ".join([*times, *filter(None, clauses)])


def group_by_clause(query: RangeQuery | LatestQuery) -> str:
    """Return the GROUP BY clause, without empty windows."""
    parts = [tag_expression(tag) for tag in query.group_by]
    step_ns = query.step_ns if isinstance(query, RangeQuery) else None
    if step_ns is not None:
        parts.append(f"time({check_step(step_ns)}ns)")
    if not parts:
        return ""
    return f"GROUP BY {', '.join(parts)}" + ("" if step_ns is None else " fill(none)")


def aggregate(function: Aggregate, name: str) -> str:
    """Return an aggregate function of a field."""
    return f"{_FUNCTIONS[function]}({field_expression(name)})"


def percentile(name: str, percent: float) -> str:
    """Return the percentile of a field, by nearest rank."""
    return f"percentile({field_expression(name)}, {percent:.12f})"


def select(columns: Mapping[str, str], *clauses: str) -> str:
    """Return a SELECT of expressions, given by column name."""
    listed = ", ".join(
        f"{expression} AS {identifier(name)}" for name, expression in columns.items()
    )
    return " ".join([f"SELECT {listed}", *filter(None, clauses)])


def field_expression(name: str) -> str:
    """Return a field as an expression."""
    return f"{identifier(encode_key(name))}::field"


def scan_statement(query: ScanQuery, shape: MeasurementSchema, *, tags: Sequence[str]) -> str:
    """Return the statement that reads samples with all fields and these tags; "" for none."""
    where = where_clause(query, shape, start_ns=query.start_ns, end_ns=query.end_ns)
    if where is None or not shape.fields:
        return ""
    columns = {f"f{index}": field_expression(name) for index, name in enumerate(shape.fields)}
    columns |= {f"t{index}": tag_expression(tag) for index, tag in enumerate(tags)}
    return select(columns, shape.source, where)


def extent_statements(query: ScanQuery, shape: MeasurementSchema) -> list[str]:
    """Return the statements for the first point, the last point, and the counts of each series.

    InfluxQL counts values of a field, not points. Empty if nothing can match.
    """
    where = where_clause(query, shape, start_ns=query.start_ns, end_ns=query.end_ns)
    if where is None or not shape.fields:
        return []
    columns = {f"f{index}": field_expression(name) for index, name in enumerate(shape.fields)}
    counts = {name: f"count({expression})" for name, expression in columns.items()}
    of = shape.source
    return [
        select(columns, of, where, "LIMIT 1"),
        select(columns, of, where, "ORDER BY time DESC LIMIT 1"),
        select(counts, of, where, "GROUP BY *"),
    ]


def drop_tenant_statement(tenant: str) -> str:
    """Return the statement that drops every series of a tenant (1.x)."""
    return f"DROP SERIES FROM /.*/ WHERE {identifier(TENANT_TAG)} = {literal(encode_name(tenant))}"


def _any_of(tag: str, values: Sequence[str]) -> str | None:
    if not values:
        return None
    name = tag_expression(tag)
    return "(" + " OR ".join(f"{name} = {literal(encode_name(value))}" for value in values) + ")"


def _matching(matcher: TagMatcher) -> str:
    tag, operator, value = matcher
    # In a pattern, InfluxQL takes only the backslash before a slash for its own.
    pattern = value.replace("/", r"\/").replace("\n", r"\n")
    wanted = f"/^(?:{pattern})$/" if "~" in operator else literal(encode_name(value))
    return f"{tag_expression(tag)} {operator} {wanted}"


def tag_expression(name: str) -> str:
    """Return a tag as an expression."""
    return f"{identifier(encode_key(name))}::tag"


def encode_name(text: str) -> str:
    """Return a measurement's name or a tag's value as stored in InfluxDB."""
    return _UNSTORABLE.sub(lambda match: _ESCAPES[match[0]], text)


def encode_key(name: str) -> str:
    """Return the name of a tag or field as stored in InfluxDB."""
    return _STORED_TIME if name == _TIME else encode_name(name)


def decode_name(text: str) -> str:
    """Return the name or value that is stored as `text`."""
    return _STORED.sub(lambda match: _MEANINGS[match[0]], text) if "%" in text else text


def identifier(name: str) -> str:
    """Return a stored name as an InfluxQL identifier."""
    return '"' + name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") + '"'


def literal(text: str) -> str:
    """Return a stored text as an InfluxQL string."""
    return "'" + text.replace("\\", r"\\").replace("'", r"\'").replace("\n", r"\n") + "'"


_MEANINGS = {code: char for char, code in _ESCAPES.items()} | {"%74": "t"}
_STORED = re.compile("|".join(_MEANINGS))
