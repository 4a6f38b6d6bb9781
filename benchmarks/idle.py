"""The cost of a server that has little to do.

Fleets of 10, 100 and 1,000 appliances with 8 GPUs post every 10 s, and 20 rules are evaluated
every 10 s; nobody looks at a page, and no jobs run. Heartbeats and long polls are not part of it.
The server is the embedded one; the smallest fleet is held on MariaDB and InfluxDB, too, whose own
processes don't count.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import select

from alerting.language.text import parse_expression
from alerting.rules.service import create_rule
from benchmarks import fleet_hold
from benchmarks.shared import servers
from benchmarks.shared.document import Outcome, Promise
from core.clock import utc_now
from tenants.models import Role, User
from tenants.scope import Scope
from tests.deployment import Deployment, make_deployment, serving

RULES = 20
FIELDS = ("utilization_percent", "memory_used_bytes", "temperature_celsius", "power_watts")
ON_SERVERS = " on MariaDB and InfluxDB"
BOUNDS = {
    "server_cpu_percent_of_a_core": (5.0, "% of a core"),
    "server_most_resident_mebibytes": (250.0, "MiB"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes of the fleets, and how long each is watched."""

    fleets: tuple[int, ...] = (10, 100, 1_000)
    seconds: int = 60


FULL = Plan()
QUICK = Plan(fleets=(10,), seconds=10)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Watch a server with each fleet."""
    smallest = plan.fleets[0]
    results = {str(size): _embedded(folder / str(size), size, plan) for size in plan.fleets}
    results[f"{smallest}{ON_SERVERS}"] = _on_servers(folder / "servers", smallest, plan)
    promises = [
        Promise(
            f"{figure} of a server with {smallest} appliances{where}",
            results[f"{smallest}{where}"][figure],
            bound,
            unit,
        )
        for where in ("", ON_SERVERS)
        for figure, (bound, unit) in BOUNDS.items()
    ]
    return Outcome(results, promises, {"rules": RULES, "interval_seconds": 10})


def _embedded(folder: Path, appliances: int, plan: Plan) -> dict[str, Any]:
    folder.mkdir()
    return _watched(make_deployment(folder / "data"), appliances, plan=plan, environ={})


def _on_servers(folder: Path, appliances: int, plan: Plan) -> dict[str, Any]:
    with ExitStack() as stack:
        database = stack.enter_context(servers.mariadb(folder / "mariadb"))
        influxdb = stack.enter_context(servers.influxdb(folder / "influxdb"))
        (folder / "data").mkdir()
        deployment = make_deployment(folder / "data", database_url=database.new_database())
        url = f"influxdb://127.0.0.1:{influxdb.port}/{servers.DATABASE}"
        figures = _watched(deployment, appliances, plan=plan, environ={"TIMESERIES_URL": url})
    return {name: value for name, value in figures.items() if "file" not in name}


def _watched(
    deployment: Deployment, appliances: int, *, plan: Plan, environ: dict[str, str]
) -> dict[str, Any]:
    load = replace(
        fleet_hold.FULL,
        appliances=appliances,
        seconds=plan.seconds,
        connections=min(appliances, 64),
    )
    parts = fleet_hold.bodies_of(deployment.data_dir.parent, load)
    members = servers.enroll_fleet(deployment, appliances)
    _add_rules(deployment, members[0].tenant_id)
    with serving(deployment, environ=environ) as process:
        server = servers.vedette_server(deployment, members, pid=process.pid)
        figures = fleet_hold.hold(server, load, parts=parts)
    return {
        name: value
        for name, value in figures.items()
        if name.startswith(("server_", "file_mebibytes"))
    }


def _add_rules(deployment: Deployment, tenant_id: str) -> None:
    with servers.writing(deployment) as session:
        user = session.scalars(select(User)).unique().all()[0]
        scope = Scope(user_id=user.id, role=Role.ADMIN, tenant_id=tenant_id)
        for number in range(RULES):
            field, minutes = FIELDS[number % len(FIELDS)], 1 + number % 5
            text = f"avg(gpu.{field}) over {minutes}m by appliance,gpu > 1e15"
            request = replace(parse_expression(text), name=f"rule {number}")
            create_rule(session, scope, request, now=utc_now())
