"""Does one embedded server hold a fleet of 10,000 appliances with 8 GPUs at 10 s?

    python -m benchmarks.fleet_hold [--quick] [--seconds SECONDS] [--output FILE]

1,000 posts and 156,000 values a second, by the clock and not by the server's answers: a post is
due when it is due, and its delay counts from then. Driver and server share the machine. Connections
are kept and shared, as nginx keeps them in front of a server. The 200 tenants have the rule pack.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks import peers
from benchmarks.bodies import Bodies, Ticks, write_small_bodies
from benchmarks.driver import Order, read_result, write_order
from benchmarks.figures import Promise, document, rounded, write_document
from benchmarks.fleet import VALUES_OF_A_TICK
from benchmarks.ingest import file_bytes
from benchmarks.meter import NS_PER_SECOND, Usage, read_usage
from benchmarks.processes import BenchmarkError, ended, python, running
from core.clock import utc_now

INTERVAL_SECONDS = 10
WATCH_SECONDS = 10.0
# Meanwhile the new rules are evaluated for the first time, which reads all their groups.
WARM_UP_SECONDS = 30.0
LEAST_SHARE_OF_THE_RATE = 0.99
MOST_ACK_MILLISECONDS = 500.0
# The driver is late when it, and not the server, is what a post waits for.
MOST_LATENESS_MILLISECONDS = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The fleet, for how long, and over how many connections."""

    appliances: int = 10_000
    seconds: int = 600
    connections: int = 512

    @property
    def posts_per_second(self) -> float:
        """The number of posts that are due in a second."""
        return self.appliances / INTERVAL_SECONDS


FULL = Plan()
QUICK = Plan(appliances=2_000, seconds=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The server's usage and the size of its file at one instant."""

    usage: Usage
    file_bytes: int


def measure(plan: Plan) -> dict[str, object]:
    """Let the fleet post; return the document."""
    started_at = utc_now()
    with TemporaryDirectory(prefix="vedette-bench-") as name:
        folder = Path(name)
        click.echo(f"making {plan.posts_per_second * plan.seconds:,.0f} posts", err=True)
        parts = bodies_of(folder, plan)
        with peers.serving(
            peers.VEDETTE, folder / "server", appliances=plan.appliances, has_rules=True
        ) as server:
            time.sleep(WARM_UP_SECONDS)
            figures, readings = hold(folder, plan, parts, server)
    results = {**figures, **server_figures(readings), "watched": _watched(readings)}
    results["fell_behind"] = verdict(results)
    return document(
        "fleet_hold",
        started_at=started_at,
        settings={
            "appliances": plan.appliances,
            "interval_seconds": INTERVAL_SECONDS,
            "seconds": plan.seconds,
            "connections": plan.connections,
            "due_posts_per_second": plan.posts_per_second,
            "due_values_per_second": plan.posts_per_second * VALUES_OF_A_TICK,
        },
        results=results,
        promises=promises(results, plan),
    )


def promises(results: Mapping[str, object], plan: Plan) -> list[Promise]:
    """Return what is promised of a fleet, with what was measured."""
    refused, rate = results["refused"], results["posts_per_second"]
    delay = results["ack_milliseconds_p99"]
    return [
        Promise(
            name=f"acknowledgement of {plan.appliances:,} appliances, p99",
            bound=MOST_ACK_MILLISECONDS,
            measured=float(delay) if isinstance(delay, int | float) else None,
            unit="ms",
        ),
        Promise(
            name=f"posts refused of {plan.appliances:,} appliances in {plan.seconds} s",
            bound=0.0,
            measured=float(refused) if isinstance(refused, int | float) else None,
            unit="posts",
        ),
        Promise(
            name="posts a second that were due, beside those acknowledged",
            bound=rounded(1 / LEAST_SHARE_OF_THE_RATE),
            measured=rounded(plan.posts_per_second / rate)
            if isinstance(rate, int | float) and rate
            else None,
            unit="times",
        ),
    ]


def verdict(results: Mapping[str, object]) -> str:
    """Return who fell behind the schedule: nobody, the driver, or the server."""
    lateness = results["driver_lateness_milliseconds_p99"]
    if isinstance(lateness, int | float) and lateness > MOST_LATENESS_MILLISECONDS:
        return "driver"
    waiting, connections = results["most_waiting_posts"], results["connections"]
    if not isinstance(waiting, int) or not isinstance(connections, int):
        raise TypeError(waiting)
    return "server" if waiting > connections else "nobody"


def server_figures(readings: list[Reading]) -> dict[str, float]:
    """Return what the server used between the first and the last reading."""
    first, last = readings[0], readings[-1]
    seconds = last.usage.at_seconds - first.usage.at_seconds
    cpu_seconds = (last.usage.cpu_ns - first.usage.cpu_ns) / NS_PER_SECOND
    return {
        "server_cpu_percent_of_a_core": rounded(100 * cpu_seconds / seconds),
        "server_resident_mebibytes": rounded(last.usage.resident_bytes / 2**20),
        "server_most_resident_mebibytes": rounded(
            max(reading.usage.resident_bytes for reading in readings) / 2**20
        ),
        "file_mebibytes": rounded(last.file_bytes / 2**20),
        "file_mebibytes_per_minute": rounded(
            (last.file_bytes - first.file_bytes) / 2**20 * 60 / seconds
        ),
    }


def bodies_of(folder: Path, plan: Plan) -> list[Bodies]:
    """Write what the fleet posts into files."""
    # The samples' times run as the clock does, from a moment that lies before the load's begin.
    ticks = -(-plan.seconds // INTERVAL_SECONDS)
    start_ns = int(time.time()) * NS_PER_SECOND
    span = Ticks(
        appliances=plan.appliances,
        ticks=ticks,
        interval_seconds=INTERVAL_SECONDS,
        start_ns=start_ns,
    )
    return write_small_bodies(folder, span)


def hold(
    folder: Path, plan: Plan, parts: list[Bodies], server: peers.Server
) -> tuple[dict[str, object], list[Reading]]:
    """Let the fleet post; return the driver's result, and what the server used meanwhile."""
    order_path, result_path = folder / "order.json", folder / "result.json"
    write_order(
        order_path,
        Order(
            host="127.0.0.1",
            port=server.port,
            path=server.write_path,
            senders=list(server.senders),
            bodies=[str(part.path) for part in parts],
            connections=plan.connections,
            per_second=plan.posts_per_second,
            most_posts=int(plan.posts_per_second * plan.seconds),
        ),
    )
    command = python("benchmarks.driver", str(order_path), str(result_path))
    log_path = folder / "driver.log"
    readings = [_read(server)]
    with running(command, log_path=log_path) as driver:
        while not ended(driver):
            time.sleep(min(WATCH_SECONDS, plan.seconds / 4))
            readings.append(_read(server))
    if not result_path.exists():
        raise BenchmarkError(f"the driver failed: {log_path.read_text(errors='replace')[-2000:]}")
    return {**read_result(result_path), "connections": plan.connections}, readings


def _read(server: peers.Server) -> Reading:
    return Reading(usage=read_usage(server.pid), file_bytes=file_bytes(server.files))


def _watched(readings: list[Reading]) -> list[dict[str, float]]:
    began = readings[0].usage.at_seconds
    return [
        {
            "at_seconds": rounded(reading.usage.at_seconds - began),
            "resident_mebibytes": rounded(reading.usage.resident_bytes / 2**20),
            "file_mebibytes": rounded(reading.file_bytes / 2**20),
            "cpu_seconds": rounded(reading.usage.cpu_ns / NS_PER_SECOND),
        }
        for reading in readings
    ]


@click.command()
@click.option("--quick", is_flag=True, help="A fifth of the fleet, for 20 s.")
@click.option("--seconds", type=click.IntRange(min=1), help="Hold for so long.")
@click.option("--appliances", type=click.IntRange(min=10), help="Hold so many.")
@click.option("--output", type=click.Path(path_type=Path), help="Also keep the JSON here.")
def main(*, quick: bool, seconds: int | None, appliances: int | None, output: Path | None) -> None:
    """Hold a fleet, and print JSON."""
    plan = QUICK if quick else FULL
    plan = replace(plan, seconds=seconds or plan.seconds, appliances=appliances or plan.appliances)
    write_document(measure(plan), output)


if __name__ == "__main__":
    main()
