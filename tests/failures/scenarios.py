"""What fails: each scenario is a function that breaks something, waits, and lets it come back.

    @scenario("nginx is killed and starts again.", users="Nobody gets an answer meanwhile.")
    def kill_nginx(site: Site) -> Iterator[None]:
        site.processes["nginx"].kill_group()
        yield                               # for the scenario's seconds, under load
        site.processes["nginx"].launch()    # the time to recover begins here

What the function yields from is the fault; what follows ends it. `python -m tests.failures --only
kill-nginx` runs it.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from cli.database import open_database
from collector.certificates import METADATA_NAME, CertificateMetadata
from core.atomic_files import replace_file
from core.clock import NS_PER_SECOND, to_ns, utc_now
from core.leases import SCHEDULER_LEASE, Lease
from tests.failures.line import Quality
from tests.failures.site import Site
from tests.fixtures.polling import eventually

OUTAGE_SECONDS = 60.0
# systemd restarts a service after a second or two.
RESTART_SECONDS = 2.0
# Of the Debian package faketime; measured durations stay as they are.
FAKE_CLOCK = {
    "LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "FAKETIME_NO_CACHE": "1",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
}
Fault = Callable[[Site], Iterator[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A fault, and what users are promised meanwhile.

    Attributes:
        name: for `--only`.
        fault: breaks something, yields, and mends it.
        text: what happens, a sentence.
        users: what users see, a sentence.
        seconds: how long the fault lasts.
    """

    name: str
    fault: Fault
    text: str
    users: str
    seconds: float


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    text: str, *, users: str, seconds: float = RESTART_SECONDS
) -> Callable[[Fault], Fault]:
    """Add a fault to the table, under the name of its function."""

    def add(fault: Fault) -> Fault:
        name = fault.__name__.replace("_", "-")
        SCENARIOS[name] = Scenario(name=name, fault=fault, text=text, users=users, seconds=seconds)
        return fault

    return add


@scenario("A `vedette portal` is killed.", users="Requests that it was answering fail once.")
def kill_portal(site: Site) -> Iterator[None]:
    site.processes["portal-1"].kill()
    yield
    site.processes["portal-1"].launch()


@scenario("A `vedette access` is killed.", users="Nothing; open terminals through it end.")
def kill_access(site: Site) -> Iterator[None]:
    site.processes["access-1"].kill()
    yield
    site.processes["access-1"].launch()


@scenario(
    "The scheduler with the lease is killed.",
    users="Jobs start and alerts arrive when the other one takes over.",
)
def kill_scheduler(site: Site) -> Iterator[None]:
    name = active_scheduler(site)
    site.processes[name].kill()
    yield
    site.processes[name].launch()


@scenario("All agents are killed.", users="Running jobs go on; the appliances are silent.")
def kill_agents(site: Site) -> Iterator[None]:
    for process in site.named("agent"):
        process.kill()
    yield
    for process in site.named("agent"):
        process.launch()


@scenario(
    "MariaDB is away.", users="Every request is answered 503 with Retry-After.",
    seconds=OUTAGE_SECONDS,
)  # fmt: skip
def mariadb_away(site: Site) -> Iterator[None]:
    yield from _stopped(site, "mariadb")


@scenario(
    "VictoriaMetrics is away.", users="Charts answer 503; jobs run and pages work.",
    seconds=OUTAGE_SECONDS,
)  # fmt: skip
def victoriametrics_away(site: Site) -> Iterator[None]:
    yield from _stopped(site, "victoriametrics")


@scenario("Redis is away.", users="Nothing.", seconds=OUTAGE_SECONDS)
def redis_away(site: Site) -> Iterator[None]:
    yield from _stopped(site, "redis")


@scenario("Redis hangs (SIGSTOP), as if its host had vanished.", users="Nothing.", seconds=30.0)
def redis_hangs(site: Site) -> Iterator[None]:
    pid = site.processes["redis"].pid
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


@scenario("nginx is away.", users="Nobody reaches the portal; jobs run.", seconds=OUTAGE_SECONDS)
def nginx_away(site: Site) -> Iterator[None]:
    yield from _stopped(site, "nginx")


@scenario(
    "The Docker engine of the appliances is away.", users="Jobs wait; running ones go on.",
    seconds=OUTAGE_SECONDS,
)  # fmt: skip
def docker_away(site: Site) -> Iterator[None]:
    yield from _stopped(site, "dockerd")


@scenario("VictoriaMetrics is killed.", users="Charts answer 503 for a moment.")
def kill_victoriametrics(site: Site) -> Iterator[None]:
    site.processes["victoriametrics"].kill()
    yield
    site.processes["victoriametrics"].launch()


@scenario(
    "MariaDB and VictoriaMetrics are killed at once.",
    users="Every request is answered 503 with Retry-After.", seconds=10.0,
)  # fmt: skip
def kill_stores(site: Site) -> Iterator[None]:
    stores = site.named("mariadb", "victoriametrics")
    for process in stores:
        process.kill()
    yield
    for process in stores:
        process.launch()


@scenario(
    "The disk of the servers is full.",
    users="Changes are answered 503 once the database can't grow.",
    seconds=30.0,
)
def server_disk_full(site: Site) -> Iterator[None]:
    yield from _full(site.server_disk)


@scenario(
    "The disk of the appliances is full.", users="Nothing, while the portal answers.", seconds=30.0
)
def agent_disk_full(site: Site) -> Iterator[None]:
    yield from _full(site.agent_disk)


@scenario(
    "The line between appliances and portal is cut.",
    users="Appliances become stale; running jobs go on, new ones wait.", seconds=OUTAGE_SECONDS,
)  # fmt: skip
def network_cut(site: Site) -> Iterator[None]:
    site.line.cut()
    yield
    site.line.mend()


@scenario(
    "The line is slow: 300 ms each way, 16 KB a second.", users="Samples and jobs are late.",
    seconds=30.0,
)  # fmt: skip
def network_slow(site: Site) -> Iterator[None]:
    with site.line.of_quality(Quality(delay_seconds=0.3, bytes_per_second=16_000)):
        yield


@scenario(
    "The line is lossy: every 20th piece of data breaks its connection.",
    users="Samples and jobs are late.", seconds=30.0,
)  # fmt: skip
def network_lossy(site: Site) -> Iterator[None]:
    with site.line.of_quality(Quality(break_ratio=0.05)):
        yield


@scenario(
    "Certificates of agents are valid for 45 s, and renewed again and again for a minute.",
    users="Nothing.",
)
def certificates_expire(site: Site) -> Iterator[None]:
    _set_lifetime(site, "45")
    _renew_at_start(site)
    time.sleep(OUTAGE_SECONDS)
    _set_lifetime(site, "604800")
    yield


@scenario(
    "The scheduler with the lease hangs (SIGSTOP), and wakes up when the other one has the lease.",
    users="Jobs start and alerts arrive when the other one takes over.", seconds=30.0,
)  # fmt: skip
def scheduler_hangs(site: Site) -> Iterator[None]:
    pid = site.processes[active_scheduler(site)].pid
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


@scenario(
    "The power fails: everything is killed at once.",
    users="Nobody reaches the portal.",
    seconds=5.0,
)
def power_loss(site: Site) -> Iterator[None]:
    for name, process in site.processes.items():
        process.kill() if name.startswith("agent") else process.kill_group()
    yield
    for process in site.processes.values():
        process.launch()


@scenario(
    "Every process of the portal is restarted, one after the other, as for an upgrade.",
    users="Requests that a process was answering may fail once.", seconds=0.0,
)  # fmt: skip
def rolling_restart(site: Site) -> Iterator[None]:
    for name in site.processes:
        if name.startswith(("portal", "access", "scheduler")):
            site.restart_with(name, {})
    yield


@scenario(
    "Clocks jump an hour ahead, and back: of a scheduler and of the appliances with jobs.",
    users="Samples of these appliances have wrong times; alerts wait for the right ones.",
    seconds=20.0,
)
def clocks_jump(site: Site) -> Iterator[None]:
    ahead = [name for name in site.processes if name.startswith(("scheduler", "agent"))]
    ahead.remove("agent-fleet")
    clocks = {name: site.folder / f"clock-{name}" for name in ahead}
    for name, clock in clocks.items():
        _set(clock, "+0")
        site.restart_with(name, FAKE_CLOCK | {"FAKETIME_TIMESTAMP_FILE": str(clock)})
    clocks.pop(active_scheduler(site))
    for clock in clocks.values():
        _set(clock, "+3600")
    yield
    for clock in clocks.values():
        _set(clock, "+0")


def active_scheduler(site: Site) -> str:
    """Return the name of the scheduler that has the lease, once one has it."""
    return eventually(partial(_lease_holder, site), what="a scheduler with the lease")


def _lease_holder(site: Site) -> str:
    with open_database(site.deployment.settings) as (_engine, sessions), sessions() as session:
        lease = session.get_one(Lease, SCHEDULER_LEASE)
    pid = int(lease.holder.rpartition(":")[2])
    names = [name for name, process in site.processes.items() if process.pid == pid]
    return names[0] if names and lease.expires_at > utc_now() else ""


def _set(clock: Path, offset_seconds: str) -> None:
    """Set the clock of a process; it must never find half a file."""
    replace_file(clock, f"{offset_seconds}\n".encode(), is_durable=False)


def _stopped(site: Site, name: str) -> Iterator[None]:
    site.processes[name].kill(signal.SIGTERM)
    yield
    site.processes[name].launch()


def _full(disk: Path) -> Iterator[None]:
    other = disk / "other"
    with other.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    yield
    other.unlink()


def _set_lifetime(site: Site, seconds: str) -> None:
    for name in ("access-1", "access-2"):
        site.restart_with(name, {"VEDETTE_CERTIFICATE_LIFETIME_SECONDS": seconds})


def _renew_at_start(site: Site) -> None:
    """Restart the agents with certificates that they renew at once."""
    later_ns = to_ns(utc_now()) + 3_600 * NS_PER_SECOND
    for process in site.named("agent"):
        process.kill(signal.SIGTERM)
    for home in site.agents.homes.values():
        path = home / METADATA_NAME
        metadata = msgspec.json.decode(path.read_bytes(), type=CertificateMetadata)
        path.write_bytes(
            msgspec.json.encode(msgspec.structs.replace(metadata, received_at_ns=later_ns))
        )
    for process in site.named("agent"):
        process.launch()
