"""Ingest through HTTP: what a million values cost, and how many a second are acknowledged.

    large   1,000 appliances with 8 GPUs in batches of 5,000 lines, as relays send them
    small   the same fleet, each appliance's 18 lines in a post of their own

Vedette's server on DuckDB, InfluxDB 1.6 and VictoriaMetrics take the same bodies from the same
driver, each alone on the machine, in turn, and anew for each repetition. What a server still does
shortly after the last answer counts as its CPU time. No rules are evaluated meanwhile, as the peers
have none: see `benchmarks.alert_rules`.
"""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.shared import servers
from benchmarks.shared.bodies import Bodies, Ticks, write_bodies
from benchmarks.shared.document import (
    BenchmarkError,
    Figures,
    Outcome,
    Promise,
    compared,
    ratio,
    rounded,
)
from benchmarks.shared.load import Posts, post
from benchmarks.shared.meter import MEBIBYTE, read_usage
from core.clock import NS_PER_SECOND

LINES_OF_A_BATCH = 5_000
RELAYS = 8
CPU = "cpu_seconds_per_million_values"
SPEED = "values_per_second"
MOST_CPU_OF_INFLUXDB = 1 / 3
# Ahead of now, so that no sample is late when its turn comes: late ones are also noted for rules.
AHEAD_SECONDS = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The amount to send, and the time to watch a server after the last answer."""

    appliances: int = 1_000
    large_ticks: int = 40
    small_ticks: int = 20
    small_connections: int = 64
    repetitions: int = 3
    settle_seconds: float = 5.0


FULL = Plan()
QUICK = Plan(appliances=100, large_ticks=6, small_ticks=6, repetitions=1, settle_seconds=0.5)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Load every server in turn."""
    start_ns = int(time.time() + AHEAD_SECONDS) * NS_PER_SECOND
    large, small = (
        Ticks(appliances=plan.appliances, numbers=range(ticks), start_ns=start_ns)
        for ticks in (plan.large_ticks, plan.small_ticks)
    )
    batches = {
        "large": large.relayed(lines_of_a_batch=LINES_OF_A_BATCH, senders=RELAYS),
        "small": small.batches(),
    }
    results = {}
    for load, load_batches in batches.items():
        bodies = write_bodies(folder / f"{load}.bodies", load_batches)
        repetitions = [
            _repetition(folder, load, bodies=bodies, plan=plan) for _ in range(plan.repetitions)
        ]
        results[load] = compared(repetitions, servers.INFLUXDB) | {"posts": bodies.count}
    return Outcome(results, promises(results))


def promises(results: dict[str, Any]) -> list[Promise]:
    """Return what is promised of ingest, with what was measured."""
    medians = {
        (load, figure): [
            results[load]["medians"][name][figure] for name in (servers.VEDETTE, servers.INFLUXDB)
        ]
        for load in results
        for figure in (CPU, SPEED)
    }
    ours, theirs = medians["large", CPU]
    name = "CPU time of a million values in batches of 5,000 lines, beside InfluxDB's"
    promised = [Promise(name, ratio(ours, theirs), MOST_CPU_OF_INFLUXDB, "times")]
    for load, kind in {
        "large": "batches of 5,000 lines",
        "small": "posts of one appliance",
    }.items():
        ours, theirs = medians[load, SPEED]
        name = f"InfluxDB's values a second in {kind}, beside ours"
        promised.append(Promise(name, ratio(theirs, ours), 1.0, "times"))
    return promised


def _repetition(folder: Path, load: str, *, bodies: Bodies, plan: Plan) -> dict[str, Figures]:
    readings = {}
    for name in (servers.VEDETTE, servers.INFLUXDB, servers.VICTORIAMETRICS):
        click.echo(f"{load}: {name}", err=True)
        with TemporaryDirectory(dir=folder) as home:
            readings[name] = _measured(Path(home) / name, load, bodies=bodies, plan=plan)
    return readings


def _serving(home: Path, plan: Plan) -> AbstractContextManager[servers.Server]:
    if home.name == servers.INFLUXDB:
        return servers.influxdb(home)
    if home.name == servers.VICTORIAMETRICS:
        return servers.victoriametrics(home)
    return servers.vedette(home, appliances=plan.appliances)


def _measured(home: Path, load: str, *, bodies: Bodies, plan: Plan) -> Figures:
    is_large = load == "large"
    with _serving(home, plan) as server:
        # Relays are of different tenants.
        step = max(1, len(server.senders) // RELAYS) if is_large else 1
        posts = Posts(
            server=replace(server, senders=server.senders[::step]),
            bodies=[bodies.path],
            connections=RELAYS if is_large else plan.small_connections,
        )
        before = read_usage(server.pid)
        result = post(posts)
        time.sleep(plan.settle_seconds)
        after = read_usage(server.pid)
    if result["refused"]:
        raise BenchmarkError(
            f"{server.name} refused {result['refused']} posts: {result['reasons']}"
        )
    cpu_seconds = after.cpu_seconds - before.cpu_seconds
    return {
        SPEED: rounded(bodies.values / result["seconds"]),
        **{
            figure: result[figure]
            for figure in ("posts_per_second", "ack_milliseconds_p50", "ack_milliseconds_p99")
        },
        CPU: rounded(cpu_seconds * 1e6 / bodies.values),
        "disk_bytes_per_value": rounded(servers.file_bytes(server.files) / bodies.values),
        "resident_mebibytes": rounded(after.resident_bytes / MEBIBYTE),
    }
