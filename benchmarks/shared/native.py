"""The questions of `benchmarks.queries` in the peers' own languages, as their users would ask them.

Peers are asked over one connection that is kept, and their JSON is decoded: an answer is complete
when its numbers can be used. VictoriaMetrics does not use its cache of answers, which the others do
not have.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from string import Template
from typing import Any
from urllib.parse import urlencode

from benchmarks.shared.document import BenchmarkError
from benchmarks.shared.fleet import MINUTE_NS
from benchmarks.shared.servers import DATABASE
from core.clock import NS_PER_SECOND
from timeseries.store import HOUR_NS

INFLUXQL = {
    "fleet": 'SELECT mean("utilization_percent") FROM "gpu" WHERE "tenant" = \'$tenant\''
    " AND time >= $end - 6h AND time < $end GROUP BY time(1m)",
    "appliance": 'SELECT "utilization_percent" FROM "gpu" WHERE "appliance" = \'$appliance\''
    ' AND "tenant" = \'$tenant\' AND time >= $end - 1h AND time < $end GROUP BY "gpu"',
    "latest": 'SELECT last("temperature_celsius") FROM "gpu" WHERE time >= $end - 5m'
    ' GROUP BY "tenant", "appliance", "gpu"',
    "p95": 'SELECT percentile("power_watts", 95) FROM "gpu" WHERE time >= $end - 1h'
    ' AND time < $end GROUP BY "appliance", time(1d)',
    "p95_day": 'SELECT percentile("power_watts", 95) FROM "gpu" WHERE "tenant" = \'$tenant\''
    ' AND time >= $end - 1d AND time < $end GROUP BY "appliance", time(1d)',
}
_QUANTILE = "histogram_quantile(0.95, sum(histogram_over_time({})) by (appliance, vmrange))"
METRICSQL = {
    "fleet": 'avg(avg_over_time(gpu_utilization_percent{tenant="$tenant"}[1m]))',
    "appliance": 'gpu_utilization_percent{appliance="$appliance",tenant="$tenant"}[1h]',
    "latest": "last_over_time(gpu_temperature_celsius[5m])",
    "p95": _QUANTILE.format("gpu_power_watts[1h]"),
    "p95_day": _QUANTILE.format('gpu_power_watts{tenant="$tenant"}[1d]'),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The size of an answer; its mean shows whether stores return the same values."""

    series: int
    values: int
    mean: float

    @classmethod
    def of(cls, columns: Sequence[Sequence[float]]) -> "Answer":
        """Return the size of an answer by the values of each series."""
        count = sum(map(len, columns))
        return cls(len(columns), count, sum(map(sum, columns)) / count if count else 0.0)


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer that is asked; `values` are what stands for `$tenant` and the like."""

    connection: HTTPConnection
    values: Mapping[str, Any]

    def ask_influxdb(self, question: str) -> Answer:
        """Ask InfluxDB by InfluxQL."""
        query = Template(INFLUXQL[question]).substitute(self.values)
        result = self._get("/query", {"db": DATABASE, "epoch": "ns", "q": query})["results"][0]
        if "error" in result:
            raise BenchmarkError(f"InfluxDB refused {query}: {result['error']}")
        series = result.get("series", [])
        return Answer.of(
            [[row[1] for row in group["values"] if row[1] is not None] for group in series]
        )

    def ask_victoriametrics(self, question: str) -> Answer:
        """Ask VictoriaMetrics by MetricsQL."""
        query = Template(METRICSQL[question]).substitute(self.values)
        end_ns = self.values["end"]
        if question == "fleet":
            first_ns = end_ns - 6 * HOUR_NS + MINUTE_NS
            span = {"start": _before(first_ns), "end": _before(end_ns), "step": "1m"}
            path = "/api/v1/query_range"
        else:
            path, span = "/api/v1/query", {"time": _before(end_ns)}
        groups = self._get(path, {"query": query, "nocache": "1", **span})["data"]["result"]
        return Answer.of(
            [
                [float(text) for _, text in group.get("values") or [group["value"]]]
                for group in groups
            ]
        )

    def _get(self, path: str, parameters: Mapping[str, str]) -> Any:  # noqa: ANN401 - whatever the server says
        self.connection.request("GET", f"{path}?{urlencode(parameters)}")
        reply = self.connection.getresponse()
        body = reply.read()
        if reply.status != HTTPStatus.OK:
            raise BenchmarkError(f"{path} answered {reply.status}: {body[:500]!r}")
        return json.loads(body)


def _before(time_ns: int) -> str:
    """Return the last millisecond before: windows of MetricsQL include their end, ours do not."""
    milliseconds = time_ns * 1000 // NS_PER_SECOND - 1
    return f"{milliseconds / 1000:.3f}"
