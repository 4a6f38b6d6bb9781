"""A month of a fleet in the embedded store: long queries, and the removal of a large tenant.

    fleet         mean GPU utilization of the fleet by hour
    gpu           utilization of one GPU by five minutes
    p95           95th percentile of power by appliance, over the whole month

Every GPU has five values each five minutes; all days have the values of the first one. At the
end the large tenant is removed, while another tenant writes.
"""

import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.queries import appliance_of, ask_store, asked
from benchmarks.shared.document import Outcome, Promise, milliseconds_of, rounded, seconds_of
from benchmarks.shared.filling import Samples, repeat_first_day, seal, submit
from benchmarks.shared.fleet import FIELDS, GPUS, MINUTE_NS, gpu_batch
from benchmarks.shared.servers import opened
from timeseries.store import DAY_NS, HOUR_NS, Aggregate, RangeQuery, Store

STEP_NS = 5 * MINUTE_NS
MOST_MILLISECONDS, MOST_REMOVAL_SECONDS = 300.0, 5.0
LARGE, OTHER = "large", "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The fleet, and how many of its appliances are the large tenant's."""

    appliances: int = 1_000
    large_appliances: int = 290  # 100 million values
    days: int = 30
    runs: int = 20


FULL = Plan()
QUICK = Plan(appliances=20, large_appliances=10, days=2, runs=2)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Fill a store, ask it and remove a tenant."""
    end_ns = time.time_ns() // DAY_NS * DAY_NS
    start_ns = end_ns - plan.days * DAY_NS
    results: dict[str, dict[str, Any]] = {}
    with opened(f"duckdb:///{folder}/samples.duckdb") as store:
        submit(store, _first_day(plan, start_ns))
        seal(store, now_ns=start_ns + 2 * DAY_NS)
        repeat_first_day(store, plan.days - 1, until_ns=end_ns)
        for question, query in questions(start_ns, end_ns).items():
            results[question] = asked(partial(ask_store, store, query), plan.runs)
        promises = [
            Promise(f"query {key} of a month", figures["milliseconds"], MOST_MILLISECONDS, "ms")
            for key, figures in results.items()
        ]
        removal = results["removal"] = _removed(store, plan)
    name = "removal of a large tenant"
    promises.append(Promise(name, removal["seconds"], MOST_REMOVAL_SECONDS, "seconds"))
    return Outcome(results, promises)


def questions(start_ns: int, end_ns: int) -> dict[str, RangeQuery]:
    """Return what is asked, by name."""

    def query(field: str, **settings: Any) -> RangeQuery:  # noqa: ANN401 - as the query has them
        return RangeQuery(
            measurement="gpu",
            fields=(field,),
            start_ns=start_ns,
            end_ns=end_ns,
            tenants=None,
            **settings,
        )

    gpu = {"appliance": (appliance_of(0),), "gpu": ("0",)}
    return {
        "fleet": query("utilization_percent", step_ns=HOUR_NS),
        "gpu": query("utilization_percent", step_ns=STEP_NS, filters=gpu),
        "p95": query("power_watts", aggregate=Aggregate.P95, group_by=("appliance",)),
    }


def _first_day(plan: Plan, start_ns: int) -> Samples:
    for hour_ns in range(start_ns, start_ns + DAY_NS, HOUR_NS):
        times = range(hour_ns, hour_ns + HOUR_NS, STEP_NS)
        for appliance in range(plan.appliances):
            tenant = LARGE if appliance < plan.large_appliances else OTHER
            identity = {"tenant": tenant, "appliance": appliance_of(appliance)}
            yield identity, gpu_batch(appliance, times, tick=(hour_ns - start_ns) // STEP_NS)


def _removed(store: Store, plan: Plan) -> dict[str, Any]:
    """Remove the large tenant while the other one writes; return how long both took."""
    appliance = plan.appliances - 1
    identity = {"tenant": OTHER, "appliance": appliance_of(appliance)}
    delays, is_done = list[float](), threading.Event()

    def write() -> None:
        batch = gpu_batch(appliance, [time.time_ns()])
        store.submit(batch, identity=identity).result()

    def write_until_done() -> None:
        while not is_done.is_set():
            delays.append(seconds_of(write))

    writer = threading.Thread(target=write_until_done)
    writer.start()
    seconds = seconds_of(lambda: store.delete_tenant(LARGE))
    is_done.set()
    writer.join()
    samples_of_a_gpu = DAY_NS // STEP_NS * plan.days
    return {
        "seconds": rounded(seconds),
        "values": plan.large_appliances * GPUS * samples_of_a_gpu * len(FIELDS),
        "acknowledged": len(delays),
        **milliseconds_of(delays, name="ack_milliseconds"),
    }
