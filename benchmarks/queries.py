"""Queries of the dashboards: how long a store with a fleet's samples takes to answer.

    fleet       mean GPU utilization of one tenant, 6 h in steps of a minute
    appliance   the raw utilization of eight GPUs, 1 h
    latest      the latest temperature of every GPU of the fleet
    p95         the 95th percentile of power of each appliance of the fleet, by day, 1 h
    p95_day     the same of one tenant, 24 h

Every appliance has samples every 10 s, and one tenant of 50 a longer history, with a reading a
minute. DuckDB is asked through the store's interface, in the process that asks. InfluxDB and
VictoriaMetrics are asked in their own languages over one connection that is kept, and through the
store's interface too. Each is alone on the machine while it is asked.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import click

from benchmarks.shared import servers
from benchmarks.shared.document import (
    BenchmarkError,
    Outcome,
    Promise,
    ratio,
    rounded,
    seconds_of,
    timed,
)
from benchmarks.shared.filling import Samples, submit
from benchmarks.shared.fleet import GPUS, MINUTE_NS, gpu_batch
from benchmarks.shared.native import Answer, Peer
from core.clock import NS_PER_SECOND
from tests.fixtures.polling import eventually
from timeseries.store import (
    DAY_NS,
    HOUR_NS,
    IDENTITY_TAGS,
    Aggregate,
    LatestQuery,
    RangeQuery,
    Store,
)

MOST_MILLISECONDS = 50.0
MOST_TIMES_INFLUXDB = 1.0
# A slow question is not asked as often as others.
MOST_SECONDS = 15.0
STEP_NS = 10 * NS_PER_SECOND

Query = RangeQuery | LatestQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The history of all appliances, and of the first tenant up to the same end."""

    appliances: int = 1_000
    minutes: int = 60
    tenant_hours: int = 24
    runs: int = 50


FULL = Plan()
QUICK = Plan(appliances=100, minutes=10, tenant_hours=2, runs=5)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Fill each store and ask it."""
    end_ns = time.time_ns() // MINUTE_NS * MINUTE_NS
    questions = Questions(plan, end_ns)
    results: dict[str, Any] = {}
    with servers.opened(f"duckdb:///{folder / 'samples.duckdb'}") as store:
        results["duckdb"] = questions.of_store(store, "DuckDB")
    with servers.influxdb(folder / "influxdb") as server:
        url = f"influxdb://127.0.0.1:{server.port}/{servers.DATABASE}?databases=shared"
        with servers.opened(url) as store:
            results["influxdb_store"] = questions.of_store(store, "InfluxDB")
        results["influxdb"] = questions.natively(server, Peer.ask_influxdb)
    with servers.victoriametrics(folder / "victoriametrics") as server:
        with servers.opened(f"victoriametrics://127.0.0.1:{server.port}") as store:
            results["victoriametrics_store"] = questions.of_store(store, "VictoriaMetrics")
        results["victoriametrics"] = questions.natively(server, Peer.ask_victoriametrics)
    promises = []
    for name in questions.queries:
        counts = {store: answers[name]["series"] for store, answers in results.items()}
        if len(set(counts.values())) > 1:
            raise BenchmarkError(f"the answers to {name} differ in series: {counts}")
        ours, theirs = (results[peer][name]["milliseconds"] for peer in ("duckdb", "influxdb"))
        promises += [
            Promise(f"query {name}, median", ours, MOST_MILLISECONDS, "ms"),
            Promise(
                f"query {name}, beside InfluxDB", ratio(ours, theirs), MOST_TIMES_INFLUXDB, "times"
            ),
        ]
    return Outcome(results, promises)


class Questions:
    """What is asked of each store, and the samples that it has."""

    def __init__(self, plan: Plan, end_ns: int) -> None:
        self._plan, self._end_ns = plan, end_ns
        tenant = (tenant_of(0),)
        utilization = {"measurement": "gpu", "fields": ("utilization_percent",)}
        power = {
            "measurement": "gpu",
            "fields": ("power_watts",),
            "aggregate": Aggregate.P95,
            "step_ns": DAY_NS,
            "group_by": ("appliance",),
        }
        self.queries: dict[str, Query] = {
            "fleet": self._range(6 * HOUR_NS, **utilization, step_ns=MINUTE_NS, tenants=tenant),
            "appliance": self._range(
                HOUR_NS,
                **utilization,
                step_ns=STEP_NS,
                tenants=tenant,
                filters={"appliance": (appliance_of(0),)},
                group_by=("gpu",),
            ),
            "latest": LatestQuery(
                measurement="gpu",
                fields=("temperature_celsius",),
                since_ns=end_ns - 5 * MINUTE_NS,
                tenants=None,
                group_by=(*IDENTITY_TAGS, "gpu"),
            ),
            "p95": self._range(HOUR_NS, **power, tenants=None),
            "p95_day": self._range(DAY_NS, **power, tenants=tenant),
        }

    def _range(self, span_ns: int, **settings: Any) -> RangeQuery:  # noqa: ANN401 - as the query has them
        return RangeQuery(start_ns=self._end_ns - span_ns, end_ns=self._end_ns, **settings)

    def of_store(self, store: Store, name: str) -> dict[str, Any]:
        """Fill a store and ask it through the interface."""
        click.echo(f"filling {name}", err=True)
        filled = seconds_of(lambda: self._fill(store))
        click.echo(f"asking {name}", err=True)
        answers = {
            question: asked(partial(ask_store, store, query), self._plan.runs)
            for question, query in self.queries.items()
        }
        return {"fill_seconds": rounded(filled), **answers}

    def natively(
        self, server: servers.Server, ask: Callable[[Peer, str], Answer]
    ) -> dict[str, Any]:
        """Ask a peer in its own language."""
        values = {"tenant": tenant_of(0), "appliance": appliance_of(0), "end": self._end_ns}
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=120)) as connection:
            peer = Peer(connection, values)
            return {
                question: asked(partial(ask, peer, question), self._plan.runs)
                for question in self.queries
            }

    def _fill(self, store: Store) -> None:
        """Write the history and bring the roll-ups up to date."""
        submit(store, self._samples())
        store.maintain(now_ns=self._end_ns + HOUR_NS)
        newest = self.queries["latest"]
        if isinstance(newest, LatestQuery):
            gpus = self._plan.appliances * GPUS
            eventually(lambda: len(store.latest(newest)) == gpus, what="the last sample")

    def _samples(self) -> Samples:
        """Yield all samples, oldest first, in chunks of an appliance.

        Chunks of all appliances follow each other in time, as they do when a fleet sends, so that
        no store has an appliance's samples together by the order in which they came.
        """
        plan, end_ns = self._plan, self._end_ns
        recent_ns = end_ns - plan.minutes * MINUTE_NS
        first_ns = end_ns - plan.tenant_hours * HOUR_NS
        tenant = min(servers.APPLIANCES_OF_A_TENANT, plan.appliances)
        yield from _chunks(tenant, range(first_ns, recent_ns, MINUTE_NS), ticks_of_a_chunk=60)
        yield from _chunks(plan.appliances, range(recent_ns, end_ns, STEP_NS), ticks_of_a_chunk=6)


def appliance_of(number: int) -> str:
    """Return an appliance's id."""
    return f"01a1fe99-3165-71ca-a743-{number:012x}"


def tenant_of(number: int) -> str:
    """Return the id of an appliance's tenant."""
    return f"01a1fe98-0000-7000-8000-{number // servers.APPLIANCES_OF_A_TENANT:012x}"


def ask_store(store: Store, query: Query) -> Answer:
    """Ask through the interface."""
    if isinstance(query, LatestQuery):
        rows = store.latest(query)
        return Answer.of([[float(row.values[query.fields[0]])] for row in rows])
    return Answer.of([series.values for series in store.query_range(query)])


def asked(ask: Callable[[], Answer], runs: int) -> dict[str, Any]:
    """Ask again and again; return how long it took, and what was answered."""
    answer = ask()
    return {
        **timed(ask, runs, most_seconds=MOST_SECONDS),
        "series": answer.series,
        "values": answer.values,
        "mean": rounded(answer.mean),
    }


def _chunks(appliances: int, times_ns: range, *, ticks_of_a_chunk: int) -> Iterator[Any]:
    for first in range(0, len(times_ns), ticks_of_a_chunk):
        chunk = times_ns[first : first + ticks_of_a_chunk]
        for appliance in range(appliances):
            identity = {"tenant": tenant_of(appliance), "appliance": appliance_of(appliance)}
            yield identity, gpu_batch(appliance, chunk, tick=first)
