"""`vedette demo-fleet`: agents of simulated appliances in one process, and the people at work.

Each appliance is an ordinary agent: it enrols with a token, buffers and sends its samples, and runs
attempts. On its first start it also sends the day before, as if it had been there.
"""

import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import click

from cli.bootstrap import DEMO_PASSWORD
from cli.demo.people import Person
from cli.parentage import stop_with_parent
from collector.agent import Agent
from collector.certificates.portal_authority import trusted_files
from collector.config import AgentConfig
from collector.configuring.tls_files import TLSFiles
from collector.enrolment import enroll
from collector.identity import Identity, load_identity
from collector.inventory import simulated_inventory
from collector.sending.tls import TLSContexts
from core.clock import utc_now
from core.logs import configure_logging
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import GIB, SimulationConfig

log = logging.getLogger(__name__)

SECRETS_NAME = "enrolment.json"
HISTORY_MARK = "history-sent"
START_MARK = "started"
HISTORY = timedelta(hours=24)
HISTORY_STEP_SECONDS = 120
PAST_POINTS_PER_SECOND = 50_000.0
PEOPLE = ("alice@acme.example", "charlie@globex.example")


@dataclass(frozen=True, slots=True)
class Model:
    """A kind of appliance that the demo has."""

    gpu: str
    memory_bytes: int
    power_limit_watts: float
    sm_clock_hertz: int = 1_980_000_000
    nvlinks: int = 18
    pcie_generation: int = 5


H100 = Model("NVIDIA H100 80GB HBM3", 80 * GIB, 700.0)
A100 = Model("NVIDIA A100-SXM4-80GB", 80 * GIB, 400.0, 1_410_000_000, nvlinks=12, pcie_generation=4)
H200 = Model("NVIDIA H200", 141 * GIB, 700.0)


@dataclass(frozen=True, slots=True)
class Member:
    """One simulated appliance: whose it is, where it stands, and how it misbehaves."""

    tenant: str
    name: str
    site: str
    model: Model
    hot_gpu: int | None = None
    lost_gpu: int | None = None
    xid_gpu: int | None = None
    nvlink_down_gpu: int | None = None
    stray_gpu: int | None = None
    outage_every_seconds: float = 0.0
    outage_seconds: float = 0.0


FLEET = (
    Member("acme", "dgx-01", "Lyon", H100),
    Member("acme", "dgx-02", "Lyon", H100, hot_gpu=3),
    Member("acme", "dgx-03", "Lyon", H100),
    Member("acme", "dgx-04", "Porto", A100, outage_every_seconds=900, outage_seconds=75),
    Member("acme", "dgx-05", "Porto", A100, lost_gpu=5),
    Member("acme", "dgx-06", "Porto", A100, nvlink_down_gpu=1),
    Member("globex", "hgx-a1", "Austin", H200),
    Member("globex", "hgx-a2", "Austin", H200),
    Member("globex", "hgx-a3", "Austin", H200, hot_gpu=5),
    Member("globex", "hgx-b1", "Osaka", H100, xid_gpu=6),
    Member("globex", "hgx-b2", "Osaka", H100, outage_every_seconds=1500, outage_seconds=75),
    Member("globex", "hgx-b3", "Osaka", H100, stray_gpu=0),
)


@click.command(hidden=True)
@click.option("--portal-url", required=True)
@click.option("--data-dir", type=click.Path(path_type=Path), required=True)
@click.option("--interval", default=2.0, help="Seconds between samples.")
def demo_fleet(portal_url: str, data_dir: Path, interval: float) -> None:
    """Run the simulated fleet."""
    configure_logging(process="fleet")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    stop_with_parent()
    threads = [
        threading.Thread(target=target, args=(stop,), name=name)
        for name, target in _everybody(portal_url, data_dir, interval)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def members_without_identity(data_dir: Path) -> list[Member]:
    """Return the appliances that still have to enrol."""
    return [member for member in FLEET if load_identity(home_of(data_dir, member)) is None]


def home_of(data_dir: Path, member: Member) -> Path:
    """Return the data folder of one appliance."""
    return data_dir / member.tenant / member.name


def _everybody(
    portal_url: str, data_dir: Path, interval: float
) -> Iterator[tuple[str, Callable[[threading.Event], None]]]:
    one_past_at_a_time = threading.Lock()
    for member in FLEET:
        appliance = _Appliance(
            member, portal_url, data_dir, interval=interval, one_past_at_a_time=one_past_at_a_time
        )
        yield member.name, appliance.run
    for seed, email in enumerate(PEOPLE):
        person = Person(portal_url, email=email, password=DEMO_PASSWORD, seed=seed)
        yield email, person.run


class _Appliance:
    """One simulated appliance with its agent."""

    def __init__(
        self,
        member: Member,
        portal_url: str,
        data_dir: Path,
        *,
        interval: float,
        one_past_at_a_time: threading.Lock,
    ) -> None:
        # Twelve pasts made at once would keep the live samples waiting.
        self._one_past_at_a_time = one_past_at_a_time
        self._member = member
        self._portal_url = portal_url
        self._secrets_path = data_dir / SECRETS_NAME
        self._home = home_of(data_dir, member)
        self._simulation = SimulationConfig(
            seed=f"{member.tenant}/{member.name}",
            hostname=member.name,
            gpu_model=member.model.gpu,
            gpu_memory_bytes=member.model.memory_bytes,
            power_limit_watts=member.model.power_limit_watts,
            sm_clock_hertz=member.model.sm_clock_hertz,
            nvlinks=member.model.nvlinks,
            pcie_generation=member.model.pcie_generation,
            hot_gpu=member.hot_gpu,
            lost_gpu=member.lost_gpu,
            xid_gpu=member.xid_gpu,
            nvlink_down_gpu=member.nvlink_down_gpu,
            stray_gpu=member.stray_gpu,
            outage_every_seconds=member.outage_every_seconds,
            outage_seconds=member.outage_seconds,
        )
        self._config = AgentConfig(
            portal_urls=[portal_url],
            data_dir=self._home,
            name=member.name,
            interval_seconds=interval,
            flush_interval_seconds=interval,
            heartbeat_interval_seconds=4.0,
            backlog_points_per_second=PAST_POINTS_PER_SECOND,
            executor="simulated",
        )

    def run(self, stop: threading.Event) -> None:
        """Enrol if need be, then run as any agent does; the day before is sent meanwhile."""
        identity = load_identity(self._home) or self._enrol()
        now = utc_now()
        simulation = SimulatedAppliance(
            self._simulation, started_at=now, is_restart=self._note_start()
        )
        agent = Agent(self._config, identity, simulation=simulation)
        past = threading.Thread(target=self._send_past, args=(agent, now), daemon=True)
        past.start()
        agent.run(stop)

    def _note_start(self) -> bool:
        """Leave a mark in the data folder; return whether there was one."""
        mark = self._home / START_MARK
        was_there = mark.exists()
        mark.touch()
        return was_there

    def _send_past(self, agent: Agent, now: datetime) -> None:
        mark = self._home / HISTORY_MARK
        if mark.exists():
            return
        with self._one_past_at_a_time:
            agent.push_history(now - HISTORY, now, step_seconds=HISTORY_STEP_SECONDS)
        mark.touch()

    def _enrol(self) -> Identity:
        secrets = json.loads(self._secrets_path.read_text(encoding="utf-8"))
        self._home.mkdir(parents=True, exist_ok=True)
        return enroll(
            portal_url=self._portal_url,
            token=secrets[self._member.tenant],
            name=self._member.name,
            inventory=simulated_inventory(self._simulation, executors=["simulated"]),
            data_dir=self._home,
            site=self._member.site,
            tls=TLSContexts(TLSFiles(also_trusted=trusted_files(self._home))),
        )
