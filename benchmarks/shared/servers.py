"""The servers that are measured: Vedette, and its peers InfluxDB 1.6 and VictoriaMetrics.

InfluxDB has its defaults, but for its logs of requests and its monitoring of itself, which are off.
VictoriaMetrics shows samples at once and drops repeated ones, as our store on it asks.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import requests
from sqlalchemy import select
from sqlalchemy.orm import Session

from benchmarks.shared.document import BenchmarkError
from benchmarks.shared.fleet import name_of
from cli.database import open_database
from collector.data_dir import load_identity
from core.clock import utc_now
from core.db import SessionFactory, transaction
from core.settings import ServerSettings
from protocol.inventory import Inventory
from tenants.enrollment import create_enrollment_token, enroll_appliance
from tenants.models import Role, User
from tenants.scope import Scope
from tenants.tenants import create_tenant
from tests.deployment import ALICE, Deployment, make_deployment, serving
from tests.fixtures.databases import influxdb_process, victoria_metrics_process
from tests.fixtures.mariadb import MariaDB, mariadb_server
from tests.servers import free_port
from timeseries.open_store import open_store
from timeseries.store import Aggregate, RangeQuery, Store

VEDETTE, INFLUXDB, VICTORIAMETRICS = "vedette", "influxdb", "victoriametrics"
DATABASE = "bench"
WRITE_PATH = "/api/v2/write?org=bench&bucket=bench&precision=ns"
APPLIANCES_OF_A_TENANT = 50
# For a server whose fleet only sends samples.
NO_HEARTBEATS = {
    f"VEDETTE_{name}_AFTER_SECONDS": "1e9" for name in ("STALE", "UNREACHABLE", "LOST")
}
NO_RULES = {"VEDETTE_RULE_PACK": "false"}
_QUIET_INFLUXDB = {
    "INFLUXDB_DATA_QUERY_LOG_ENABLED": "false",
    "INFLUXDB_MONITOR_STORE_ENABLED": "false",
    "INFLUXDB_LOGGING_LEVEL": "warn",
}
# The defaults of what the tests change.
_USUAL_VICTORIAMETRICS = ("-memory.allowedBytes=0", "-retentionPeriod=1")
_MARIADB_OPTIONS = ("--innodb-buffer-pool-size=512M",)


@dataclass(frozen=True, slots=True)
class Member:
    """An appliance of a fleet that was enrolled without an agent."""

    appliance_id: str
    tenant_id: str
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that runs.

    Attributes:
        write_path: where bodies are posted.
        files: what its samples lie in.
        senders: `Authorization` of each sender; none where the server asks for none.
    """

    name: str
    pid: int
    url: str
    write_path: str
    files: Path
    senders: Sequence[str] = ()

    @property
    def port(self) -> int:
        """The port of the loopback address."""
        return int(self.url.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class Portal:
    """Database and store of a deployment, and the scope of a tenant's admin."""

    settings: ServerSettings
    sessions: SessionFactory
    store: Store
    scope: Scope

    def identity(self, appliance: int) -> dict[str, str]:
        """Return whose samples an appliance's are."""
        return {"tenant": self.scope.require_tenant(), "appliance": name_of(appliance)}


@contextmanager
def vedette(
    folder: Path,
    *,
    appliances: int,
    environ: Mapping[str, str] = NO_HEARTBEATS | NO_RULES,
) -> Iterator[Server]:
    """Run a Vedette server with an enrolled fleet."""
    deployment = make_deployment(folder)
    members = enroll_fleet(deployment, appliances)
    with serving(deployment, environ=environ) as process:
        yield vedette_server(deployment, members, pid=process.pid)


def vedette_server(deployment: Deployment, members: Sequence[Member], *, pid: int) -> Server:
    """Return the server of a deployment, to which a fleet can post."""
    return Server(
        name=VEDETTE,
        pid=pid,
        url=deployment.url,
        write_path=WRITE_PATH,
        files=deployment.data_dir / "samples.duckdb",
        senders=[f"Token {member.secret}" for member in members],
    )


@contextmanager
def influxdb(folder: Path, *, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Run InfluxDB 1.6 with a database."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    settings = _QUIET_INFLUXDB | dict(settings or {})
    with influxdb_process(folder, port=port, settings=settings) as process:
        url = f"http://127.0.0.1:{port}"
        query = {"q": f"CREATE DATABASE {DATABASE}"}
        requests.post(f"{url}/query", data=query, timeout=30).raise_for_status()
        yield Server(
            name=INFLUXDB,
            pid=process.pid,
            url=url,
            write_path=f"/write?db={DATABASE}&precision=ns",
            files=folder,
        )


@contextmanager
def victoriametrics(folder: Path) -> Iterator[Server]:
    """Run a single VictoriaMetrics."""
    folder.mkdir(parents=True, exist_ok=True)
    with victoria_metrics_process(folder, options=_USUAL_VICTORIAMETRICS) as (url, process):
        yield Server(
            name=VICTORIAMETRICS,
            pid=process.pid,
            url=url,
            write_path="/write?precision=ns",
            files=folder / "data",
        )


@contextmanager
def mariadb(folder: Path) -> Iterator[MariaDB]:
    """Run MariaDB, which syncs every commit, as it does by default."""
    folder.mkdir(parents=True, exist_ok=True)
    with mariadb_server(folder, options=_MARIADB_OPTIONS) as server:
        yield server


@contextmanager
def opened(url: str) -> Iterator[Store]:
    """Open a store for the length of the block."""
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def portal_of(folder: Path, **changes: Any) -> Iterator[Portal]:  # noqa: ANN401 - of settings
    """Open database and store of a new deployment with the demo's tenants, as alice of acme."""
    settings = replace(make_deployment(folder).settings, **changes)
    with (
        open_database(settings) as (_engine, sessions),
        opened(settings.resolved_timeseries_url) as store,
    ):
        with transaction(sessions) as session:
            alice = session.scalars(select(User).where(User.email == ALICE)).unique().one()
            scope = Scope.of(alice)
        yield Portal(settings, sessions, store, scope)


@contextmanager
def writing(deployment: Deployment) -> Iterator[Session]:
    """Write into a deployment's database in a transaction."""
    with (
        open_database(deployment.settings) as (_engine, sessions),
        transaction(sessions) as session,
    ):
        yield session


def enroll_fleet(deployment: Deployment, appliances: int) -> list[Member]:
    """Enroll a fleet in the database, fifty appliances a tenant; return them in their order."""
    members: list[Member] = []
    with writing(deployment) as session:
        while len(members) < appliances:
            number, now = len(members) // APPLIANCES_OF_A_TENANT, utc_now()
            tenant = create_tenant(session, name=f"Fleet {number}", now=now)
            scope = Scope(user_id="", role=Role.ADMIN, tenant_id=tenant.id)
            uses = min(APPLIANCES_OF_A_TENANT, appliances - len(members))
            _token, secret = create_enrollment_token(
                session, scope, uses=uses, lifetime=timedelta(hours=1), now=now
            )
            for _ in range(uses):
                name, inventory = f"gpu-{len(members):05d}", Inventory(hostname="gpu-01")
                appliance, agent_secret = enroll_appliance(
                    session, secret=secret, name=name, inventory=inventory, now=now
                )
                members.append(Member(appliance.id, tenant.id, agent_secret))
    return members


def enrolled(deployment: Deployment, tenant: str) -> Member:
    """Enroll an appliance of a tenant of the demo, which can run simulated jobs."""
    secret = deployment.enrollment_secret(tenant)
    inventory = Inventory(
        hostname="gpu-01", cpu_count=8, memory_bytes=2**36, executors=["simulated"]
    )
    with writing(deployment) as session:
        appliance, agent_secret = enroll_appliance(
            session, secret=secret, name=f"{tenant}-01", inventory=inventory, now=utc_now()
        )
        return Member(appliance.id, appliance.tenant_id, agent_secret)


def enroll_agent(deployment: Deployment, home: Path) -> str:
    """Enroll an agent of acme at a server that runs; return its appliance's id.

    Raises:
        BenchmarkError: the server refused.
    """
    home.mkdir(exist_ok=True)
    secret = deployment.enrollment_secret("acme")
    options = ("--name", home.name, "--data-dir", str(home))
    completed = deployment.process("agent", "enroll", deployment.url, secret, *options)
    identity = load_identity(home)
    if identity is None:
        raise BenchmarkError(f"{home.name} could not be enrolled: {completed.stderr}")
    return identity.appliance_id


def stored_samples(
    deployment: Deployment, appliance_ids: Sequence[str], *, start_ns: int, end_ns: int
) -> dict[str, int]:
    """Return how many samples of each appliance a stopped server has stored of a span."""
    counts = dict.fromkeys(appliance_ids, 0)
    with opened(deployment.settings.resolved_timeseries_url) as store:
        for measurement in store.measurements(tenants=None):
            query = RangeQuery(
                measurement=measurement,
                fields=tuple(store.fields(measurement, tenants=None)),
                start_ns=start_ns,
                end_ns=end_ns,
                aggregate=Aggregate.COUNT,
                tenants=None,
                filters={"appliance": tuple(appliance_ids)},
                group_by=("appliance",),
            )
            for series in store.query_range(query):
                counts[series.tags["appliance"]] += int(sum(series.values))
    return counts


def file_bytes(path: Path, *, of_blocks: bool = True) -> int:
    """Return the size of a file, with what lies beside it by its name, or of a folder.

    It is counted in blocks on the disk, or in bytes.
    """
    entries = [path] if path.is_dir() else path.parent.glob(f"{path.stem}*")
    total = 0
    for entry in entries:
        for file in [entry] if entry.is_file() else entry.rglob("*"):
            with suppress(FileNotFoundError):  # a store has merged it meanwhile
                if file.is_file():
                    status = file.stat()
                    total += 512 * status.st_blocks if of_blocks else status.st_size
    return total


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with the interpreter in use."""
    return [sys.executable, "-m", module, *arguments]
