"""Measure the disk space of a settled value, roll-ups included.

    python -m benchmarks.size [--quick] [--appliances N] [--days DAYS] [--output FILE]

    fleet        what `benchmarks.ingest` sends: 1,000 appliances, readings that walk
    simulated    simulated appliances that run jobs, every 10 s, as the demo has

DuckDB with its Parquet files, InfluxDB 1.6 and VictoriaMetrics take the same points through the
store's interface. Their figure is that of all files after sealing, or full compaction, or a forced
merge: it does not depend on what else the machine does. InfluxDB gets ten of the simulated
appliances only, because it takes as long as everything else together.
"""

import time
import urllib.request
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby, islice
from math import ceil
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks import peers
from benchmarks.bodies import NS_PER_SECOND, SEED
from benchmarks.figures import Promise, document, rounded, write_document
from benchmarks.filling import seal, submit_each, values_of
from benchmarks.fleet import Fleet
from core.clock import to_ns, utc_now
from plugins.simulation.config import SimulationConfig
from plugins.simulation.history import history
from timeseries.lineprotocol.parser import parse
from timeseries.open_store import open_store
from timeseries.points import Batch
from timeseries.store import APPLIANCE_TAG, HOUR_NS, TENANT_TAG, Store

FLEET, SIMULATED = "fleet", "simulated"
MOST_BYTES = 1.0
STEP = timedelta(seconds=10)
HOUR = timedelta(hours=1)
MAX_WAIT_SECONDS = 1_800.0
BATCH_NS = 600 * NS_PER_SECOND
PROCESSES = 2
"""The number of processes that simulate appliances."""
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


def measure(plan: Plan) -> dict[str, object]:
    """Write each kind of data into each store; return the document."""
    started_at = utc_now()
    end_at = started_at.replace(hour=0, minute=0, second=0, microsecond=0)
    names = [f"bench-{number:03}" for number in range(plan.appliances)]
    results = {FLEET: _sizes(fleet_samples(plan, end_at), FLEET, plan)}
    with simulated_samples(names, plan, end_at) as samples:
        results[SIMULATED] = _sizes(samples, SIMULATED, plan, for_influxdb=names[:FOR_INFLUXDB])
    simulated = results[SIMULATED]
    return document(
        "size",
        started_at=started_at,
        settings=asdict(plan),
        results=results,
        promises=[
            Promise(
                name="bytes of a settled value of simulated appliances",
                bound=MOST_BYTES,
                measured=simulated[peers.VEDETTE],
                unit="bytes",
            ),
            *(
                Promise(
                    name=f"bytes of a settled value beside VictoriaMetrics', {kind}",
                    bound=sizes[peers.VICTORIAMETRICS],
                    measured=sizes[peers.VEDETTE],
                    unit="bytes",
                )
                for kind, sizes in results.items()
            ),
        ],
    )


def fleet_samples(plan: Plan, end_at: datetime) -> Samples:
    """Yield what the benchmark of ingest sends."""
    fleet = Fleet(seed=SEED)
    start_at = end_at - STEP * plan.fleet_ticks
    for tick in range(plan.fleet_ticks):
        time_ns = to_ns(start_at + STEP * tick)
        for appliance in range(plan.fleet_appliances):
            lines = fleet.lines(appliance, tick=tick, time_ns=time_ns)
            yield fleet.name(appliance), parse("\n".join(lines).encode(), default_time_ns=0).batch


@contextmanager
def simulated_samples(names: Sequence[str], plan: Plan, end_at: datetime) -> Iterator[Samples]:
    """Simulate appliances in other processes; the samples are an hour of each in turn."""
    span = (end_at - timedelta(days=plan.days), end_at)
    hours = range(ceil((end_at - span[0]) / HOUR))
    asked = ((name, span, span[0] + HOUR * hour) for hour in hours for name in names)
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        ahead = deque(
            pool.submit(simulated_hour, *arguments) for arguments in islice(asked, HOURS_AHEAD)
        )

        def samples() -> Samples:
            while ahead:
                name, batches = ahead.popleft().result()
                ahead.extend(
                    pool.submit(simulated_hour, *arguments) for arguments in islice(asked, 1)
                )
                yield from ((name, batch) for batch in batches)

        yield samples()


def simulated_hour(
    name: str, span: tuple[datetime, datetime], start_at: datetime
) -> tuple[str, list[Batch]]:
    """Return what a simulated appliance sends in an hour of a span, in batches."""
    points = history(
        SimulationConfig(seed=name),
        start_at=start_at,
        end_at=min(start_at + HOUR, span[1]),
        step=STEP,
        planned=span,
    )
    by_time = groupby(points, key=lambda point: point.time_ns // BATCH_NS)
    return name, [Batch.of(batch_points) for _, batch_points in by_time]


def _sizes(
    samples: Samples, kind: str, plan: Plan, *, for_influxdb: Collection[str] | None = None
) -> dict[str, float]:
    """Write samples into every store; return the bytes of a value of each.

    Args:
        samples: what is written.
        kind: what they are.
        plan: how long to wait.
        for_influxdb: the appliances that InfluxDB gets; None for all.
    """
    with TemporaryDirectory(prefix="vedette-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        influxdb = stack.enter_context(peers.influxdb(_new(folder / "i"), environ=COMPACTING))
        victoria = stack.enter_context(peers.victoriametrics(_new(folder / "v")))
        urls = {
            peers.VEDETTE: f"duckdb:///{folder}/d/samples.duckdb",
            peers.INFLUXDB: f"influxdb://127.0.0.1:{influxdb.port}/{peers.DATABASE}"
            "?databases=shared",
            peers.VICTORIAMETRICS: f"victoriametrics://127.0.0.1:{victoria.port}",
        }
        stores = {peer: open_store(url) for peer, url in urls.items()}
        click.echo(f"writing {kind}", err=True)
        values = _write(stores, samples, for_influxdb)
        click.echo(f"settling {kind}: {values[peers.VEDETTE]:,} values", err=True)
        seal(stores[peers.VEDETTE], now_ns=to_ns(utc_now() + timedelta(days=2)))
        for store in stores.values():
            store.close()
        for path in ("force_flush", "force_merge"):
            with urllib.request.urlopen(f"{victoria.url}/internal/{path}", timeout=600):
                pass
        sizes = {
            peers.VEDETTE: _bytes(folder / "d"),
            peers.INFLUXDB: _settled([influxdb.files / "data", influxdb.files / "wal"], plan),
            peers.VICTORIAMETRICS: _settled([victoria.files], plan),
        }
        per_value = {peer: rounded(size / values[peer]) for peer, size in sizes.items()}
        return {**per_value, "values": values[peers.VEDETTE]}


def _write(
    stores: Mapping[str, Store], samples: Samples, for_influxdb: Collection[str] | None
) -> Counter[str]:
    """Write samples, and seal hour by hour meanwhile; return how many values each store took."""
    values = Counter[str]()

    def submissions(hour_samples: Samples) -> Iterator[tuple[Store, Mapping[str, str], Batch]]:
        for name, batch in hour_samples:
            for peer, store in stores.items():
                if peer != peers.INFLUXDB or for_influxdb is None or name in for_influxdb:
                    values[peer] += values_of(batch)
                    yield store, {TENANT_TAG: TENANT, APPLIANCE_TAG: name}, batch

    with ThreadPoolExecutor(1) as maintenance:
        for hour, hour_samples in groupby(
            samples, key=lambda sample: _time_ns(sample[1]) // HOUR_NS
        ):
            click.echo(f"hour {hour}: {values[peers.VEDETTE]:,} values so far", err=True)
            sealing = maintenance.submit(stores[peers.VEDETTE].maintain, now_ns=hour * HOUR_NS)
            submit_each(submissions(hour_samples))
            sealing.result()
    return values


def _time_ns(batch: Batch) -> int:
    return batch.blocks[0].times_ns[0]


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
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # merged meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


@click.command()
@click.option("--quick", is_flag=True, help="A little of each, to see that it runs.")
@click.option("--appliances", type=int, help="How many simulated appliances.")
@click.option("--days", type=float, help="For how long these run.")
@click.option("--output", type=click.Path(path_type=Path), help="Also keep the JSON here.")
def main(*, quick: bool, appliances: int | None, days: float | None, output: Path | None) -> None:
    """Measure sizes, and print JSON."""
    plan = QUICK if quick else FULL
    plan = replace(plan, appliances=appliances or plan.appliances, days=days or plan.days)
    write_document(measure(plan), output)


if __name__ == "__main__":
    main()
