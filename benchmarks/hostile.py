"""What tenant A loses while tenant B and an anonymous client attack.

A writes and reads in turns alone and beside `benchmarks.shared.hostile_tenant`: lines with new
fields and measurements, empty gzip members, heads and bodies of requests that never end, pages that
are requested and never read, and connections that are closed for too many requests. A user of B
submits and stops arrays, applies files of rules and more (`benchmarks.shared.hostile_inputs`). B
comes from another address of the loopback network, and its process has the lowest priority (nice
19): an attacker has a machine of its own, and must not take the server's processor. The server's
roll-ups run meanwhile. Figures are medians of the rounds. The bounds: no write is lost, A's p99 at
most twice its own alone, memory within the bound that docs/operating.md states, pages within a
second.

With `--set processes=3`, portal, agent API and scheduler are processes of their own, with MariaDB
and VictoriaMetrics.
"""

import asyncio
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import click
import requests

from benchmarks.shared.document import (
    BenchmarkError,
    Outcome,
    Promise,
    medians,
    milliseconds_of,
    ratio,
)
from benchmarks.shared.fleet import GPUS
from benchmarks.shared.load import Driver, Tally, request_of
from benchmarks.shared.meter import Usage, server_figures, watched
from benchmarks.shared.servers import enrolled, mariadb, python, victoriametrics
from cli.bootstrap import DEMO_PASSWORD
from tests.deployment import ALICE, CHARLIE, Deployment, api_token, make_deployment, serving
from tests.servers import free_port, running

STORE_MEMORY_MIB = 512
# Stated in docs/operating.md: what the store may use, and this much for everything else.
MOST_MEMORY_MIB = STORE_MEMORY_MIB + 768
MOST_PAGE_MILLISECONDS = 1_000.0
MOST_TIMES_ALONE = 2.0
PER_SECOND = {"writes": 20.0, "reads": 4.0, "pages": 2.0, "changes": 2.0}
_CSRF = re.compile(r'name="csrf-token" content="([^"]+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The duration of each part, and the shape of the server: one process or three."""

    warm_up_seconds: int = 30
    seconds: int = 100
    rounds: int = 3
    processes: int = 1


FULL = Plan()
QUICK = Plan(warm_up_seconds=2, seconds=8, rounds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """What is attacked: its processes, and where they serve."""

    deployment: Deployment
    pids: Sequence[int]
    agent_port: int


class Visitor:
    """Tenant A: an agent that writes, and Alice who reads, changes and views pages."""

    def __init__(self, servers: Servers, secret: str) -> None:
        deployment = servers.deployment
        self._port, self._agent_port = deployment.port, servers.agent_port
        self._agent = f"Authorization: Bearer {secret}\r\n"
        self._alice = signed_in(deployment.url)
        self.written = 0

    def load(self, seconds: float) -> dict[str, Tally]:
        """Send requests at a steady rate; each counts from the instant at which it was due."""
        return asyncio.run(self._load(seconds))

    async def _load(self, seconds: float) -> dict[str, Tally]:
        kinds = {
            "writes": self._writes(),
            "reads": self._reads("avg", 3_600.0),
            "pages": cycle([request_of("GET", "/appliances", headers=self._alice)]),
            "changes": self._changes(),
        }
        drivers = [
            Driver(
                islice(kinds[kind], int(rate * seconds)),
                port=self._agent_port if kind == "writes" else self._port,
                connections=1,
                per_second=rate,
            )
            for kind, rate in PER_SECOND.items()
        ]
        tallies = await asyncio.gather(*(driver.run() for driver in drivers))
        self.written += len(tallies[0].delays)
        return dict(zip(PER_SECOND, tallies, strict=True))

    def stored(self, url: str) -> int:
        """Return how many writes the store has."""
        headers = dict(line.split(": ", 1) for line in self._alice.splitlines())
        body = _rule("count", 86_400.0)
        reply = requests.post(f"{url}/api/v1/rules/preview", body, headers=headers, timeout=120)
        return int(sum(group["value"] or 0 for group in reply.json()["items"]) / GPUS)

    def _writes(self) -> Iterator[bytes]:
        for number in count(self.written):
            time_ns, watts = time.time_ns(), f"{number % 700}.5"
            lines = "\n".join(
                f"gpu,gpu={n} power_watts={watts},utilization_percent=50 {time_ns}"
                for n in range(GPUS)
            )
            yield request_of("POST", "/api/v2/write", headers=self._agent, body=lines.encode())

    def _reads(self, aggregate: str, window_seconds: float) -> Iterator[bytes]:
        body = _rule(aggregate, window_seconds)
        return cycle([request_of("POST", "/api/v1/rules/preview", headers=self._alice, body=body)])

    def _changes(self) -> Iterator[bytes]:
        """Change what is stored in the database, with an entry in the audit log."""
        for zone in cycle(("Europe/Oslo", "Asia/Kolkata")):
            body = json.dumps({"time_zone": zone}).encode()
            yield request_of("PATCH", "/api/v1/me", headers=self._alice, body=body)


def _rule(aggregate: str, window_seconds: float) -> bytes:
    rule = {
        "name": "power",
        "measurement": "gpu",
        "field": "power_watts",
        "aggregate": aggregate,
        "window_seconds": window_seconds,
        "critical_threshold": 1e9,
    }
    return json.dumps(rule).encode()


def measure(plan: Plan, folder: Path) -> Outcome:
    """Run both parts."""
    shapes = {1: _one_process, 3: _a_process_each}
    if plan.processes not in shapes:
        raise BenchmarkError("processes is 1 or 3.")
    start = shapes[plan.processes]
    with start(folder) as servers:
        results = _attacked(plan, servers, log_path=folder / "hostile.log")
    settings = {f"{kind}_per_second": rate for kind, rate in PER_SECOND.items()}
    return Outcome(results, promises(results), {**settings, "store_memory_mib": STORE_MEMORY_MIB})


def _attacked(plan: Plan, servers: Servers, *, log_path: Path) -> dict[str, Any]:
    deployment = servers.deployment
    acme, globex = (enrolled(deployment, tenant) for tenant in ("acme", "globex"))
    visitor = Visitor(servers, acme.secret)
    token = api_token(deployment, CHARLIE)
    ports = (str(deployment.port), str(servers.agent_port))
    attack = python("benchmarks.shared.hostile_tenant", *ports, globex.secret, token)
    visitor.load(plan.warm_up_seconds)
    alone, beside = Part(servers.pids), Part(servers.pids)
    for _ in range(plan.rounds):
        alone.load(visitor, plan.seconds)
        with running(attack, log_path=log_path):
            time.sleep(plan.warm_up_seconds)
            beside.load(visitor, plan.seconds)
    click.echo(log_path.read_text(encoding="utf-8"), err=True)
    lost = visitor.written - visitor.stored(deployment.url)
    return {"alone": alone.figures(), "beside": beside.figures(), "lost_writes": lost}


@contextmanager
def _one_process(folder: Path) -> Iterator[Servers]:
    """Run `vedette server`, with SQLite and DuckDB."""
    deployment = make_deployment(folder / "server")
    environ = {"VEDETTE_STORE_MEMORY_MIB": str(STORE_MEMORY_MIB)}
    with serving(deployment, environ=environ) as process:
        yield Servers(deployment=deployment, pids=[process.pid], agent_port=deployment.port)


@contextmanager
def _a_process_each(folder: Path) -> Iterator[Servers]:
    """Run portal, agent API and scheduler as processes of their own, with shared servers."""
    with mariadb(folder / "mariadb") as databases, victoriametrics(folder / "samples") as samples:
        portal = make_deployment(folder / "server", database_url=databases.new_database())
        environ = {"TIMESERIES_URL": samples.url.replace("http", "victoriametrics", 1)}
        access, scheduler = (replace(portal, port=free_port()) for _ in range(2))
        with (
            serving(portal, environ=environ, part="portal") as portal_process,
            serving(access, environ=environ, part="access") as access_process,
            serving(scheduler, environ=environ, part="scheduler") as scheduler_process,
        ):
            processes = (portal_process, access_process, scheduler_process)
            pids = [process.pid for process in processes]
            yield Servers(deployment=portal, pids=pids, agent_port=access.port)


class Part:
    """All rounds alone, or all rounds beside B: A's delays, and what the server uses meanwhile."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._tallies: list[dict[str, Tally]] = []
        self._usages: list[list[Usage]] = []

    def load(self, visitor: Visitor, seconds: float) -> None:
        """Let A work for a round."""
        with watched(*self._pids) as readings:
            self._tallies.append(visitor.load(seconds))
        self._usages.append(readings)

    def figures(self) -> dict[str, Any]:
        """Return delays, CPU and memory."""
        usages = [server_figures(readings) for readings in self._usages]
        memory = "server_most_resident_mebibytes"
        return {
            **{kind: _delays([tallies[kind] for tallies in self._tallies]) for kind in PER_SECOND},
            **medians(usages),
            memory: max(usage[memory] for usage in usages),
        }


def _delays(rounds: list[Tally]) -> dict[str, Any]:
    """Return counts, the longest delay, and the medians of the rounds' percentiles."""
    figures = [milliseconds_of(tally.delays) for tally in rounds]
    return {
        "requests": sum(sum(tally.statuses.values()) for tally in rounds),
        "failed": sum(tally.refused for tally in rounds),
        "reasons": [reason for tally in rounds for reason in tally.reasons],
        **medians(figures),
        "milliseconds_max": max(figure["milliseconds_max"] or 0.0 for figure in figures),
    }


def promises(results: dict[str, Any]) -> list[Promise]:
    """Return what is promised to A, with what was measured."""
    alone, beside = results["alone"], results["beside"]
    failed = sum(part[kind]["failed"] for part in (alone, beside) for kind in PER_SECOND)
    return [
        Promise("writes of A lost", results["lost_writes"], 0.0, "posts"),
        Promise("requests of A refused", failed, 0.0, "requests"),
        *(
            Promise(
                f"p99 of A's {kind} beside B, over alone",
                ratio(beside[kind]["milliseconds_p99"], alone[kind]["milliseconds_p99"]),
                MOST_TIMES_ALONE,
                "times",
            )
            for kind in ("writes", "reads", "changes")
        ),
        Promise(
            "slowest page of A beside B",
            beside["pages"]["milliseconds_max"],
            MOST_PAGE_MILLISECONDS,
            "milliseconds",
        ),
        Promise(
            "the server's memory beside B",
            beside["server_most_resident_mebibytes"],
            float(MOST_MEMORY_MIB),
            "MiB",
        ),
    ]


def signed_in(url: str) -> str:
    """Return the headers of Alice's browser, once she has signed in."""
    with requests.Session() as session:
        form = {"csrf_token": _csrf_token(session, f"{url}/login"), "email": ALICE}
        form["password"] = DEMO_PASSWORD
        session.post(f"{url}/login", data=form, timeout=120).raise_for_status()
        token = _csrf_token(session, f"{url}/settings")
        cookies = "; ".join(f"{name}={value}" for name, value in session.cookies.items())
    return f"Cookie: {cookies}\r\nX-CSRFToken: {token}\r\nContent-Type: application/json\r\n"


def _csrf_token(session: requests.Session, url: str) -> str:
    page = session.get(url, timeout=120)
    match = _CSRF.search(page.text)
    if match is None:
        raise BenchmarkError(f"{url} answered {page.status_code} without a CSRF token.")
    return match[1]
