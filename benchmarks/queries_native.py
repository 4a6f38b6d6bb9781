"""The questions in the peers' own languages, as their users would ask them: InfluxQL, MetricsQL.

Peers are asked over one connection that is kept, and their JSON is decoded: an answer is had when
its numbers can be used. VictoriaMetrics leaves its cache of answers alone, which the others do not
have.
"""

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from benchmarks.peers import DATABASE
from benchmarks.processes import BenchmarkError
from timeseries.store import Aggregate, LatestQuery, RangeQuery

NS_PER_SECOND = 10**9
NS_PER_MILLISECOND = 10**6
MINUTE_NS = 60 * NS_PER_SECOND
TIMEOUT_SECONDS = 120.0
_INFLUXQL = {Aggregate.AVG: 'mean("{}")', Aggregate.P95: 'percentile("{}", 95)'}
_P95 = 0.95


@dataclass(frozen=True, slots=True)
class Answer:
    """The size of an answer; its mean shows whether stores return the same values."""

    series: int
    values: int
    mean: float

    @classmethod
    def of(cls, columns: Sequence[Sequence[float]], *, series: int) -> "Answer":
        """Return what some columns of values amount to."""
        count = sum(map(len, columns))
        return cls(series, count, sum(map(sum, columns)) / count if count else 0.0)


@contextmanager
def kept_connection(port: int) -> Iterator[http.client.HTTPConnection]:
    """Connect to a server on this machine for the length of the block."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        yield connection
    finally:
        connection.close()


def ask_influxdb(connection: http.client.HTTPConnection, query: RangeQuery | LatestQuery) -> Answer:
    """Ask InfluxDB by InfluxQL."""
    asked = {"db": DATABASE, "epoch": "ns", "q": influxql(query)}
    result = _get(connection, "/query", asked)["results"][0]
    if "error" in result:
        raise BenchmarkError(f"InfluxDB refused {asked['q']}: {result['error']}")
    series = result.get("series", [])
    columns = [[row[1] for row in group["values"] if row[1] is not None] for group in series]
    return Answer.of(columns, series=len(series))


def influxql(query: RangeQuery | LatestQuery) -> str:
    """Return the query in InfluxQL."""
    field = query.fields[0]
    where = [f"\"{tag}\" = '{value}'" for tag, value in _matches(query)]
    groups = [f'"{tag}"' for tag in query.group_by]
    if isinstance(query, LatestQuery):
        expression = f'last("{field}")'
        where.append(f"time >= {query.since_ns}")
    else:
        where += [f"time >= {query.start_ns}", f"time < {query.end_ns}"]
        expression = f'"{field}"' if is_raw(query) else _INFLUXQL[query.aggregate].format(field)
        groups += [] if is_raw(query) else [f"time({query.step_ns}ns)"]
    text = f'SELECT {expression} FROM "{query.measurement}" WHERE {" AND ".join(where)}'  # noqa: S608 - ours
    return f"{text} GROUP BY {', '.join(groups)}"


def is_raw(query: RangeQuery) -> bool:
    """Return whether a query asks for samples as they came: steps narrower than a minute."""
    return query.step_ns is not None and query.step_ns < MINUTE_NS


def ask_victoriametrics(
    connection: http.client.HTTPConnection, query: RangeQuery | LatestQuery
) -> Answer:
    """Ask VictoriaMetrics by MetricsQL."""
    path, asked = metricsql(query)
    groups = _get(connection, path, asked)["data"]["result"]
    columns = [
        [float(text) for _, text in group.get("values") or [group["value"]]] for group in groups
    ]
    return Answer.of(columns, series=len(groups))


def metricsql(query: RangeQuery | LatestQuery) -> tuple[str, dict[str, str]]:
    """Return the path and the parameters that ask in MetricsQL."""
    matches = ",".join(f'{tag}="{value}"' for tag, value in _matches(query))
    name = f"{query.measurement}_{query.fields[0]}{{{matches}}}"
    if isinstance(query, LatestQuery):
        # Its newest samples are at most a minute older than the window that is asked for.
        at = {"time": _seconds(query.since_ns + 5 * MINUTE_NS), "nocache": "1"}
        return "/api/v1/query", {"query": f"last_over_time({name}[5m])", **at}
    # Windows of MetricsQL include their end, those of a RangeQuery their start.
    last_ns, step_ns = query.end_ns - NS_PER_MILLISECOND, query.step_ns or 0
    at = {"time": _seconds(last_ns), "nocache": "1"}
    span = f"{(query.end_ns - query.start_ns) // NS_PER_SECOND}s"
    if is_raw(query):
        return "/api/v1/query", {"query": f"{name}[{span}]", **at}
    if query.aggregate is Aggregate.P95:
        by = ", ".join((*query.group_by, "vmrange"))
        buckets = f"sum(histogram_over_time({name}[{span}])) by ({by})"
        return "/api/v1/query", {"query": f"histogram_quantile({_P95}, {buckets})", **at}
    step = f"{step_ns // NS_PER_SECOND}s"
    return "/api/v1/query_range", {
        "query": f"avg(avg_over_time({name}[{step}]))",
        "start": _seconds(query.start_ns + step_ns - NS_PER_MILLISECOND),
        "end": _seconds(last_ns),
        "step": step,
        "nocache": "1",
    }


def _seconds(time_ns: int) -> str:
    return f"{time_ns // NS_PER_SECOND}.{time_ns % NS_PER_SECOND // NS_PER_MILLISECOND:03d}"


def _matches(query: RangeQuery | LatestQuery) -> list[tuple[str, str]]:
    """Return tag and value of each demand; every demand here allows one value."""
    filters = dict(query.filters)
    if query.tenants is not None:
        filters["tenant"] = query.tenants
    return [(tag, value) for tag, values in filters.items() for value in values]


def _get(connection: http.client.HTTPConnection, path: str, asked: Mapping[str, str]) -> Any:  # noqa: ANN401 - whatever the server says
    connection.request("GET", f"{path}?{urlencode(asked)}")
    reply = connection.getresponse()
    body = reply.read()
    if reply.status != HTTPStatus.OK:
        raise BenchmarkError(f"{path} answered {reply.status}: {body[:500]!r}")
    return json.loads(body)
