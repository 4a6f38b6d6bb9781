"""The production shape: nginx, processes of each kind, both stores, an engine and agents.

All of it runs on this host, each server as a process that a scenario can kill, pause and start.
The servers' files are on one small disk, those of the agents on another.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.delivery.engine import CountingEngine, Process
from tests.deployment import make_deployment
from tests.failures.agents import AGENTS, DOCKER_AGENTS, Agents
from tests.failures.line import Line
from tests.fixtures import databases, mariadb, redis
from tests.fixtures.certificates import Authority
from tests.fixtures.mariadb import MariaDB
from tests.fixtures.nginx import PROXY_SECRET, listens, nginx_command, shipped_configuration
from tests.servers import free_port, require_program

SERVER_DISK_MIB = 1_024
AGENT_DISK_MIB = 64
SETTINGS = {
    "VEDETTE_PROXY_SECRET": PROXY_SECRET,
    "VEDETTE_REQUIRE_CLIENT_CERTIFICATE": "true",
    "VEDETTE_TRUSTED_PROXIES": "127.0.0.1",
    "VEDETTE_WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8",
    "VEDETTE_RULE_PACK": "false",
    "VEDETTE_EVALUATION_INTERVAL_SECONDS": "2",
    # All agents and users of this site have one address.
    "VEDETTE_REQUESTS_PER_SECOND_PER_ADDRESS": "0",
}


class Site:
    """Everything that a scenario can break.

    Attributes:
        processes: all processes by name, in the order in which they start.
        line: between the agents and nginx.
        agents: their data folders, and what they read.
        server_disk: has the files of both stores and of the portal's processes.
        agent_disk: has the agents' data folders.
    """

    def __init__(self, folder: Path, *, server_disk: Path, agent_disk: Path) -> None:
        self.folder, self.server_disk, self.agent_disk = folder, server_disk, agent_disk
        self.engine = CountingEngine(folder)
        self.ports = {
            name: free_port() for name in ("mariadb", "victoriametrics", "redis", "nginx")
        }
        self.line = Line(self.ports["nginx"])
        self.authority = Authority(folder / "certificates", "authority")
        self.processes: dict[str, Process] = {}
        self.agents = Agents(folder, agent_disk)

    @property
    def url(self) -> str:
        """Where users and agents reach the portal."""
        return f"https://127.0.0.1:{self.ports['nginx']}"

    @property
    def store_url(self) -> str:
        """The address of VictoriaMetrics."""
        return f"http://127.0.0.1:{self.ports['victoriametrics']}"

    def named(self, *prefixes: str) -> list[Process]:
        """Return the processes whose names begin with one of these."""
        return [process for name, process in self.processes.items() if name.startswith(prefixes)]

    def killed_agents(self) -> list[str]:
        """Return the names of the agents that don't run."""
        killed = []
        for number, name in enumerate(self.agents.names, start=1):
            process = f"agent-{number}" if number <= DOCKER_AGENTS else "agent-fleet"
            if not self.processes[process].pid:
                killed.append(name)
        return killed

    def supervise(self) -> None:
        """Start processes again that have ended by themselves, as systemd does."""
        for process in self.processes.values():
            process.restart_if_ended()

    def start(self) -> None:
        """Start the servers and everything behind them, and enroll the agents."""
        self._add_stores()
        self.start_all("mariadb", "victoriametrics", "redis")
        database_url = MariaDB(self.ports["mariadb"]).new_database()
        self.deployment = make_deployment(self.server_disk / "portal", database_url=database_url)
        self._add_portal()
        self.engine.start()
        self.processes |= {"containerd": self.engine.containerd, "dockerd": self.engine.dockerd}
        self.start_all("portal", "access", "scheduler", "nginx")
        self._enroll()
        self._add_agents()
        self.start_all("agent")

    def start_all(self, *prefixes: str) -> None:
        """Start processes together, and wait until all are ready."""
        for process in self.named(*prefixes):
            process.launch()
        for process in self.named(*prefixes):
            process.wait()

    def close(self) -> None:
        """End everything, agents first."""
        for name, process in reversed(self.processes.items()):
            if name not in {"containerd", "dockerd"}:
                process.kill(signal.SIGTERM)
        self.engine.close()
        self.line.cut()

    def restart_with(self, name: str, changes: Mapping[str, str]) -> None:
        """Restart a process with other settings."""
        process = self.processes[name]
        process.kill(signal.SIGTERM)
        process.environ |= changes
        process.start()

    def _add_stores(self) -> None:
        port, store_port = self.ports["mariadb"], self.ports["victoriametrics"]
        folder = self.server_disk / "mariadb"
        folder.mkdir()
        self._add("mariadb", mariadb.mariadb_command(folder, port=port),
                  is_ready=lambda: mariadb.answers(port))  # fmt: skip
        argv = databases.victoria_metrics_command(
            self.server_disk / "victoriametrics", port=store_port
        )
        self._add("victoriametrics", argv,
                  is_ready=lambda: databases.answers(f"{self.store_url}/health"))  # fmt: skip
        argv = redis.redis_command(self.server_disk / "redis", port=self.ports["redis"])
        self._add("redis", argv,
                  is_ready=lambda: redis.answers(self.ports["redis"]))  # fmt: skip

    def _add_portal(self) -> None:
        names = [f"{kind}-{number}" for kind in ("portal", "access", "scheduler")
                 for number in (1, 2)]  # fmt: skip
        self.ports |= {name: free_port() for name in names}
        shared = SETTINGS | {
            "TIMESERIES_URL": self.store_url.replace("http:", "victoriametrics:"),
            "VEDETTE_PUBLIC_URL": self.url,
            "VEDETTE_REDIS_URL": f"redis://127.0.0.1:{self.ports['redis']}",
        }
        for name in names:
            port = self.ports[name]
            environ = self.deployment.environ(shared | {"VEDETTE_PORT": str(port)})
            argv = [sys.executable, "-m", "cli.main", name.partition("-")[0]]
            self._add(name, argv, environ=environ, is_ready=partial(_is_alive, port))
        text = shipped_configuration(
            self.folder / "nginx",
            deployment=self.deployment,
            server=self.authority.issue("server"),
            port=self.ports["nginx"],
            upstreams={
                "vedette": [self.ports["portal-1"], self.ports["portal-2"]],
                "vedette_access": [self.ports["access-1"], self.ports["access-2"]],
            },
        )
        self._add("nginx", nginx_command(self.folder / "nginx", text),
                  is_ready=lambda: listens(self.ports["nginx"]))  # fmt: skip

    def _add_agents(self) -> None:
        homes = list(self.agents.homes.values())
        for number, home in enumerate(homes[:DOCKER_AGENTS], start=1):
            argv = [sys.executable, "-m", "cli.main", "agent", "run", "--data-dir", str(home)]
            self._add(f"agent-{number}", argv)
        fleet = [sys.executable, "-m", "tests.failures.fleet", *map(str, homes[DOCKER_AGENTS:])]
        self._add("agent-fleet", fleet)

    def _enroll(self) -> None:
        self.agents.write_configurations(
            url=f"https://127.0.0.1:{self.line.port}",
            authority=self.authority.certificate,
            docker_url=self.engine.url,
        )
        secret = self.deployment.enrollment_secret("acme", uses=AGENTS)
        for name, home in self.agents.homes.items():
            options = ("--name", name, "--data-dir", str(home))
            done = self.deployment.vedette("agent", "enroll", self.url, secret, *options)
            assert done.returncode == 0, done.stderr

    def _add(
        self,
        name: str,
        argv: list[str],
        *,
        environ: dict[str, str] | None = None,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.processes[name] = Process(
            argv,
            log=self.folder / f"{name}.log",
            environ=environ or dict(os.environ),
            is_ready=is_ready,
        )


def _is_alive(port: int) -> bool:
    return databases.answers(f"http://127.0.0.1:{port}/healthz")


@contextmanager
def running_site(folder: Path) -> Iterator[Site]:
    """Run a site for the length of the block."""
    with ExitStack() as stack:
        disks = {
            name: stack.enter_context(_disk(folder / name, mebibytes=mebibytes))
            for name, mebibytes in (("servers", SERVER_DISK_MIB), ("agents", AGENT_DISK_MIB))
        }
        site = Site(folder, server_disk=disks["servers"], agent_disk=disks["agents"])
        stack.callback(site.close)
        site.start()
        yield site


@contextmanager
def _disk(folder: Path, *, mebibytes: int) -> Iterator[Path]:
    """Mount a file system of a size for the length of the block."""
    mount, unmount = (require_program(name, package="mount") for name in ("mount", "umount"))
    folder.mkdir()
    command = [mount, "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    subprocess.run(command, check=True)
    try:
        yield folder
    finally:
        subprocess.run([unmount, "--lazy", folder], check=True)
