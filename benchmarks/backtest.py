"""A backtest over 30 days of a fleet.

Every GPU has five values an hour. A backtest of 30 days reads the roll-ups by hour, which have one
row for each GPU and hour, however many samples there were. The fleet is of one tenant, and the
rule is on each GPU. CPU time is that of the whole process.
"""

import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from alerting.language.text import parse_expression
from alerting.rules.backtest import Backtest, backtest_in_parts
from benchmarks.queries import appliance_of
from benchmarks.shared.document import BenchmarkError, Outcome, Promise, medians, rounded
from benchmarks.shared.filling import seal, submit
from benchmarks.shared.fleet import GPUS, gpu_batch
from benchmarks.shared.servers import opened
from core.clock import from_ns
from tenants.models import Role
from tenants.scope import Scope
from timeseries.store import DAY_NS, HOUR_NS, Store

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


def measure(plan: Plan, folder: Path) -> Outcome:
    """Fill a store and replay the rule."""
    end_ns = time.time_ns() // DAY_NS * DAY_NS
    times = range(end_ns - plan.days * DAY_NS, end_ns, HOUR_NS)
    with opened(f"duckdb:///{folder}/samples.duckdb") as store:
        click.echo("filling the store", err=True)
        submit(
            store,
            (
                ({"tenant": TENANT, "appliance": appliance_of(number)}, gpu_batch(number, times))
                for number in range(plan.appliances)
            ),
        )
        seal(store, now_ns=end_ns + 2 * DAY_NS)
        click.echo("replaying", err=True)
        runs = [_replay(store, plan, end_ns) for _ in range(plan.runs)]
    slowest = max(run["seconds"] for run in runs)
    name = f"backtest of {plan.days} days of {plan.appliances:,} appliances, slowest"
    return Outcome(
        medians(runs) | {"slowest_seconds": slowest},
        [Promise(name, slowest, MOST_SECONDS, "s")],
        {"gpus": GPUS, "rule": EXPRESSION},
    )


def _replay(store: Store, plan: Plan, end_ns: int) -> dict[str, Any]:
    """Replay the rule; return how long it takes, and the longest time without progress."""
    scope = Scope(user_id="", role=Role.ADMIN, tenant_id=TENANT)
    rule, now = parse_expression(EXPRESSION), from_ns(end_ns)
    used, passed = time.process_time(), [time.perf_counter()]
    parts = []
    for part in backtest_in_parts(store, scope, rule, now=now, days=plan.days):
        parts.append(part)
        passed.append(time.perf_counter())
    result = parts[-1]
    if not isinstance(result, Backtest) or result.groups != plan.appliances * GPUS:
        raise BenchmarkError(f"the backtest returned {result}")
    return {
        "seconds": rounded(passed[-1] - passed[0]),
        "cpu_seconds": rounded(time.process_time() - used),
        "longest_silence_seconds": rounded(max(b - a for a, b in pairwise(passed))),
        "groups": result.groups,
        "groups_that_fired": len(result.firings),
    }
