"""Measure what tenant A loses while tenant B and an anonymous client attack.

    python -m benchmarks.hostile [--quick] [--output FILE]

A writes and reads in turns alone and beside `benchmarks.hostile_tenant`: lines with new fields and
measurements, empty gzip members, heads and bodies of requests that never end, pages that are asked
for and never read, and connections that are closed for too many requests. A user of B submits and
stops arrays, applies files of rules and more (`benchmarks.hostile_inputs`). B comes from another
address of the loopback network, and its process has the lowest priority (nice 19): an attacker has
a machine of its own, and must not take the server's processor. The server's roll-ups run meanwhile.
Figures are medians of the rounds. The bounds: no write is lost, A's p99 at most twice its own
alone, memory within the bound that docs/operating.md states, pages within a second.
"""

import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import requests
from sqlalchemy import select

from benchmarks.figures import (
    Promise,
    document,
    median,
    percentile,
    ratio,
    rounded,
    write_document,
)
from benchmarks.gateway import Gateway, make_gateway, serving
from benchmarks.meter import read_usage
from benchmarks.processes import BenchmarkError, python, running
from cli.bootstrap import DEMO_PASSWORD, create_token
from cli.database import open_database
from core.clock import utc_now
from core.db import transaction
from protocol.inventory import Inventory
from tenants.enrollment import enroll_appliance
from tenants.models import User
from tenants.scope import Scope
from tenants.users.tokens import create_api_token
from timeseries.store import Aggregate

MEBIBYTE = 2**20
STORE_MEMORY_MIB = 512
MOST_MEMORY_MIB = STORE_MEMORY_MIB + 768
"""Stated in docs/operating.md: what the store may use, and this much for everything else."""
MOST_PAGE_MILLISECONDS = 1_000.0
MOST_TIMES_ALONE = 2.0
WRITES_PER_SECOND, READS_PER_SECOND, PAGES_PER_SECOND = 20.0, 4.0, 2.0
CHANGES_PER_SECOND = 2.0
KINDS = ("writes", "reads", "pages", "changes")
GPUS = 8
REQUEST_SECONDS = 120
CHARLIE = "charlie@globex.example"
_CSRF = re.compile(r'name="csrf-token" content="([^"]+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The duration of each part."""

    warm_up_seconds: int = 30
    seconds: int = 100
    rounds: int = 3


FULL = Plan()
QUICK = Plan(warm_up_seconds=2, seconds=8, rounds=1)


@dataclass(slots=True)
class Tally:
    """The delays of one kind of request in each round, and what was answered with an error."""

    rounds: list[list[float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, object]:
        """Return counts, the longest delay, and the medians of the rounds' percentiles."""
        return {
            "requests": sum(map(len, self.rounds)) + len(self.failures),
            "failed": len(self.failures),
            "reasons": sorted(set(self.failures))[:5],
            "milliseconds_p50": median(percentile(durations, 50) for durations in self.rounds),
            "milliseconds_p99": median(percentile(durations, 99) for durations in self.rounds),
            "milliseconds_max": max(percentile(durations, 100) or 0.0 for durations in self.rounds),
        }


class Visitor:
    """Tenant A: an agent that writes, and Alice who reads and looks at pages."""

    def __init__(self, url: str, secret: str) -> None:
        self._url = url
        self._secret = secret
        self._number = self._changes = 0
        self.written = 0
        self._alice = _signed_in(url)

    def load(self, seconds: float, tallies: Mapping[str, Tally]) -> None:
        """Send requests at a steady rate; each counts from the instant at which it was due."""
        kinds: dict[str, tuple[float, Callable[[requests.Session], requests.Response]]] = {
            "writes": (WRITES_PER_SECOND, self._write),
            "reads": (READS_PER_SECOND, self._read),
            "pages": (PAGES_PER_SECOND, self._page),
            "changes": (CHANGES_PER_SECOND, self._change),
        }
        end = time.monotonic() + seconds
        threads = [
            threading.Thread(target=_repeat, args=(send, rate, end, tallies[name], self._session()))
            for name, (rate, send) in kinds.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def stored(self) -> int:
        """Return how many writes the store has."""
        response = self._preview(self._session(), Aggregate.COUNT, window_seconds=86_400.0)
        return int(sum(group["value"] or 0 for group in response.json()["items"]) / GPUS)

    def _session(self) -> requests.Session:
        session = requests.Session()
        session.cookies.update(self._alice.cookies)
        session.headers.update(self._alice.headers)
        return session

    def _write(self, session: requests.Session) -> requests.Response:
        self._number += 1
        time_ns = time.time_ns()
        lines = "\n".join(
            f"gpu,gpu={n} power_watts={self._number % 700}.5,utilization_percent=50 {time_ns}"
            for n in range(GPUS)
        )
        response = session.post(
            f"{self._url}/api/v2/write",
            data=lines,
            headers={"Authorization": f"Bearer {self._secret}"},
            timeout=REQUEST_SECONDS,
        )
        self.written += response.ok
        return response

    def _read(self, session: requests.Session) -> requests.Response:
        return self._preview(session, Aggregate.AVG, window_seconds=3_600.0)

    def _preview(
        self, session: requests.Session, aggregate: Aggregate, *, window_seconds: float
    ) -> requests.Response:
        rule = {
            "name": "power",
            "measurement": "gpu",
            "field": "power_watts",
            "aggregate": aggregate.value,
            "window_seconds": window_seconds,
            "critical_threshold": 1e9,
        }
        return session.post(f"{self._url}/api/v1/rules/preview", json=rule, timeout=REQUEST_SECONDS)

    def _change(self, session: requests.Session) -> requests.Response:
        """Change what is stored in the database, with an entry in the audit log."""
        self._changes += 1
        zone = ("Europe/Oslo", "Asia/Kolkata")[self._changes % 2]
        body = {"time_zone": zone}
        return session.patch(f"{self._url}/api/v1/me", json=body, timeout=REQUEST_SECONDS)

    def _page(self, session: requests.Session) -> requests.Response:
        return session.get(f"{self._url}/appliances", timeout=REQUEST_SECONDS)


def measure(plan: Plan) -> dict[str, object]:
    """Run both parts; return the document."""
    started_at = utc_now()
    with TemporaryDirectory(prefix="vedette-bench-") as name:
        gateway = make_gateway(Path(name), store_memory_mib=STORE_MEMORY_MIB)
        secrets = {tenant: _enrolled(gateway, tenant) for tenant in ("acme", "globex")}
        secrets["charlie"] = _api_token(gateway)
        with serving(gateway) as pid:
            results = _parts(gateway, pid, secrets, plan)
    return document(
        "hostile",
        started_at=started_at,
        settings={
            "seconds": plan.seconds,
            "rounds": plan.rounds,
            "writes_per_second": WRITES_PER_SECOND,
            "reads_per_second": READS_PER_SECOND,
            "pages_per_second": PAGES_PER_SECOND,
            "changes_per_second": CHANGES_PER_SECOND,
            "store_memory_mib": STORE_MEMORY_MIB,
        },
        results=results,
        promises=_promises(results),
    )


def _parts(gateway: Gateway, pid: int, secrets: Mapping[str, str], plan: Plan) -> dict[str, object]:
    visitor = Visitor(gateway.url, secrets["acme"])
    Part(pid).load(visitor, plan.warm_up_seconds)
    alone, beside = Part(pid), Part(pid)
    argv = python("benchmarks.hostile_tenant", gateway.url, secrets["globex"], secrets["charlie"])
    log_path = gateway.data_dir / "hostile.log"
    for _ in range(plan.rounds):
        alone.load(visitor, plan.seconds)
        with running(argv, log_path=log_path):
            time.sleep(plan.warm_up_seconds)
            beside.load(visitor, plan.seconds)
    click.echo(log_path.read_text(encoding="utf-8"), err=True)
    return {
        "alone": alone.figures(),
        "beside": beside.figures(),
        "lost_writes": visitor.written - visitor.stored(),
    }


class Part:
    """All rounds alone, or all rounds beside B: A's delays, and what the server uses meanwhile."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._tallies = {name: Tally() for name in KINDS}
        self._cpu_ns = self._most_bytes = 0
        self._seconds = 0.0

    def load(self, visitor: Visitor, seconds: float) -> None:
        """Let A work for a round."""
        first, done = read_usage(self._pid), threading.Event()
        watch = threading.Thread(target=self._watch, args=(done,))
        watch.start()
        visitor.load(seconds, self._tallies)
        done.set()
        watch.join()
        last = read_usage(self._pid)
        self._cpu_ns += last.cpu_ns - first.cpu_ns
        self._seconds += last.at_seconds - first.at_seconds

    def figures(self) -> dict[str, object]:
        """Return delays, CPU and memory."""
        return {name: tally.figures() for name, tally in self._tallies.items()} | {
            "server_cpu_percent_of_a_core": rounded(self._cpu_ns / 1e7 / self._seconds),
            "server_most_resident_mebibytes": rounded(self._most_bytes / MEBIBYTE),
        }

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(0.5):
            self._most_bytes = max(self._most_bytes, read_usage(self._pid).resident_bytes)


def _repeat(
    send: Callable[[requests.Session], requests.Response],
    rate: float,
    end: float,
    tally: Tally,
    session: requests.Session,
) -> None:
    due, delays = time.monotonic(), list[float]()
    tally.rounds.append(delays)
    while due < end:
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            response = send(session)
        except requests.RequestException as error:
            tally.failures.append(type(error).__name__)
        else:
            if response.ok:
                delays.append(1_000 * (time.monotonic() - due))
            else:
                tally.failures.append(f"{response.status_code} {response.text[:100]}")
        due += 1 / rate


def _promises(results: Mapping[str, object]) -> list[Promise]:
    alone, beside = results["alone"], results["beside"]
    lost = results["lost_writes"]
    if not isinstance(alone, dict) or not isinstance(beside, dict) or not isinstance(lost, int):
        raise TypeError(results)
    failed = sum(part[kind]["failed"] for part in (alone, beside) for kind in KINDS)
    return [
        Promise(name="writes of A lost", bound=0.0, measured=float(lost), unit="posts"),
        Promise(name="requests of A refused", bound=0.0, measured=float(failed), unit="requests"),
        *(
            Promise(
                name=f"p99 of A's {kind} beside B, over alone",
                bound=MOST_TIMES_ALONE,
                measured=ratio(beside[kind]["milliseconds_p99"], alone[kind]["milliseconds_p99"]),
                unit="times",
            )
            for kind in ("writes", "reads", "changes")
        ),
        Promise(
            name="slowest page of A beside B",
            bound=MOST_PAGE_MILLISECONDS,
            measured=beside["pages"]["milliseconds_max"],
            unit="milliseconds",
        ),
        Promise(
            name="the server's memory beside B",
            bound=float(MOST_MEMORY_MIB),
            measured=beside["server_most_resident_mebibytes"],
            unit="MiB",
        ),
    ]


def _signed_in(url: str) -> requests.Session:
    session = requests.Session()
    token = _csrf_token(session, f"{url}/login")
    form = {"csrf_token": token, "email": "alice@acme.example", "password": DEMO_PASSWORD}
    session.post(f"{url}/login", data=form, timeout=REQUEST_SECONDS).raise_for_status()
    session.headers["X-CSRFToken"] = _csrf_token(session, f"{url}/settings")
    return session


def _csrf_token(session: requests.Session, url: str) -> str:
    page = session.get(url, timeout=REQUEST_SECONDS)
    match = _CSRF.search(page.text)
    if match is None:
        raise BenchmarkError(f"{url} answered {page.status_code} without a CSRF token.")
    return match[1]


def _enrolled(gateway: Gateway, tenant: str) -> str:
    """Return the agent token of a new appliance of a tenant."""
    with open_database(gateway.settings) as (_engine, sessions):
        secret = create_token(sessions, tenant, uses=1, now=utc_now())
        with transaction(sessions) as session:
            _appliance, agent_token = enroll_appliance(
                session,
                secret=secret,
                name=f"{tenant}-01",
                inventory=Inventory(
                    hostname="gpu-01", cpu_count=8, memory_bytes=2**36, executors=["simulated"]
                ),
                now=utc_now(),
            )
    return agent_token


def _api_token(gateway: Gateway) -> str:
    """Return an API token of Charlie, a user of B."""
    with open_database(gateway.settings) as (_engine, sessions), transaction(sessions) as session:
        charlie = session.scalars(select(User).where(User.email == CHARLIE)).unique().one()
        return create_api_token(session, Scope.of(charlie), name="bulk", now=utc_now())[1]


@click.command(help=sys.modules[__name__].__doc__)
@click.option("--quick", is_flag=True, help="A few seconds of each part.")
@click.option("--output", type=click.Path(path_type=Path))
def main(*, quick: bool, output: Path | None) -> None:
    """Measure and print the document."""
    write_document(measure(QUICK if quick else FULL), output)


if __name__ == "__main__":
    main()
