"""`vedette demo-fleet`: agents of simulated appliances, and their users, in one process.

Each appliance is an ordinary agent: it enrolls with a token, buffers and sends its samples, and
runs attempts. On its first start it also sends a day of history, and `demo_past` adds its jobs.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import click

from cli.bootstrap import DEMO_PASSWORD
from cli.demo_market import CUSTOMERS, RENTED_LABELS, Customer, DemoMarket
from cli.demo_past import add_past
from cli.demo_slices import SHARING_LABEL, SLICE_JOBS
from cli.demo_tickets import DemoTickets
from cli.demo_users import DemoUser
from cli.supervision import stop_event, stop_with_parent
from collector.agent import Agent
from collector.certificates import portal_authority_files
from collector.config import AgentConfig
from collector.data_dir import Identity, load_identity
from collector.enrollment import enroll
from collector.inventory import simulated_inventory
from collector.tls import TLSContexts, TLSFiles
from core.clock import utc_now
from core.logs import configure_logging
from core.settings import load_server_settings
from core.structs import describe_structs
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import GIB, SimulationConfig
from plugins.simulation.history import continue_history

TOKENS_NAME = "enrollment.json"
HISTORY_MARKER = "history-sent"
START_MARKER = "started"
HISTORY_HOURS = 24.0
# The agent's first samples come as much later.
STARTING = timedelta(seconds=15)
# The part of the history that is sent in one request.
HISTORY_PART = timedelta(hours=1)
# That of the history, too: in a mean over both, each hour counts alike.
INTERVAL_SECONDS = 10.0
# About 9,000 points of history arrive in a second: more would slow the pages down.
PAUSE_SECONDS = 0.75
HISTORY_POINTS_PER_SECOND = 20_000.0
NICENESS = 10
# The buffer of an appliance that has delivered its history has a few readings at most.
DELIVERED_POINTS = 1_000
USERS_OF_TENANTS = {"acme": "alice@acme.example", "globex": "charlie@globex.example"}


H100 = SimulationConfig(seed="")  # the default model
H200 = replace(H100, gpu_model="NVIDIA H200", gpu_memory_bytes=141 * GIB)
A100 = replace(
    H100,
    gpu_model="NVIDIA A100-SXM4-80GB",
    power_limit_watts=400.0,
    sm_clock_hertz=1_410_000_000,
    nvlinks=12,
    has_fabric=False,
    pcie_generation=4,
)


@dataclass(frozen=True, slots=True)
class Member:
    """One simulated appliance: its tenant, name, site, and what is simulated.

    With `sharing`, the demo's partition policies cover its GPUs; with `is_rented`, its tenant
    offers it to others. Neither has a past of its tenant.
    """

    tenant: str
    name: str
    site: str
    simulation: SimulationConfig
    sharing: str = ""
    is_rented: bool = False

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return ({SHARING_LABEL: self.sharing} if self.sharing else {}) | (
            RENTED_LABELS if self.is_rented else {}
        )

    @property
    def has_past(self) -> bool:
        """Whether jobs of its tenant ran on it before the demo started."""
        return not self.sharing and not self.is_rented


def _member(
    tenant: str,
    name: str,
    site: str,
    model: SimulationConfig,
    *,
    sharing: str = "",
    is_rented: bool = False,
    **faults: int,
) -> Member:
    simulation = replace(model, seed=f"{tenant}/{name}", hostname=name, **faults)  # type: ignore[arg-type]
    return Member(tenant, name, site, simulation, sharing, is_rented)


FLEET = (
    _member("acme", "dgx-01", "Lyon", H100),
    _member("acme", "dgx-02", "Lyon", H100, hot_gpu=3),
    _member("acme", "dgx-03", "Lyon", H100),
    _member("acme", "dgx-04", "Porto", A100, outage_every_seconds=900, outage_seconds=75),
    _member("acme", "dgx-05", "Porto", A100, lost_gpu=5),
    _member("acme", "dgx-06", "Porto", A100, nvlink_down_gpu=1),
    _member("acme", "lab-01", "Lyon", H100, sharing="mig", gpu_count=2),
    _member("acme", "lab-02", "Porto", A100, sharing="mps", gpu_count=2),
    _member("globex", "hgx-a1", "Austin", H200),
    _member("globex", "hgx-a2", "Austin", H200),
    _member("globex", "hgx-a3", "Austin", H200, hot_gpu=5),
    _member("globex", "hgx-b1", "Osaka", H100, xid_gpu=6),
    _member("globex", "hgx-b2", "Osaka", H100, outage_every_seconds=1500, outage_seconds=75),
    _member("globex", "hgx-b3", "Osaka", H100, external_gpu=0),
    _member("globex", "lab-a1", "Austin", H200, sharing="mig", gpu_count=2),
)

# Those that are on offer where the marketplace is on.
RENTED_FLEET = (
    _member("acme", "rent-01", "Lyon", H100, is_rented=True, gpu_count=4),
    _member("globex", "rent-a1", "Austin", H200, is_rented=True, gpu_count=4),
)


def fleet_of(*, has_marketplace: bool) -> tuple[Member, ...]:
    """Return the simulated appliances."""
    return FLEET + RENTED_FLEET if has_marketplace else FLEET


@click.command(hidden=True)
@click.option("--portal-url", required=True)
@click.option("--data-dir", type=click.Path(path_type=Path), required=True)
@click.option("--interval", default=INTERVAL_SECONDS, help="Seconds between samples.")
@click.option(
    "--history-hours",
    default=HISTORY_HOURS,
    envvar="DEMO_HISTORY_HOURS",
    help="Hours of history at the first start.",
)
def demo_fleet(portal_url: str, data_dir: Path, interval: float, history_hours: float) -> None:
    """Run the simulated fleet."""
    configure_logging(process="fleet")
    # Generating the history must not delay the pages.
    os.nice(NICENESS)
    stop = stop_event()
    stop_with_parent()
    describe_structs()
    threads = [
        threading.Thread(target=target, args=(stop,), name=name)
        for name, target in _runners(
            portal_url, data_dir, interval, history=timedelta(hours=history_hours)
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def home_of(data_dir: Path, member: Member) -> Path:
    """Return the data directory of one appliance."""
    return data_dir / member.tenant / member.name


def _runners(
    portal_url: str, data_dir: Path, interval: float, *, history: timedelta
) -> Iterator[tuple[str, Callable[[threading.Event], None]]]:
    history_lock = threading.Lock()
    has_marketplace = load_server_settings().marketplace
    yield "tickets", DemoTickets().run
    if has_marketplace:
        yield "marketplace", DemoMarket().run
        for number, (_, email) in enumerate(CUSTOMERS):
            customer = Customer(portal_url, email=email, password=DEMO_PASSWORD, seed=10 + number)
            yield email, customer.run
    for member in fleet_of(has_marketplace=has_marketplace):
        appliance = _Appliance(
            member,
            portal_url,
            data_dir,
            interval=interval,
            history=history,
            history_lock=history_lock,
        )
        yield member.name, appliance.run
    for seed, (tenant, email) in enumerate(USERS_OF_TENANTS.items()):
        user = DemoUser(
            portal_url,
            email=email,
            password=DEMO_PASSWORD,
            seed=seed,
            slice_jobs=SLICE_JOBS[tenant],
            has_service=tenant == "acme",
        )
        yield email, user.run


class _Appliance:
    """One simulated appliance with its agent."""

    def __init__(
        self,
        member: Member,
        portal_url: str,
        data_dir: Path,
        *,
        interval: float,
        history: timedelta,
        history_lock: threading.Lock,
    ) -> None:
        # Twelve histories generated at once would delay live samples.
        self._history = history
        self._history_lock = history_lock
        self._member = member
        self._portal_url = portal_url
        self._tokens_path = data_dir / TOKENS_NAME
        self._home = home_of(data_dir, member)
        self._config = AgentConfig(
            portal_urls=[portal_url],
            data_dir=self._home,
            name=member.name,
            interval_seconds=interval,
            heartbeat_interval_seconds=10.0,
            backlog_points_per_second=HISTORY_POINTS_PER_SECOND,
            executor="simulated",
        )

    def run(self, stop: threading.Event) -> None:
        """Enroll if new, then run the agent; a thread sends the history."""
        identity = load_identity(self._home) or self._enroll()
        now, marker = utc_now(), self._home / START_MARKER
        is_restart = marker.exists()
        simulation = SimulatedAppliance(
            self._member.simulation,
            started_at=now,
            is_restart=is_restart,
            mig_state_path=self._home / "simulated-mig.json",
        )
        if not is_restart and self._member.has_past:
            continue_history(simulation, start_at=now - self._history, end_at=now)
        marker.touch()
        agent = Agent(self._config, identity, simulation=simulation)
        if self._member.has_past:
            threading.Thread(
                target=self._send_history, args=(agent, identity, now), daemon=True
            ).start()
        agent.run(stop)

    def _send_history(self, agent: Agent, identity: Identity, now: datetime) -> None:
        marker = self._home / HISTORY_MARKER
        if marker.exists():
            return
        end_at = now + STARTING
        past = end_at - self._history, end_at
        # The hour that dashboards show first comes first.
        while end_at > past[0]:
            start_at = max(end_at - HISTORY_PART, past[0])
            with self._history_lock:
                agent.push_history(
                    start_at, end_at, step_seconds=self._config.interval_seconds, planned=past
                )
            end_at = start_at
            # Now it is the turn of the other appliances.
            time.sleep(len(FLEET) * PAUSE_SECONDS)
        # The ledger measures the jobs' hours once, so the samples come first.
        while agent.buffered_points > DELIVERED_POINTS:
            time.sleep(PAUSE_SECONDS)
        with self._history_lock:
            email = USERS_OF_TENANTS[self._member.tenant]
            add_past(self._member.simulation, identity, email, planned=past)
        marker.touch()

    def _enroll(self) -> Identity:
        tokens = json.loads(self._tokens_path.read_text(encoding="utf-8"))
        self._home.mkdir(parents=True, exist_ok=True)
        return enroll(
            portal_url=self._portal_url,
            token=tokens[self._member.tenant],
            name=self._member.name,
            inventory=simulated_inventory(self._member.simulation, executors=["simulated"]),
            data_dir=self._home,
            site=self._member.site,
            labels=self._member.labels,
            tls=TLSContexts(TLSFiles(also_trusted=portal_authority_files(self._home))),
        )
