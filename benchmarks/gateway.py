"""A Vedette server for a benchmark, and the agents that speak to it."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from benchmarks.processes import BenchmarkError, answers, free_port, python, running, wait_until
from cli.bootstrap import create_token, prepare_demo
from cli.database import open_database
from collector.data_dir import Identity, save_identity
from core.clock import utc_now
from core.db import transaction
from core.settings import ServerSettings
from protocol.inventory import Inventory
from tenants.enrollment import create_enrollment_token, enroll_appliance
from tenants.models import Role
from tenants.scope import Scope
from tenants.tenants import create_tenant
from timeseries.open_store import open_store
from timeseries.store import Aggregate, RangeQuery

TENANT = "acme"
ENROLL_SECONDS = 60
TOKEN_LIFETIME = timedelta(hours=1)
APPLIANCES_OF_A_TENANT = 50
# For a server whose fleet only sends samples.
NO_HEARTBEATS = {
    f"VEDETTE_{name}_AFTER_SECONDS": "1e9" for name in ("STALE", "UNREACHABLE", "LOST")
}
NO_RULES = {"VEDETTE_RULE_PACK": "false"}
HOST_PLUGINS = (
    "cpu",
    "memory",
    "swap",
    "load",
    "disk",
    "diskio",
    "network",
    "processes",
    "uptime",
    "sensors",
)
OTHER_PLUGINS = (
    "nvml",
    "gpu_processes",
    "amdgpu",
    "containers",
    "speedtest",
    "inventory",
    "exec",
    "collectd_python",
)
# Lines of agent.toml that leave the plugins of the host on, and run no jobs.
HOST_ONLY = 'executor = "none"\n' + "".join(
    f"\n[plugins.{name}]\nenabled = false\n" for name in OTHER_PLUGINS
)


@dataclass(frozen=True, slots=True)
class Member:
    """An appliance of a fleet that was enrolled without an agent."""

    appliance_id: str
    tenant_id: str
    secret: str


@dataclass(frozen=True, slots=True)
class Gateway:
    """The folder and the ports of a benchmark's server."""

    data_dir: Path
    port: int
    store_memory_mib: int = 0
    extra_environ: Mapping[str, str] = field(default_factory=dict)
    database_url: str = ""
    timeseries_url: str = ""

    @property
    def url(self) -> str:
        """The address that agents speak to."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> ServerSettings:
        """The server's settings."""
        return ServerSettings(
            data_dir=self.data_dir,
            port=self.port,
            database_url=self.database_url,
            timeseries_url=self.timeseries_url,
        )

    @property
    def samples_path(self) -> Path:
        """The file that the embedded store keeps samples in."""
        return self.data_dir / "samples.duckdb"

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment of the server's process."""
        return {
            "VEDETTE_DATA_DIR": str(self.data_dir),
            "VEDETTE_PORT": str(self.port),
            "VEDETTE_STORE_MEMORY_MIB": str(self.store_memory_mib),
            "DATABASE_URL": self.settings.resolved_database_url,
            "TIMESERIES_URL": self.settings.resolved_timeseries_url,
            **self.extra_environ,
        }


def make_gateway(
    data_dir: Path,
    *,
    store_memory_mib: int = 0,
    extra_environ: Mapping[str, str] | None = None,
    database_url: str = "",
    timeseries_url: str = "",
) -> Gateway:
    """Prepare a database with two tenants; nothing runs yet. `extra_environ` is for the server."""
    data_dir.mkdir(parents=True, exist_ok=True)
    gateway = Gateway(
        data_dir, free_port(), store_memory_mib, extra_environ or {}, database_url, timeseries_url
    )
    with open_database(gateway.settings, may_create=True) as (_engine, sessions):
        prepare_demo(sessions, now=utc_now())
    return gateway


@contextmanager
def serving(gateway: Gateway, *, module: str = "cli.main") -> Iterator[int]:
    """Run the server for the length of the block and give its pid; it answers at its begin."""
    log_path = gateway.data_dir / "server.log"
    with running(python(module, "server"), log_path=log_path, environ=gateway.environ) as server:
        wait_until(
            lambda: answers(f"{gateway.url}/health"), what="the server to answer", log_path=log_path
        )
        yield server


def enroll(gateway: Gateway, home: Path, *, name: str) -> None:
    """Enroll an agent at a server that runs.

    Raises:
        BenchmarkError: the server refused.
    """
    with open_database(gateway.settings) as (_engine, sessions):
        secret = create_token(sessions, TENANT, uses=1, now=utc_now())
    arguments = ("agent", "enroll", gateway.url, secret, "--name", name, "--data-dir", str(home))
    done = subprocess.run(
        python("cli.main", *arguments),
        capture_output=True,
        text=True,
        timeout=ENROLL_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise BenchmarkError(f"{name} could not be enrolled: {done.stdout}{done.stderr}")


def enroll_fleet(gateway: Gateway, appliances: int) -> list[Member]:
    """Enroll a fleet in the database, fifty appliances a tenant; return them in their order."""
    members: list[Member] = []
    with open_database(gateway.settings) as (_engine, sessions), transaction(sessions) as session:
        while len(members) < appliances:
            number, now = len(members) // APPLIANCES_OF_A_TENANT, utc_now()
            tenant = create_tenant(session, name=f"Fleet {number}", now=now)
            scope = Scope(user_id="", role=Role.ADMIN, tenant_id=tenant.id)
            uses = min(APPLIANCES_OF_A_TENANT, appliances - len(members))
            _token, secret = create_enrollment_token(
                session, scope, uses=uses, lifetime=TOKEN_LIFETIME, now=now
            )
            for _ in range(uses):
                appliance, agent_secret = enroll_appliance(
                    session,
                    secret=secret,
                    name=f"gpu-{len(members):05d}",
                    inventory=Inventory(hostname="gpu-01"),
                    now=now,
                )
                members.append(Member(appliance.id, tenant.id, agent_secret))
    return members


def pretend_enrolled(home: Path) -> None:
    """Give an agent an identity that no server has made: a sink asks for none."""
    home.mkdir(parents=True, exist_ok=True)
    save_identity(home, Identity(appliance_id="bench", tenant_id="bench", agent_token="bench"))  # noqa: S106


def configure(home: Path, url: str, *, toml: str) -> None:
    """Write an agent's `agent.toml`: addresses, and what `toml` says."""
    text = f'portal_urls = ["{url}"]\ndata_dir = "{home}"\n{toml}'
    (home / "agent.toml").write_text(text, encoding="utf-8")


def agent_command(home: Path) -> list[str]:
    """Return the command that runs an enrolled agent."""
    return python("cli.main", "agent", "run", "--data-dir", str(home))


def stored_samples(gateway: Gateway, name_to_window: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Return how many samples of each appliance a stopped server has stored.

    Args:
        name_to_window: the appliance's id to the first and the last nanosecond that count.
    """
    store = open_store(gateway.settings.resolved_timeseries_url)
    try:
        return {
            appliance: sum(
                int(value)
                for measurement in store.measurements(tenants=None)
                for series in store.query_range(
                    RangeQuery(
                        measurement=measurement,
                        fields=tuple(store.fields(measurement, tenants=None)),
                        start_ns=start_ns,
                        end_ns=end_ns,
                        aggregate=Aggregate.COUNT,
                        tenants=None,
                        filters={"appliance": (appliance,)},
                    )
                )
                for value in series.values
            )
            for appliance, (start_ns, end_ns) in name_to_window.items()
        }
    finally:
        store.close()
