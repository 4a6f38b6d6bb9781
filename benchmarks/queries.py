"""Queries of the dashboards: how long a store with a fleet's samples takes to answer.

    python -m benchmarks.queries [--quick] [--output FILE]

    fleet       mean GPU utilization of one tenant, 6 h in steps of a minute
    appliance   the raw utilization of eight GPUs, 1 h
    latest      the latest temperature of every GPU of the fleet
    p95         the 95th percentile of power of each appliance of the fleet, by day, 1 h
    p95_day     the same of one tenant, 24 h

DuckDB is asked through the store's interface, in the process that asks. InfluxDB and
VictoriaMetrics are asked in their own languages over one kept connection, and through the store's
interface too. Every store holds the same samples; each is alone on the machine while it is asked.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks import peers
from benchmarks.figures import Promise, document, median, percentile, ratio, rounded, write_document
from benchmarks.filling import submit_all
from benchmarks.processes import BenchmarkError, wait_until
from benchmarks.queries_data import DAY_NS, FIELDS, MINUTE_NS, History, batches
from benchmarks.queries_native import Answer, ask_influxdb, ask_victoriametrics, kept_connection
from core.clock import utc_now
from timeseries.open_store import open_store
from timeseries.store import (
    IDENTITY_TAGS,
    Aggregate,
    LatestQuery,
    RangeQuery,
    Store,
)

HOUR_NS = 60 * MINUTE_NS
DUCKDB = "duckdb"
INFLUXDB, INFLUXDB_STORE = "influxdb", "influxdb_store"
VICTORIAMETRICS, VICTORIAMETRICS_STORE = "victoriametrics", "victoriametrics_store"
MOST_MILLISECONDS = 50.0
MOST_TIMES_INFLUXDB = 1.0
MILLISECONDS = 1_000
# The tenant's longer history makes two of the questions larger than 1,000 appliances for an hour.
LATEST_SINCE_NS = 5 * MINUTE_NS

Ask = Callable[[], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The size of the stores, and the number of runs of each question."""

    history: History
    runs: int
    least_runs: int
    most_seconds: float


def full(end_ns: int) -> Plan:
    """Return the plan of a whole run, with samples up to an instant."""
    history = History(appliances=1_000, minutes=60, tenant_hours=24, end_ns=end_ns)
    return Plan(history=history, runs=50, least_runs=5, most_seconds=15.0)


def quick(end_ns: int) -> Plan:
    """Return the plan of a run that shows whether it runs."""
    history = History(appliances=100, minutes=10, tenant_hours=2, end_ns=end_ns)
    return Plan(history=history, runs=5, least_runs=2, most_seconds=2.0)


def measure(plan: Plan) -> dict[str, object]:
    """Fill each store and ask it; return the document."""
    started_at = utc_now()
    results: dict[str, dict[str, object]] = {}
    with TemporaryDirectory(prefix="vedette-bench-") as folder:
        for contender in (_ask_duckdb, _ask_influxdb, _ask_victoriametrics):
            results |= contender(Path(folder), plan)
    _compare_answers(results)
    return document(
        "queries",
        started_at=started_at,
        settings={**asdict(plan), "fields": list(FIELDS)},
        results=results,
        promises=promises(results),
    )


def questions(history: History) -> dict[str, RangeQuery | LatestQuery]:
    """Return what is asked, by name."""
    end_ns, tenant = history.end_ns, (history.tenant_of(0),)
    power = {"measurement": "gpu", "fields": ("power_watts",), "aggregate": Aggregate.P95}
    per_day = {**power, "step_ns": DAY_NS, "group_by": ("appliance",), "end_ns": end_ns}
    return {
        "fleet": RangeQuery(
            measurement="gpu",
            fields=("utilization_percent",),
            start_ns=end_ns - 6 * HOUR_NS,
            end_ns=end_ns,
            step_ns=MINUTE_NS,
            tenants=tenant,
        ),
        "appliance": RangeQuery(
            measurement="gpu",
            fields=("utilization_percent",),
            start_ns=end_ns - HOUR_NS,
            end_ns=end_ns,
            step_ns=history.step_ns,
            tenants=tenant,
            filters={"appliance": (history.appliance_of(0),)},
            group_by=("gpu",),
        ),
        "latest": LatestQuery(
            measurement="gpu",
            fields=("temperature_celsius",),
            since_ns=end_ns - LATEST_SINCE_NS,
            tenants=None,
            group_by=(*IDENTITY_TAGS, "gpu"),
        ),
        "p95": RangeQuery(**per_day, start_ns=end_ns - HOUR_NS, tenants=None),  # type: ignore[arg-type]
        "p95_day": RangeQuery(**per_day, start_ns=end_ns - DAY_NS, tenants=tenant),  # type: ignore[arg-type]
    }


def promises(results: Mapping[str, Mapping[str, object]]) -> list[Promise]:
    """Return what is promised of the questions, with what was measured."""
    promised = []
    for name in questions(History(appliances=1, minutes=1, tenant_hours=1, end_ns=0)):
        ours, theirs = (_median_of(results, who, name) for who in (DUCKDB, INFLUXDB))
        promised += [
            Promise(
                name=f"query {name}, median", bound=MOST_MILLISECONDS, measured=ours, unit="ms"
            ),
            Promise(
                name=f"query {name}, beside InfluxDB",
                bound=MOST_TIMES_INFLUXDB,
                measured=ratio(ours, theirs),
                unit="times",
            ),
        ]
    return promised


def timed(ask: Ask, plan: Plan) -> dict[str, object]:
    """Ask again and again; return how long it took, and what was answered."""
    answer = ask()
    took: list[float] = []
    began = time.perf_counter()
    while len(took) < plan.runs and (
        len(took) < plan.least_runs or time.perf_counter() - began < plan.most_seconds
    ):
        start = time.perf_counter()
        answer = ask()
        took.append(MILLISECONDS * (time.perf_counter() - start))
    return {
        "milliseconds": median(took),
        "milliseconds_p95": percentile(took, 95),
        "runs": len(took),
        "series": answer.series,
        "values": answer.values,
        "mean": rounded(answer.mean),
    }


def fill(store: Store, history: History) -> float:
    """Write the history and bring the roll-ups up to date; return the seconds that it took.

    Raises:
        BenchmarkError: a store refuses what it must take.
    """
    began = time.perf_counter()
    submit_all([store], batches(history))
    store.maintain(now_ns=history.end_ns + HOUR_NS)
    newest = questions(history)["latest"]
    wait_until(
        lambda: isinstance(newest, LatestQuery) and len(store.latest(newest)) == history.gpus,
        what="the last sample to be seen",
    )
    return rounded(time.perf_counter() - began)


def _ask_duckdb(folder: Path, plan: Plan) -> dict[str, dict[str, object]]:
    with _opened(f"duckdb:///{folder / 'samples.duckdb'}") as store:
        filled = _filled(store, plan, "DuckDB")
        return {DUCKDB: {"fill_seconds": filled, **_asked(store, plan)}}


def _ask_influxdb(folder: Path, plan: Plan) -> dict[str, dict[str, object]]:
    home = folder / "influxdb"
    with peers.serving(peers.INFLUXDB, home, appliances=0) as server:
        with _opened(
            f"influxdb://127.0.0.1:{server.port}/{peers.DATABASE}?databases=shared"
        ) as store:
            filled = _filled(store, plan, "InfluxDB")
            through_store = _asked(store, plan)
        with kept_connection(server.port) as connection:
            native = {
                name: timed(lambda query=query: ask_influxdb(connection, query), plan)  # type: ignore[misc]
                for name, query in questions(plan.history).items()
            }
    return {INFLUXDB: {"fill_seconds": filled, **native}, INFLUXDB_STORE: {**through_store}}


def _ask_victoriametrics(folder: Path, plan: Plan) -> dict[str, dict[str, object]]:
    home = folder / "victoriametrics"
    with peers.serving(peers.VICTORIAMETRICS, home, appliances=0) as server:
        with _opened(f"victoriametrics://127.0.0.1:{server.port}") as store:
            filled = _filled(store, plan, "VictoriaMetrics")
            through_store = _asked(store, plan)
        with kept_connection(server.port) as connection:
            native = {
                name: timed(lambda query=query: ask_victoriametrics(connection, query), plan)  # type: ignore[misc]
                for name, query in questions(plan.history).items()
            }
    return {
        VICTORIAMETRICS: {"fill_seconds": filled, **native},
        VICTORIAMETRICS_STORE: {**through_store},
    }


def _filled(store: Store, plan: Plan, name: str) -> float:
    click.echo(f"filling {name}", err=True)
    filled = fill(store, plan.history)
    click.echo(f"asking {name}", err=True)
    return filled


def _asked(store: Store, plan: Plan) -> dict[str, object]:
    return {
        name: timed(lambda query=query: ask_store(store, query), plan)  # type: ignore[misc]
        for name, query in questions(plan.history).items()
    }


def ask_store(store: Store, query: RangeQuery | LatestQuery) -> Answer:
    """Ask through the interface."""
    if isinstance(query, LatestQuery):
        rows = store.latest(query)
        return Answer.of([[float(row.values[query.fields[0]]) for row in rows]], series=len(rows))
    result = store.query_range(query)
    return Answer.of([series.values for series in result], series=len(result))


@contextmanager
def _opened(url: str) -> Iterator[Store]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


def _compare_answers(results: Mapping[str, Mapping[str, object]]) -> None:
    """Raise `BenchmarkError` where two stores do not answer with as many series."""
    for name in questions(History(appliances=1, minutes=1, tenant_hours=1, end_ns=0)):
        counts = {who: _figures(answers, name)["series"] for who, answers in results.items()}
        if len(set(counts.values())) > 1:
            raise BenchmarkError(f"the answers to {name} differ in series: {counts}")


def _median_of(
    results: Mapping[str, Mapping[str, object]], contender: str, name: str
) -> float | None:
    value = _figures(results[contender], name)["milliseconds"]
    return float(value) if isinstance(value, int | float) else None


def _figures(answers: Mapping[str, object], name: str) -> Mapping[str, object]:
    figures = answers[name]
    if not isinstance(figures, dict):
        raise TypeError(figures)
    return figures


@click.command()
@click.option("--quick", "is_quick", is_flag=True, help="A tenth of the fleet, ten minutes.")
@click.option("--output", type=click.Path(path_type=Path), help="Also keep the JSON here.")
def main(*, is_quick: bool, output: Path | None) -> None:
    """Measure queries, and print JSON."""
    plan = quick if is_quick else full
    write_document(measure(plan(end_of_history())), output)


def end_of_history() -> int:
    """Return the last whole minute."""
    return time.time_ns() // MINUTE_NS * MINUTE_NS


if __name__ == "__main__":
    main()
