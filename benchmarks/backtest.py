"""A backtest over 30 days of a fleet: `python -m benchmarks.backtest [--quick] [--output FILE]`.

Every GPU has five values an hour. A backtest of 30 days reads the roll-ups by hour, which have one
row for each GPU and hour, however many samples there were. The fleet is of one tenant, and the
rule is on each GPU. CPU time is that of the whole process.
"""

import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import click

from alerting.language.text import parse_expression
from alerting.rules.backtest import Backtest, backtest_in_parts
from benchmarks.bodies import SEED
from benchmarks.figures import Promise, document, median, rounded, write_document
from benchmarks.filling import seal, submit_all
from benchmarks.fleet import GPUS, gpu_walk
from benchmarks.processes import BenchmarkError
from benchmarks.queries_data import DAY_NS, FIELDS, History, gpu_batch
from core.clock import from_ns, utc_now
from tenants.models import Role
from tenants.scope import Scope
from timeseries.open_store import open_store
from timeseries.store import HOUR_NS, Store

MOST_SECONDS = 10.0
TENANT = "acme"
EXPRESSION = "max(gpu.temperature_celsius) over 1h by gpu > 74 reset 70 for 1h"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The fleet, the days that are replayed, and how often."""

    appliances: int = 1_000
    days: int = 30
    runs: int = 3


FULL = Plan()
QUICK = Plan(appliances=20, days=2, runs=2)


def measure(plan: Plan) -> dict[str, object]:
    """Fill a store and replay the rule; return the document."""
    started_at = utc_now()
    end_ns = time.time_ns() // DAY_NS * DAY_NS
    with TemporaryDirectory(prefix="vedette-bench-") as name:
        store = open_store(f"duckdb:///{name}/samples.duckdb")
        try:
            _fill(store, plan, end_ns=end_ns)
            click.echo("replaying", err=True)
            runs = [_replay(store, plan, end_ns=end_ns) for _ in range(plan.runs)]
        finally:
            store.close()
    slowest = max(run["seconds"] for run in runs)
    return document(
        "backtest",
        started_at=started_at,
        settings=asdict(plan) | {"gpus": GPUS, "rule": EXPRESSION},
        results={
            "seconds": median([run["seconds"] for run in runs]),
            "slowest_seconds": slowest,
            "cpu_seconds": median([run["cpu_seconds"] for run in runs]),
            "longest_silence_seconds": max(run["longest_silence_seconds"] for run in runs),
            "groups": runs[0]["groups"],
            "groups_that_fired": runs[0]["groups_that_fired"],
        },
        promises=[
            Promise(
                name=f"backtest of {plan.days} days of {plan.appliances:,} appliances, slowest",
                bound=MOST_SECONDS,
                measured=slowest,
                unit="s",
            )
        ],
    )


def _fill(store: Store, plan: Plan, *, end_ns: int) -> None:
    click.echo("filling the store", err=True)
    history = History(appliances=plan.appliances, minutes=0, tenant_hours=0, end_ns=end_ns)
    walk = [tuple(fields[name] for name in FIELDS) for fields in gpu_walk(Random(SEED))]  # noqa: S311
    times = range(end_ns - plan.days * DAY_NS, end_ns, HOUR_NS)
    samples = (
        (
            {"tenant": TENANT, "appliance": history.appliance_of(appliance)},
            gpu_batch(walk, appliance, 0, times),
        )
        for appliance in range(plan.appliances)
    )
    submit_all([store], samples)
    seal(store, now_ns=end_ns + 2 * DAY_NS)


def _replay(store: Store, plan: Plan, *, end_ns: int) -> dict[str, float]:
    """Replay the rule; return how long it takes, and the longest time without progress."""
    scope = Scope(user_id="", role=Role.ADMIN, tenant_id=TENANT)
    began, used = time.perf_counter(), time.process_time()
    parts = [
        (part, time.perf_counter())
        for part in backtest_in_parts(
            store, scope, parse_expression(EXPRESSION), now=from_ns(end_ns), days=plan.days
        )
    ]
    result, passed = parts[-1][0], [began, *(at for _, at in parts)]
    if not isinstance(result, Backtest) or result.groups != plan.appliances * GPUS:
        raise BenchmarkError(f"the backtest found {result}")
    return {
        "seconds": rounded(passed[-1] - began),
        "cpu_seconds": rounded(time.process_time() - used),
        "longest_silence_seconds": rounded(max(b - a for a, b in pairwise(passed))),
        "groups": result.groups,
        "groups_that_fired": len(result.firings),
    }


@click.command()
@click.option("--quick", is_flag=True, help="20 appliances, two days.")
@click.option("--output", type=click.Path(path_type=Path), help="Also keep the JSON here.")
def main(*, quick: bool, output: Path | None) -> None:
    """Measure, and print JSON."""
    write_document(measure(QUICK if quick else FULL), output)


if __name__ == "__main__":
    main()
