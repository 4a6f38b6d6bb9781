"""A month of a fleet in the embedded store: long queries, and the removal of a large tenant.

    python -m benchmarks.month [--quick] [--output FILE]

    fleet         mean GPU utilization of the fleet by hour
    gpu           utilization of one GPU by five minutes
    p95           95th percentile of power by appliance, over the whole month

Every GPU has five values each five minutes; all days have the values of the first one. Peak memory
is that of the process while it answers one question again and again. At the end the large tenant is
removed, while another one writes.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import click

from benchmarks.bodies import SEED
from benchmarks.figures import Promise, document, percentile, rounded, write_document
from benchmarks.filling import repeat_first_day, seal, submit_all
from benchmarks.fleet import GPUS, gpu_walk
from benchmarks.queries import Plan as Asking
from benchmarks.queries import ask_store, timed
from benchmarks.queries_data import DAY_NS, FIELDS, MINUTE_NS, History, gpu_batch
from core.clock import utc_now
from timeseries.open_store import open_store
from timeseries.points import Batch
from timeseries.store import Aggregate, RangeQuery, Store

STEP_NS, HOUR_NS = 5 * MINUTE_NS, 60 * MINUTE_NS
MOST_MILLISECONDS, MOST_REMOVAL_SECONDS = 300.0, 5.0
LARGE, OTHER = "large", "other"
CLEAR_REFS, RESET_PEAK = Path("/proc/self/clear_refs"), "5"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The fleet, and how many of its appliances are the large tenant's."""

    appliances: int = 1_000
    large_appliances: int = 290  # 100 million values
    days: int = 30
    runs: int = 20


FULL = Plan()
QUICK = Plan(appliances=20, large_appliances=10, days=2, runs=2)


def measure(plan: Plan) -> dict[str, object]:
    """Fill a store, ask it and remove a tenant; return the document."""
    started_at = utc_now()
    end_ns = time.time_ns() // DAY_NS * DAY_NS
    history = History(appliances=plan.appliances, minutes=0, tenant_hours=0, end_ns=end_ns)
    with TemporaryDirectory(prefix="vedette-bench-") as name:
        store = open_store(f"duckdb:///{name}/samples.duckdb")
        try:
            _fill(store, plan, history)
            asking = Asking(history=history, runs=plan.runs, least_runs=2, most_seconds=30.0)
            results: dict[str, dict[str, object]] = {}
            for question, query in questions(plan, history).items():
                CLEAR_REFS.write_text(RESET_PEAK)
                answered = timed(lambda query=query: ask_store(store, query), asking)  # type: ignore[misc]
                results[question] = answered | {"peak_mebibytes": _peak_mebibytes()}
            results["removal"] = _removed(store, plan, history)
        finally:
            store.close()
    asked = questions(plan, history)
    return document(
        "month",
        started_at=started_at,
        settings=asdict(plan),
        results=results,
        promises=[
            *(_promise(f"query {key} of a month", results[key], "milliseconds") for key in asked),
            _promise("removal of a large tenant", results["removal"], "seconds"),
        ],
    )


def questions(plan: Plan, history: History) -> dict[str, RangeQuery]:
    """Return what is asked, by name."""
    span = (history.end_ns - plan.days * DAY_NS, history.end_ns)
    return {
        "fleet": _query(span, "utilization_percent", step_ns=HOUR_NS),
        "gpu": _query(
            span,
            "utilization_percent",
            step_ns=STEP_NS,
            filters={"appliance": (history.appliance_of(0),), "gpu": ("0",)},
        ),
        "p95": _query(span, "power_watts", aggregate=Aggregate.P95, group_by=("appliance",)),
    }


def _query(span: tuple[int, int], field: str, **settings: object) -> RangeQuery:
    values: dict[str, object] = {
        "measurement": "gpu",
        "fields": (field,),
        "start_ns": span[0],
        "end_ns": span[1],
        "tenants": None,
        **settings,
    }
    return RangeQuery(**values)  # type: ignore[arg-type]


def _fill(store: Store, plan: Plan, history: History) -> None:
    start_ns = history.end_ns - plan.days * DAY_NS
    submit_all([store], _first_day(plan, history, start_ns))
    seal(store, now_ns=start_ns + 2 * DAY_NS)
    repeat_first_day(store, plan.days - 1, until_ns=history.end_ns)


def _first_day(
    plan: Plan, history: History, start_ns: int
) -> Iterator[tuple[Mapping[str, str], Batch]]:
    walk = [tuple(fields[name] for name in FIELDS) for fields in gpu_walk(Random(SEED))]  # noqa: S311
    for first_ns in range(start_ns, start_ns + DAY_NS, HOUR_NS):
        times = range(first_ns, first_ns + HOUR_NS, STEP_NS)
        for appliance in range(plan.appliances):
            identity = {
                "tenant": LARGE if appliance < plan.large_appliances else OTHER,
                "appliance": history.appliance_of(appliance),
            }
            yield identity, gpu_batch(walk, appliance, (first_ns - start_ns) // STEP_NS, times)


def _removed(store: Store, plan: Plan, history: History) -> dict[str, object]:
    """Remove the large tenant while the other one writes; return how long both took."""
    walk = [tuple(fields[name] for name in FIELDS) for fields in gpu_walk(Random(SEED))]  # noqa: S311
    identity = {"tenant": OTHER, "appliance": history.appliance_of(plan.appliances - 1)}
    delays, is_done = list[float](), threading.Event()

    def write() -> None:
        while not is_done.is_set():
            now_ns, began = time.time_ns(), time.perf_counter()
            batch = gpu_batch(walk, plan.appliances - 1, 0, range(now_ns, now_ns + 1))
            store.submit(batch, identity=identity).result()
            delays.append(1_000 * (time.perf_counter() - began))

    writer = threading.Thread(target=write)
    writer.start()
    began = time.perf_counter()
    store.delete_tenant(LARGE)
    seconds = time.perf_counter() - began
    is_done.set()
    writer.join()
    days_samples = DAY_NS // STEP_NS * plan.days
    return {
        "seconds": rounded(seconds),
        "values": plan.large_appliances * GPUS * days_samples * len(FIELDS),
        "ack_milliseconds_max": percentile(delays, 100),
        "acknowledged": len(delays),
    }


def _peak_mebibytes() -> float:
    """Return the most resident memory of this process since `RESET_PEAK` was written."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    kibibytes = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    return rounded(kibibytes / 1024)


def _promise(name: str, result: dict[str, object], figure: str) -> Promise:
    value = result[figure]
    is_query = figure == "milliseconds"
    return Promise(
        name=name,
        bound=MOST_MILLISECONDS if is_query else MOST_REMOVAL_SECONDS,
        measured=float(value) if isinstance(value, int | float) else None,
        unit="ms" if is_query else "seconds",
    )


@click.command()
@click.option("--quick", is_flag=True, help="20 appliances, two days.")
@click.option("--output", type=click.Path(path_type=Path), help="Also keep the JSON here.")
def main(*, quick: bool, output: Path | None) -> None:
    """Measure, and print JSON."""
    write_document(measure(QUICK if quick else FULL), output)


if __name__ == "__main__":
    main()
