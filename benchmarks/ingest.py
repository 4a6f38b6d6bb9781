"""Ingest through HTTP: what a million values cost, and how many a second are acknowledged.

    python -m benchmarks.ingest [--quick] [--output FILE]

    large   1,000 appliances with 8 GPUs in batches of 5,000 lines, as relays send them
    small   the same fleet, each appliance's 18 lines in a post of their own

Vedette's server on DuckDB, InfluxDB 1.6 and VictoriaMetrics take the same bodies from the same
driver, each alone on the machine, in turn, and anew for each repetition. Ratios are of medians.
What a server still does shortly after the last answer counts as its CPU time. No rules are
evaluated meanwhile, as the peers have none: see `benchmarks.alert_rules`.
"""

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks.bodies import Bodies, Ticks, large_batches, small_batches, write_bodies
from benchmarks.driver import Order, read_result, write_order
from benchmarks.figures import Promise, document, medians, ratio, rounded, write_document
from benchmarks.meter import NS_PER_SECOND, read_usage
from benchmarks.peers import INFLUXDB, SERVERS, UNBATCHED, VEDETTE, Server, serving
from benchmarks.processes import BenchmarkError, python
from core.clock import utc_now

LINES_OF_A_BATCH = 5_000
RELAYS = 8
LARGE, SMALL = "large", "small"
LOADS = (LARGE, SMALL)
CPU = "cpu_seconds_per_million_values"
SPEED = "values_per_second"
MOST_CPU_OF_INFLUXDB = 1 / 3
# Ahead of now, so that no sample is late when its turn comes: late ones are also noted for rules.
AHEAD_SECONDS = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The amount to send, the repetitions, and the time to watch a server after the last answer."""

    appliances: int
    ticks: Mapping[str, int]
    connections: Mapping[str, int]
    repetitions: int
    settle_seconds: float


FULL = Plan(
    appliances=1_000,
    ticks={LARGE: 40, SMALL: 20},
    connections={LARGE: RELAYS, SMALL: 64},
    repetitions=3,
    settle_seconds=5.0,
)
QUICK = Plan(
    appliances=100,
    ticks={LARGE: 6, SMALL: 6},
    connections={LARGE: RELAYS, SMALL: 32},
    repetitions=1,
    settle_seconds=0.5,
)


def measure(plan: Plan) -> dict[str, object]:
    """Load every server in turn; return the document."""
    started_at = utc_now()
    start_ns = int(time.time() + AHEAD_SECONDS) * NS_PER_SECOND
    results: dict[str, object] = {}
    with TemporaryDirectory(prefix="vedette-bench-") as folder:
        for load in LOADS:
            bodies = make_bodies(Path(folder), load, plan, start_ns=start_ns)
            results[load] = compared(_repeat(Path(folder), load, bodies, plan)) | {
                "bodies": {
                    "posts": bodies.count,
                    "values": bodies.values,
                    "plain_bytes_per_post": bodies.plain_bytes // bodies.count,
                    "sent_bytes_per_post": bodies.sent_bytes // bodies.count,
                }
            }
    return document(
        "ingest",
        started_at=started_at,
        settings={
            "appliances": plan.appliances,
            "lines_of_a_batch": LINES_OF_A_BATCH,
            "relays": RELAYS,
            "connections": dict(plan.connections),
            "repetitions": plan.repetitions,
            "settle_seconds": plan.settle_seconds,
        },
        results=results,
        promises=promises(results),
    )


def make_bodies(folder: Path, load: str, plan: Plan, *, start_ns: int) -> Bodies:
    """Write the bodies of a load; the plan's ticks are whole."""
    span = Ticks(appliances=plan.appliances, ticks=plan.ticks[load], start_ns=start_ns)
    batches = (
        large_batches(span, lines_of_a_batch=LINES_OF_A_BATCH, senders=RELAYS)
        if load == LARGE
        else small_batches(span)
    )
    return write_bodies(folder / f"{load}.bodies", batches)


def compared(repetitions: Sequence[Mapping[str, Mapping[str, float | None]]]) -> dict[str, object]:
    """Return the medians of each server, their ratios to InfluxDB's, and every reading."""
    names = list(dict.fromkeys(name for repetition in repetitions for name in repetition))
    of_each = {name: medians([repetition[name] for repetition in repetitions]) for name in names}
    return {
        "medians": of_each,
        "ratios_to_influxdb": {
            name: {figure: ratio(values[figure], of_each[INFLUXDB][figure]) for figure in values}
            for name, values in of_each.items()
            if name != INFLUXDB
        },
        "repetitions": list(repetitions),
    }


def promises(results: Mapping[str, object]) -> list[Promise]:
    """Return what is promised of ingest, with what was measured."""
    large, small = (_medians_of(results, load) for load in LOADS)
    return [
        Promise(
            name="CPU time of a million values in batches of 5,000 lines, beside InfluxDB's",
            bound=rounded(MOST_CPU_OF_INFLUXDB),
            measured=ratio(large[VEDETTE][CPU], large[INFLUXDB][CPU]),
            unit="times",
        ),
        Promise(
            name="InfluxDB's values a second in batches of 5,000 lines, beside ours",
            bound=1.0,
            measured=ratio(large[INFLUXDB][SPEED], large[VEDETTE][SPEED]),
            unit="times",
        ),
        Promise(
            name="InfluxDB's values a second in posts of one appliance, beside ours",
            bound=1.0,
            measured=ratio(small[INFLUXDB][SPEED], small[VEDETTE][SPEED]),
            unit="times",
        ),
    ]


def load_server(server: Server, order: Order, *, folder: Path) -> dict[str, object]:
    """Carry out an order by a driver in a process of its own; return its figures.

    Raises:
        BenchmarkError: the driver failed.
    """
    order_path, result_path = folder / "order.json", folder / "result.json"
    write_order(order_path, order)
    done = subprocess.run(
        python("benchmarks.driver", str(order_path), str(result_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchmarkError(f"the driver of {server.name} failed: {done.stderr[-2000:]}")
    return read_result(result_path)


def senders_of(server: Server, load: str) -> list[str]:
    """Return who sends: each appliance, or for the large load relays of different tenants."""
    step = len(server.senders) // RELAYS if load == LARGE and server.senders else 1
    return list(server.senders[::step])


def file_bytes(path: Path) -> int:
    """Return the room of a file, with what lies beside it by its name, or of a folder."""
    beside = path.parent.glob(f"{path.stem}*") if not path.is_dir() else [path]
    files = [
        file for entry in beside for file in ([entry] if entry.is_file() else entry.rglob("*"))
    ]
    return sum(512 * file.stat().st_blocks for file in files if file.is_file())


def _repeat(
    folder: Path, load: str, bodies: Bodies, plan: Plan
) -> list[dict[str, dict[str, float | None]]]:
    repetitions = []
    for number in range(plan.repetitions):
        readings = {}
        for name in SERVERS:
            if name == UNBATCHED and load != SMALL:
                continue  # large posts are never batched
            click.echo(f"{load}, repetition {number + 1}: {name}", err=True)
            with TemporaryDirectory(prefix=f"{name}-", dir=folder) as home:
                readings[name] = _measure(name, Path(home), load, bodies, plan)
        repetitions.append(readings)
    return repetitions


def _measure(
    name: str, home: Path, load: str, bodies: Bodies, plan: Plan
) -> dict[str, float | None]:
    with serving(name, home, appliances=plan.appliances) as server:
        order = Order(
            host="127.0.0.1",
            port=server.port,
            path=server.write_path,
            senders=senders_of(server, load),
            bodies=[str(bodies.path)],
            connections=plan.connections[load],
        )
        before = read_usage(server.pid)
        result = load_server(server, order, folder=home)
        time.sleep(plan.settle_seconds)
        after = read_usage(server.pid)
    if result["refused"]:
        raise BenchmarkError(f"{name} refused {result['refused']} posts: {result['reasons']}")
    cpu_seconds = (after.cpu_ns - before.cpu_ns) / NS_PER_SECOND
    return figures(result, bodies, cpu_seconds=cpu_seconds, disk_bytes=file_bytes(server.files)) | {
        "resident_mebibytes": rounded(after.resident_bytes / 2**20)
    }


def figures(
    result: Mapping[str, object], bodies: Bodies, *, cpu_seconds: float, disk_bytes: int
) -> dict[str, float | None]:
    """Return the figures of one load of one server."""
    reported = {
        name: float(value)
        for name in ("posts_per_second", "ack_milliseconds_p50", "ack_milliseconds_p99")
        if isinstance(value := result[name], int | float)
    }
    seconds = result["seconds"]
    if not isinstance(seconds, int | float):
        raise TypeError(seconds)
    return {
        SPEED: rounded(bodies.values / seconds),
        **reported,
        CPU: rounded(cpu_seconds * 1e6 / bodies.values),
        "disk_bytes_per_value": rounded(disk_bytes / bodies.values),
    }


def _medians_of(results: Mapping[str, object], load: str) -> Mapping[str, Mapping[str, float]]:
    result = results[load]
    if not isinstance(result, dict):
        raise TypeError(result)
    of_each: Mapping[str, Mapping[str, float]] = result["medians"]
    return of_each


@click.command()
@click.option("--quick", is_flag=True, help="A tenth of the fleet, once.")
@click.option("--output", type=click.Path(path_type=Path), help="Also keep the JSON here.")
def main(*, quick: bool, output: Path | None) -> None:
    """Measure ingest, and print JSON."""
    write_document(measure(QUICK if quick else FULL), output)


if __name__ == "__main__":
    main()
