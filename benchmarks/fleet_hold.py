"""Does one embedded server hold a fleet of 10,000 appliances with 8 GPUs at 10 s?

1,000 posts and 156,000 values a second, by the clock and not by the server's answers: a post is
due when it is due, and its delay counts from then. Driver and server share the machine. Connections
are kept and shared, as nginx keeps them in front of a server. The 200 tenants have the rule pack.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.shared.bodies import INTERVAL_SECONDS, Ticks, write_small_bodies
from benchmarks.shared.document import Outcome, Promise, ratio, rounded
from benchmarks.shared.fleet import VALUES_OF_A_TICK
from benchmarks.shared.load import Posts, post
from benchmarks.shared.meter import MEBIBYTE, server_figures, watched
from benchmarks.shared.servers import NO_HEARTBEATS, Server, file_bytes, vedette
from core.clock import NS_PER_SECOND

LEAST_SHARE_OF_THE_RATE = 0.99
MOST_ACK_MILLISECONDS = 500.0
# The driver is late when it, and not the server, is what a post waits for.
MOST_LATENESS_MILLISECONDS = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The fleet, for how long, and over how many connections.

    Meanwhile the server warms up, the new rules are evaluated for the first time, which reads all
    their groups.
    """

    appliances: int = 10_000
    seconds: int = 600
    connections: int = 512
    warm_up_seconds: float = 30.0

    @property
    def posts_per_second(self) -> float:
        """The number of posts that are due in a second."""
        return self.appliances / INTERVAL_SECONDS


FULL = Plan()
QUICK = Plan(appliances=2_000, seconds=20, warm_up_seconds=5.0)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Let the fleet post."""
    # The samples' times run as the clock does, from a moment that lies before the load's begin.
    parts = bodies_of(folder, plan)
    with vedette(folder / "server", appliances=plan.appliances, environ=NO_HEARTBEATS) as server:
        time.sleep(plan.warm_up_seconds)
        results = hold(server, plan, parts=parts)
    results["fell_behind"] = verdict(results)
    rate = plan.posts_per_second
    settings = {
        "interval_seconds": INTERVAL_SECONDS,
        "due_posts_per_second": rate,
        "due_values_per_second": rate * VALUES_OF_A_TICK,
    }
    return Outcome(results, promises(results, plan), settings)


def promises(results: Mapping[str, Any], plan: Plan) -> list[Promise]:
    """Return what is promised of a fleet, with what was measured."""
    fleet = f"of {plan.appliances:,} appliances"
    return [
        Promise(
            f"acknowledgement {fleet}, p99",
            results["ack_milliseconds_p99"],
            MOST_ACK_MILLISECONDS,
            "ms",
        ),
        Promise(f"posts refused {fleet} in {plan.seconds} s", results["refused"], 0.0, "posts"),
        Promise(
            "posts a second that were due, beside those acknowledged",
            ratio(plan.posts_per_second, results["posts_per_second"]),
            1 / LEAST_SHARE_OF_THE_RATE,
            "times",
        ),
    ]


def bodies_of(folder: Path, plan: Plan) -> list[Path]:
    """Write what the fleet posts into files."""
    click.echo(f"making {plan.posts_per_second * plan.seconds:,.0f} posts", err=True)
    ticks = range(-(-plan.seconds // INTERVAL_SECONDS))
    start_ns = int(time.time()) * NS_PER_SECOND
    span = Ticks(appliances=plan.appliances, numbers=ticks, start_ns=start_ns)
    return [bodies.path for bodies in write_small_bodies(folder, span)]


def hold(server: Server, plan: Plan, *, parts: list[Path]) -> dict[str, Any]:
    """Let the fleet post; return the load's figures, and what the server used meanwhile."""
    posts = Posts(
        server=server,
        bodies=parts,
        connections=plan.connections,
        per_second=plan.posts_per_second,
        count=int(plan.posts_per_second * plan.seconds),
    )
    bytes_before = file_bytes(server.files)
    with watched(server.pid, every_seconds=min(10.0, plan.seconds / 4)) as readings:
        result = post(posts)
    bytes_after = file_bytes(server.files)
    minutes = (readings[-1].at_seconds - readings[0].at_seconds) / 60
    return result | {
        **server_figures(readings),
        "file_mebibytes": rounded(bytes_after / MEBIBYTE),
        "file_mebibytes_per_minute": rounded((bytes_after - bytes_before) / MEBIBYTE / minutes),
    }


def verdict(results: Mapping[str, Any]) -> str:
    """Return who fell behind the schedule: nobody, the driver, or the server."""
    if results["driver_lateness_milliseconds_p99"] > MOST_LATENESS_MILLISECONDS:
        return "driver"
    return "server" if results["most_waiting_posts"] > results["connections"] else "nobody"
