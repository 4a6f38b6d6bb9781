"""Measure the cost of a server that has little to do.

    python -m benchmarks.idle [--quick] [--output FILE]

Fleets of 10, 100 and 1,000 appliances with 8 GPUs post every 10 s, and 20 rules are evaluated
every 10 s; nobody looks at a page, and no jobs run. Heartbeats and long polls are not part of it.
The server is the embedded one; the smallest fleet is held on MariaDB and InfluxDB, too, whose own
processes don't count.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from sqlalchemy import select

from alerting.rule_request import RuleRequest
from alerting.rules.service import create_rule
from benchmarks import fleet_hold, peers
from benchmarks.figures import Promise, document, write_document
from benchmarks.gateway import Gateway, Member, enroll_fleet, make_gateway, serving
from benchmarks.mariadb import mariadb
from benchmarks.processes import BenchmarkError
from cli.database import open_database
from core.clock import utc_now
from core.db import transaction
from tenants.models import Role, User
from tenants.scope import Scope
from timeseries.store import Aggregate

RULES = 20
ON_SERVERS = " on MariaDB and InfluxDB"
FIELDS = ("utilization_percent", "memory_used_bytes", "temperature_celsius", "power_watts")
MOST_CPU_PERCENT, MOST_RESIDENT_MEBIBYTES = 5.0, 250.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes of the fleets, and how long each is watched."""

    fleets: tuple[int, ...] = (10, 100, 1_000)
    seconds: int = 60


FULL = Plan()
QUICK = Plan(fleets=(10,), seconds=10)


def measure(plan: Plan) -> dict[str, object]:
    """Watch a server with each fleet; return the document."""
    started_at = utc_now()
    results = {}
    for size in plan.fleets:
        with _embedded() as gateway:
            results[str(size)] = _watched(gateway, size, plan.seconds)
    smallest = plan.fleets[0]
    with _on_servers() as gateway:
        results[f"{smallest}{ON_SERVERS}"] = _watched(gateway, smallest, plan.seconds)
    bounds = {
        "server_cpu_percent_of_a_core": (MOST_CPU_PERCENT, "% of a core"),
        "server_most_resident_mebibytes": (MOST_RESIDENT_MEBIBYTES, "MiB"),
    }
    return document(
        "idle",
        started_at=started_at,
        settings={"seconds": plan.seconds, "rules": RULES, "interval_seconds": 10},
        results=results,
        promises=[
            Promise(
                name=f"{name} of a server with {smallest} appliances{where}",
                bound=bound,
                measured=results[f"{smallest}{where}"][name],
                unit=unit,
            )
            for where in ("", ON_SERVERS)
            for name, (bound, unit) in bounds.items()
        ],
    )


@contextmanager
def _embedded() -> Iterator[Gateway]:
    with TemporaryDirectory(prefix="vedette-bench-") as name:
        yield make_gateway(Path(name) / "server")


@contextmanager
def _on_servers() -> Iterator[Gateway]:
    with TemporaryDirectory(prefix="vedette-bench-") as name:
        folder = Path(name)
        with mariadb(folder) as database, peers.influxdb(folder) as influxdb:
            yield make_gateway(
                folder / "server",
                database_url=database.database("vedette"),
                timeseries_url=f"influxdb://127.0.0.1:{influxdb.port}/{peers.DATABASE}",
            )


def _watched(gateway: Gateway, appliances: int, seconds: int) -> dict[str, float]:
    plan = fleet_hold.Plan(appliances=appliances, seconds=seconds, connections=min(appliances, 64))
    folder = gateway.data_dir.parent
    parts = fleet_hold.bodies_of(folder, plan)
    members = enroll_fleet(gateway, appliances)
    _add_rules(gateway, members)
    with serving(gateway) as pid:
        server = peers.Server(
            name=peers.VEDETTE,
            pid=pid,
            port=gateway.port,
            write_path="/api/v2/write?org=bench&bucket=bench&precision=ns",
            senders=[f"Token {member.secret}" for member in members],
            files=folder / "data" if gateway.timeseries_url else gateway.samples_path,
        )
        _found, readings = fleet_hold.hold(folder, plan, parts, server)
    return fleet_hold.server_figures(readings)


def _add_rules(gateway: Gateway, members: list[Member]) -> None:
    with open_database(gateway.settings) as (_engine, sessions), transaction(sessions) as session:
        user = session.scalars(select(User)).first()
        if user is None:
            raise BenchmarkError("the gateway's database has no user")
        scope = Scope(user_id=user.id, role=Role.ADMIN, tenant_id=members[0].tenant_id)
        for number in range(RULES):
            request = RuleRequest(
                name=f"rule {number}",
                measurement="gpu",
                field=FIELDS[number % len(FIELDS)],
                aggregate=Aggregate.AVG.value,
                window_seconds=60.0 * (1 + number % 5),
                group_by=("appliance", "gpu"),
                critical_threshold=1e15,
            )
            create_rule(session, scope, request, now=utc_now())


@click.command(help=sys.modules[__name__].__doc__)
@click.option("--quick", is_flag=True, help="The smallest fleet for some seconds.")
@click.option("--output", type=click.Path(path_type=Path))
def main(*, quick: bool, output: Path | None) -> None:
    """Measure and print the document."""
    write_document(measure(QUICK if quick else FULL), output)


if __name__ == "__main__":
    main()
