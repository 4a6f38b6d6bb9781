"""An hour without the portal at a relay: is all delivered, in order, beside live samples?

1. Before: each appliance posts its tick every 10 s, at the real rate.
2. The portal is killed. The ticks of the outage are posted as fast as the relay acknowledges them;
   in the middle the relay is killed with -9, and starts from what is on its disk.
3. The portal is back: live ticks come at the real rate until the spool is empty.
"""

import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import click
import uvloop

from benchmarks.shared.bodies import INTERVAL_SECONDS
from benchmarks.shared.document import BenchmarkError, Outcome, Promise, milliseconds_of, rounded
from benchmarks.shared.fleet import VALUES_OF_A_TICK, Fleet
from benchmarks.shared.load import Driver, Tally, request_of
from core.clock import NS_PER_SECOND, to_ns, utc_now
from tests.fixtures import relay_center
from tests.fixtures.polling import eventually
from tests.fixtures.relays import RelayProcess
from tests.servers import free_port, running

ROOT = Path(__file__).parents[1]
CONNECTIONS = 32
WRITE_PATH = "/api/v2/write?precision=ns"
MOST_LIVE_MILLISECONDS = 500.0
DRAIN_SECONDS = 1_800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The fleet, the outage that is compressed, and how fast the portal stores line protocol."""

    appliances: int = 1_000
    outage_seconds: int = 3_600
    live_seconds: float = 30.0
    bytes_per_second: float = 20e6


FULL = Plan()
QUICK = Plan(appliances=50, outage_seconds=600, live_seconds=4.0)


class Site:
    """The appliances of a plan: their posts are numbered."""

    def __init__(self, plan: Plan, relay: RelayProcess) -> None:
        self.sent: defaultdict[int, int] = defaultdict(int)
        self.plain_bytes = self._posts = 0
        self._plan = plan
        self._relay = relay
        self._fleet = Fleet()
        self._start_ns = to_ns(utc_now()) - plan.outage_seconds * NS_PER_SECOND

    def at_once(self, ticks: int) -> Tally:
        """Post ticks as fast as they are acknowledged."""
        return self._posted(ticks * self._plan.appliances, per_second=None)

    def live(self, seconds: float) -> Tally:
        """Post at the real rate."""
        per_second = self._plan.appliances / INTERVAL_SECONDS
        return self._posted(max(20, int(seconds * per_second)), per_second=per_second)

    def _posted(self, count: int, *, per_second: float | None) -> Tally:
        driver = Driver(
            self._requests(count),
            port=self._relay.port,
            # Each appliance waits for its acknowledgement: posts of it never overtake each other.
            connections=min(CONNECTIONS, self._plan.appliances),
            per_second=per_second,
        )
        tally = uvloop.run(driver.run())
        if tally.refused:
            raise BenchmarkError(f"{tally.refused} posts were refused: {tally.reasons}")
        return tally

    def _requests(self, count: int) -> Iterator[bytes]:
        for _ in range(count):
            appliance = self._posts % self._plan.appliances
            self._posts += 1
            number = self.sent[appliance]
            self.sent[appliance] += 1
            time_ns = self._start_ns + number * INTERVAL_SECONDS * NS_PER_SECOND
            lines = self._fleet.lines(appliance, tick=number, time_ns=time_ns)
            body = "\n".join([f"{number}", *lines]).encode()
            self.plain_bytes += len(body)
            headers = f"Authorization: Bearer vda_dgx-{appliance}\r\n"
            yield request_of("POST", WRITE_PATH, headers=headers, body=body)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Play before, outage and delivery."""
    port, journal = free_port(), folder / "journal"
    relay = RelayProcess(f"http://127.0.0.1:{port}", folder)
    site = Site(plan, relay)
    ticks = plan.outage_seconds // INTERVAL_SECONDS
    click.echo("posting before the outage", err=True)
    with ExitStack() as stack:
        with _portal(plan, port, folder):
            eventually(lambda: _listens(port))
            process = stack.enter_context(relay.serving())
            before = site.live(plan.live_seconds)
        click.echo(f"posting {ticks * plan.appliances} ticks of an outage", err=True)
        plain_bytes, first = site.plain_bytes, dict(site.sent)
        spooling = [site.at_once(ticks // 2)]
        process.kill()
        process.wait()
    began = time.monotonic()
    with relay.serving():
        restart_seconds = time.monotonic() - began
        spooling.append(site.at_once(ticks - ticks // 2))
        disk_bytes = relay.metrics()["spool_disk_bytes"]
        plain_bytes = site.plain_bytes - plain_bytes
        spooled = {own: range(first.get(own, 0), count) for own, count in site.sent.items()}
        click.echo("delivering", err=True)
        with _portal(plan, port, folder):
            eventually(lambda: _listens(port))
            began = time.monotonic()
            during = _until_delivered(site, relay)
            drain_seconds = time.monotonic() - began
            after = site.live(plan.live_seconds)
            eventually(lambda: not relay.metrics()["spool_bytes"], within_seconds=60)
    lost, disordered = _compared(journal, site.sent, spooled)
    posts = ticks * plan.appliances
    live = milliseconds_of(during, name="ack_milliseconds")
    results = {
        "outage": {
            "posts": posts,
            "posts_per_second": rounded(posts / sum(tally.seconds for tally in spooling)),
            "plain_mebibytes": rounded(plain_bytes / 2**20),
            "disk_mebibytes": rounded(disk_bytes / 2**20),
            "disk_bytes_per_value": rounded(disk_bytes / (posts * VALUES_OF_A_TICK)),
            "restart_seconds": rounded(restart_seconds),
        },
        "delivery": {
            "seconds": rounded(drain_seconds),
            "posts_per_second": rounded(posts / drain_seconds),
            "plain_mebibytes_per_second": rounded(plain_bytes / 2**20 / drain_seconds),
            "lost_posts": lost,
            "disordered_appliances": disordered,
        },
        "live": {
            "before": milliseconds_of(before.delays, name="ack_milliseconds"),
            "during": live,
            "after": milliseconds_of(after.delays, name="ack_milliseconds"),
        },
    }
    promises = [
        Promise("posts lost by an outage and a kill", lost, 0.0, "posts"),
        Promise("appliances whose posts changed their order", disordered, 0.0, "appliances"),
        Promise(
            "live posts during the delivery, p99",
            live["ack_milliseconds_p99"],
            MOST_LIVE_MILLISECONDS,
            "ms",
        ),
        Promise(
            "delivery of an hour",
            drain_seconds * 3_600 / plan.outage_seconds,
            DRAIN_SECONDS,
            "seconds",
        ),
    ]
    return Outcome(results, promises)


def _portal(plan: Plan, port: int, folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    argv = [
        *(sys.executable, relay_center.__file__, str(port), str(plan.appliances)),
        *(str(plan.bytes_per_second), str(folder / "journal")),
    ]
    environ = {"PYTHONPATH": str(ROOT)}
    return running(argv, log_path=folder / "portal.log", environ=environ)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def _until_delivered(site: Site, relay: RelayProcess) -> list[float]:
    """Return the delays of live posts until the spool is empty."""
    delays: list[float] = []
    while relay.metrics()["spool_bytes"]:
        delays += site.live(1.0).delays
    return delays


def _compared(
    journal: Path, sent: Mapping[int, int], spooled: Mapping[int, range]
) -> tuple[int, int]:
    """Return how many posts never arrived, and of how many appliances spooled ones not in order.

    A post may arrive twice: its first arrival counts.
    """
    arrived: defaultdict[int, dict[int, None]] = defaultdict(dict)
    for line in journal.read_text("ascii").splitlines():
        name, number = line.split()
        arrived[int(name.removeprefix("dgx-"))].setdefault(int(number))
    lost = sum(count - len(arrived[appliance]) for appliance, count in sent.items())
    of_outage = {
        appliance: [number for number in arrived[appliance] if number in numbers]
        for appliance, numbers in spooled.items()
    }
    return lost, sum(numbers != sorted(numbers) for numbers in of_outage.values())
