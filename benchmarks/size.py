"""The disk space of a settled value, roll-ups included.

    fleet        what `benchmarks.ingest` sends: 1,000 appliances, readings that walk
    simulated    simulated appliances that run jobs, every 10 s, as the demo has

DuckDB with its Parquet files, InfluxDB 1.6 and VictoriaMetrics take the same points through the
store's interface. Their figure is that of all files after sealing, or full compaction, or a forced
merge: it does not depend on what else the machine does. InfluxDB gets ten of the simulated
appliances only, because it takes as long as everything else together.
"""

import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, islice
from math import ceil
from multiprocessing import get_context
from pathlib import Path

import click
import requests

from benchmarks.shared import servers
from benchmarks.shared.bodies import Ticks
from benchmarks.shared.document import Outcome, Promise, rounded
from benchmarks.shared.filling import seal, submit_each
from benchmarks.shared.fleet import name_of
from core.clock import NS_PER_SECOND, to_ns, utc_now
from plugins.simulation.config import SimulationConfig
from plugins.simulation.history import history
from timeseries.lineprotocol.parser import parse
from timeseries.points import Batch
from timeseries.store import APPLIANCE_TAG, HOUR_NS, TENANT_TAG, Store

MOST_BYTES = 1.0
STEP, HOUR = timedelta(seconds=10), timedelta(hours=1)
MAX_WAIT_SECONDS = 1_800.0
BATCH_NS = 600 * NS_PER_SECOND
HOURS_AHEAD = 16
FOR_INFLUXDB = 10
"""The number of simulated appliances that InfluxDB gets."""
TENANT = "01a1fe98-0000-7000-8000-000000000000"
# A cold shard is compacted at once, and its log is written to files.
COMPACTING = {
    "INFLUXDB_DATA_CACHE_SNAPSHOT_WRITE_COLD_DURATION": "1s",
    "INFLUXDB_DATA_COMPACT_FULL_WRITE_COLD_DURATION": "1s",
}
Samples = Iterator[tuple[str, Batch]]
"""Appliance and points, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The amount of each kind of data."""

    fleet_appliances: int = 1_000
    fleet_ticks: int = 40
    appliances: int = 100
    days: float = 7.0
    stable_seconds: float = 20.0


FULL = Plan()
QUICK = Plan(fleet_appliances=20, fleet_ticks=10, appliances=1, days=0.02, stable_seconds=2.0)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Write each kind of data into each store."""
    end_at = utc_now().replace(hour=0, minute=0, second=0, microsecond=0)
    names = [f"bench-{number:03}" for number in range(plan.appliances)]
    fleet = [name_of(number) for number in range(plan.fleet_appliances)]
    fleet_sizes = _sizes(
        folder / "fleet", fleet_samples(plan, end_at), plan=plan, for_influxdb=fleet
    )
    samples = simulated_samples(names, plan, end_at=end_at)
    simulated_sizes = _sizes(
        folder / "simulated", samples, plan=plan, for_influxdb=names[:FOR_INFLUXDB]
    )
    results = {"fleet": fleet_sizes, "simulated": simulated_sizes}
    ours = results["simulated"][servers.VEDETTE]
    name = "bytes of a settled value of simulated appliances"
    promises = [Promise(name, ours, MOST_BYTES, "bytes")]
    for kind, sizes in results.items():
        name = f"bytes of a settled value beside VictoriaMetrics', {kind}"
        theirs = sizes[servers.VICTORIAMETRICS]
        promises.append(Promise(name, sizes[servers.VEDETTE], theirs, "bytes"))
    return Outcome(results, promises)


def fleet_samples(plan: Plan, end_at: datetime) -> Samples:
    """Yield what the benchmark of ingest sends."""
    span = Ticks(
        appliances=plan.fleet_appliances,
        numbers=range(plan.fleet_ticks),
        start_ns=to_ns(end_at - STEP * plan.fleet_ticks),
    )
    for appliance, lines in span.batches():
        yield name_of(appliance), parse("\n".join(lines).encode(), default_time_ns=0).batch


def simulated_samples(names: Sequence[str], plan: Plan, *, end_at: datetime) -> Samples:
    """Simulate appliances in two other processes; yield an hour of each in turn."""
    span = (end_at - timedelta(days=plan.days), end_at)
    hours = range(ceil((end_at - span[0]) / HOUR))
    calls = ((name, span, span[0] + HOUR * hour) for hour in hours for name in names)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        ahead = deque(pool.submit(simulated_hour, *call) for call in islice(calls, HOURS_AHEAD))
        while ahead:
            name, batches = ahead.popleft().result()
            ahead.extend(pool.submit(simulated_hour, *call) for call in islice(calls, 1))
            yield from ((name, batch) for batch in batches)


def simulated_hour(
    name: str, span: tuple[datetime, datetime], start_at: datetime
) -> tuple[str, list[Batch]]:
    """Return what a simulated appliance sends in an hour of a span, in batches."""
    end_at = min(start_at + HOUR, span[1])
    config = SimulationConfig(seed=name)
    points = history(config, start_at=start_at, end_at=end_at, step=STEP, planned=span)
    by_time = groupby(points, key=lambda point: point.time_ns // BATCH_NS)
    return name, [Batch.of(batch_points) for _, batch_points in by_time]


def _sizes(
    folder: Path, samples: Samples, *, plan: Plan, for_influxdb: Collection[str]
) -> dict[str, float]:
    """Write samples into every store; return the bytes of a value of each."""
    with ExitStack() as stack:
        influxdb = stack.enter_context(servers.influxdb(folder / "i", settings=COMPACTING))
        victoria = stack.enter_context(servers.victoriametrics(folder / "v"))
        urls = {
            servers.VEDETTE: f"duckdb:///{folder}/d/samples.duckdb",
            servers.INFLUXDB: f"influxdb://127.0.0.1:{influxdb.port}/{servers.DATABASE}"
            "?databases=shared",
            servers.VICTORIAMETRICS: f"victoriametrics://127.0.0.1:{victoria.port}",
        }
        with ExitStack() as open_stores:
            stores = {
                peer: open_stores.enter_context(servers.opened(url)) for peer, url in urls.items()
            }
            values = _write(stores, samples, frozenset(for_influxdb))
            click.echo(f"settling {values[servers.VEDETTE]:,} values", err=True)
            seal(stores[servers.VEDETTE], now_ns=to_ns(utc_now() + timedelta(days=2)))
        for action in ("force_flush", "force_merge"):
            requests.get(f"{victoria.url}/internal/{action}", timeout=600).raise_for_status()
        sizes = {
            servers.VEDETTE: _bytes(folder / "d"),
            servers.INFLUXDB: _settled([influxdb.files / "data", influxdb.files / "wal"], plan),
            servers.VICTORIAMETRICS: _settled([victoria.files], plan),
        }
        per_value = {peer: rounded(size / values[peer]) for peer, size in sizes.items()}
        return {**per_value, "values": values[servers.VEDETTE]}


def _write(
    stores: Mapping[str, Store], samples: Samples, for_influxdb: Collection[str]
) -> Counter[str]:
    """Write samples, and seal hour by hour meanwhile; return how many values each store took."""
    values = Counter[str]()

    def submissions(hour_samples: Samples) -> Iterator[tuple[Store, Mapping[str, str], Batch]]:
        for name, batch in hour_samples:
            for peer, store in stores.items():
                if peer != servers.INFLUXDB or name in for_influxdb:
                    values[peer] += sum(len(block) * len(block.fields) for block in batch.blocks)
                    yield store, {TENANT_TAG: TENANT, APPLIANCE_TAG: name}, batch

    def hour_of(sample: tuple[str, Batch]) -> int:
        return sample[1].blocks[0].times_ns[0] // HOUR_NS

    with ThreadPoolExecutor(1) as maintenance:
        for hour, hour_samples in groupby(samples, key=hour_of):
            click.echo(f"hour {hour}: {values[servers.VEDETTE]:,} values so far", err=True)
            sealing = maintenance.submit(stores[servers.VEDETTE].maintain, now_ns=hour * HOUR_NS)
            submit_each(submissions(hour_samples))
            sealing.result()
    return values


def _settled(folders: Sequence[Path], plan: Plan) -> int:
    """Return the size of folders once it does not change any more."""
    since, size = time.monotonic(), -1
    deadline = since + MAX_WAIT_SECONDS
    while time.monotonic() < min(since + plan.stable_seconds, deadline):
        now = sum(map(_bytes, folders))
        if now != size:
            since, size = time.monotonic(), now
        time.sleep(1)
    return size


def _bytes(folder: Path) -> int:
    return servers.file_bytes(folder, of_blocks=False)
