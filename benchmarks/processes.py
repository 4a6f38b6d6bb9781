"""Server processes beside each other, on MariaDB, VictoriaMetrics and Redis.

    posts    an appliance's 18 lines at a time, to one and to two `vedette access`, and to
             VictoriaMetrics itself, with the CPU time of each process
    polls    long polls of all agents on one and on two `vedette access`; how soon a poll is
             answered after a user has stopped a job at `vedette portal`
    lines    a log line from an agent at one `vedette access` to a follower at `vedette portal`

All share one machine with their drivers. So `computed` figures say what a process would do on a
core of its own: its values a second by its CPU time alone. Without the Debian package
redis-server, processes poll the database.
"""

import asyncio
import itertools
import json
import resource
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import requests
from sqlalchemy import select

from benchmarks import follow
from benchmarks.shared import servers
from benchmarks.shared.bodies import Bodies, Ticks, write_bodies
from benchmarks.shared.document import (
    BenchmarkError,
    Figures,
    Outcome,
    Promise,
    medians,
    milliseconds_of,
    ratio,
    rounded,
)
from benchmarks.shared.filling import running_job
from benchmarks.shared.load import Connection, Posts, post, request_of
from benchmarks.shared.meter import MEBIBYTE, Usage, read_usage
from core.clock import NS_PER_SECOND, utc_now
from protocol.inventory import Inventory
from tenants.enrollment import enroll_appliance
from tenants.models import Role, Tenant, User
from tenants.scope import Scope
from tenants.users.tokens import create_api_token
from tests.deployment import ALICE, Deployment, make_deployment, serving
from tests.servers import free_port, running

AHEAD_SECONDS = 1800
WAIT_SECONDS = 60
"""How long a poll waits, as agents let it."""
CONNECTING_AT_ONCE = 200
DRIVERS = 2
MOST_MEDIAN_MILLISECONDS = 500.0
# All agents come from one address here.
ENVIRON = servers.NO_HEARTBEATS | servers.NO_RULES
ENVIRON |= {
    "VEDETTE_MAX_CONNECTIONS": "16384",
    "VEDETTE_MAX_CONNECTIONS_PER_ADDRESS": "16384",
    "VEDETTE_REQUESTS_PER_SECOND_PER_USER": "0",
    "VEDETTE_REQUESTS_PER_SECOND_PER_ADDRESS": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The amount to send, the agents that poll, and the changes and lines."""

    appliances: int = 1_000
    ticks: int = 20
    connections: int = 64
    repetitions: int = 3
    settle_seconds: float = 5.0
    agents: int = 10_000
    poll_seconds: float = 120.0
    changes: int = 100
    lines_per_second: int = 50
    line_seconds: int = 30


FULL = Plan()
QUICK = Plan(
    appliances=100,
    ticks=10,
    repetitions=1,
    settle_seconds=1.0,
    agents=500,
    poll_seconds=5.0,
    changes=5,
    lines_per_second=20,
    line_seconds=3,
)


@dataclass(frozen=True, slots=True)
class Shared:
    """What all processes share: MariaDB, Redis, and the fleet that is enrolled."""

    deployment: Deployment
    pids: Mapping[str, int]
    environ: Mapping[str, str]
    members: Sequence[servers.Member]


@dataclass(frozen=True, slots=True)
class Site:
    """The processes that run, by name.

    `ports` are those of `vedette access`; that of the portal is the deployment's.
    """

    deployment: Deployment
    pids: Mapping[str, int]
    ports: Sequence[int]
    samples: servers.Server

    def usages(self) -> dict[str, Usage]:
        """Return what each process has used until now."""
        return {name: read_usage(pid) for name, pid in self.pids.items()}


def measure(plan: Plan, folder: Path) -> Outcome:
    """Measure posts, polls and lines."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with shared_servers(folder, plan) as shared:
        results = {
            "posts": _posts(plan, folder, shared),
            "polls": {f"{count} access": _polls(plan, folder, shared, count) for count in (1, 2)},
            "lines": _lines(plan, folder, shared),
        }
    has_redis = shutil.which("redis-server") is not None
    return Outcome(results, promises(results), {"is_redis_there": str(has_redis)})


def promises(results: Mapping[str, Any]) -> list[Promise]:
    """Return what is promised of several processes, with what was measured."""
    posts, polls, lines = results["posts"], results["polls"], results["lines"]
    theirs = posts["victoriametrics"]["values_per_second"]
    ours = posts["2 access"]["computed_values_per_second_on_own_cores"]
    cpu = [polls[f"{count} access"]["cpu_percent_of_a_core_each"] for count in (1, 2)]
    return [
        Promise("VictoriaMetrics' values a second in small posts, beside two access processes on "
                "cores of their own, computed", ratio(theirs, ours), 1.0, "times"),
        Promise("CPU of each of two access processes with long polls, beside that of one",
                ratio(cpu[1], cpu[0]), 0.6, "times"),
        Promise("median delay of a log line across processes",
                lines["delay_milliseconds_p50"], MOST_MEDIAN_MILLISECONDS, "ms"),
        Promise("log lines lost or repeated across processes",
                lines["lines_lost_or_repeated"], 0.0, "lines"),
    ]  # fmt: skip


@contextmanager
def shared_servers(folder: Path, plan: Plan) -> Iterator[Shared]:
    """Run MariaDB and Redis, and enroll the fleet."""
    with ExitStack() as stack:
        databases = stack.enter_context(servers.mariadb(folder / "mariadb"))
        pids = {"mariadb": int((folder / "mariadb" / "mysqld.pid").read_text())}
        environ = dict(ENVIRON)
        if shutil.which("redis-server"):
            port = free_port()
            argv = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
            redis = stack.enter_context(running(argv, log_path=folder / "redis.log"))
            pids["redis"] = redis.pid
            environ["VEDETTE_REDIS_URL"] = f"redis://127.0.0.1:{port}"
        deployment = make_deployment(folder / "server", database_url=databases.new_database())
        members = servers.enroll_fleet(deployment, max(plan.appliances, plan.agents))
        yield Shared(deployment, pids, environ, members)


@contextmanager
def site(folder: Path, shared: Shared, *, accesses: int, has_portal: bool = True) -> Iterator[Site]:
    """Run VictoriaMetrics anew, and server processes."""
    with ExitStack() as stack:
        samples = stack.enter_context(servers.victoriametrics(folder))
        pids, ports = {**shared.pids, "victoriametrics": samples.pid}, []
        url = samples.url.replace("http", "victoriametrics", 1)
        environ = {**shared.environ, "TIMESERIES_URL": url}
        if has_portal:
            portal = serving(shared.deployment, environ=environ, part="portal")
            pids["portal"] = stack.enter_context(portal).pid
        for number in range(accesses):
            access = replace(shared.deployment, port=free_port())
            process = stack.enter_context(serving(access, environ=environ, part="access"))
            pids[f"access {number + 1}"] = process.pid
            ports.append(access.port)
        yield Site(shared.deployment, pids, ports, samples)


def _posts(plan: Plan, folder: Path, shared: Shared) -> dict[str, Figures]:
    """Post small bodies as a closed loop; half of the fleet by each of two drivers."""
    ticks = Ticks(
        appliances=plan.appliances,
        numbers=range(plan.ticks),
        start_ns=int(time.time() + AHEAD_SECONDS) * NS_PER_SECOND,
    )
    halves = [
        write_bodies(
            folder / f"{half}.bodies",
            ((sender, lines) for sender, lines in ticks.batches() if sender % DRIVERS == half),
        )
        for half in range(DRIVERS)
    ]
    readings: dict[str, list[Figures]] = {}
    for _, count in itertools.product(range(plan.repetitions), (1, 2, 0)):
        name = f"{count} access" if count else "victoriametrics"
        click.echo(f"posts: {name}", err=True)
        with TemporaryDirectory(dir=folder) as home:
            readings.setdefault(name, []).append(
                _posted(Path(home), plan, shared, accesses=count, halves=halves)
            )
    return {name: medians(of_each) for name, of_each in readings.items()}


def _posted(
    home: Path, plan: Plan, shared: Shared, *, accesses: int, halves: Sequence[Bodies]
) -> Figures:
    with site(home, shared, accesses=accesses, has_portal=False) as running_site:
        targets = [running_site.samples] * DRIVERS
        if accesses:
            targets = [
                servers.vedette_server(replace(shared.deployment, port=port), shared.members, pid=0)
                for port in itertools.islice(itertools.cycle(running_site.ports), DRIVERS)
            ]
        loads = [
            Posts(server=target, bodies=[half.path], connections=plan.connections // DRIVERS)
            for target, half in zip(targets, halves, strict=True)
        ]
        before = running_site.usages()
        with ThreadPoolExecutor(DRIVERS) as drivers:
            results = list(drivers.map(post, loads))
        time.sleep(plan.settle_seconds)
        after = running_site.usages()
    if refused := [result for result in results if result["refused"]]:
        raise BenchmarkError(f"posts were refused: {refused[0]['reasons']}")
    millions = sum(half.values for half in halves) / 1e6
    spent = {name: after[name].cpu_seconds - usage.cpu_seconds for name, usage in before.items()}
    of_access = sum(seconds for name, seconds in spent.items() if name.startswith("access"))
    figures: dict[str, float | None] = {
        "values_per_second": rounded(1e6 * millions / max(result["seconds"] for result in results)),
        "posts_per_second": rounded(sum(result["posts_per_second"] for result in results)),
        "ack_milliseconds_p99": max(result["ack_milliseconds_p99"] for result in results),
        "cpu_seconds_per_million_values": rounded(sum(spent.values()) / millions),
        "driver_cpu_seconds_per_million_values": rounded(
            sum(result["driver_cpu_seconds"] for result in results) / millions
        ),
        **{
            f"{name.replace(' ', '_')}_cpu_seconds_per_million_values": rounded(seconds / millions)
            for name, seconds in spent.items()
        },
    }
    if accesses:
        figures["computed_values_per_second_on_own_cores"] = rounded(
            1e6 * accesses * millions / of_access
        )
        resident = max(u.resident_bytes for name, u in after.items() if name.startswith("access"))
        figures["access_resident_mebibytes"] = rounded(resident / MEBIBYTE)
    return figures


def _polls(plan: Plan, folder: Path, shared: Shared, accesses: int) -> Figures:
    click.echo(f"polls: {accesses} access", err=True)
    token, jobs = _jobs(shared.deployment, plan.changes, prefix=f"{accesses}-")
    members = [*jobs.values(), *shared.members[: plan.agents - plan.changes]]
    with (
        TemporaryDirectory(dir=folder) as home,
        site(Path(home), shared, accesses=accesses) as current,
    ):
        polls = Polls(list(zip(members, itertools.cycle(current.ports), strict=False)))
        return asyncio.run(_polled(plan, current, polls, token=token, jobs=jobs))


async def _polled(
    plan: Plan,
    current: Site,
    polls: "Polls",
    *,
    token: str,
    jobs: Mapping[str, servers.Member],
) -> Figures:
    await polls.start()
    await asyncio.sleep(plan.settle_seconds)
    before = current.usages()
    began = time.monotonic()
    await asyncio.sleep(plan.poll_seconds)
    after, seconds = current.usages(), time.monotonic() - began
    delays, stops = [], []
    for job_id, member in jobs.items():
        answered = polls.answer_of(member)
        stopped_at = time.perf_counter()
        reply = await asyncio.to_thread(
            requests.post,
            f"{current.deployment.url}/api/v1/jobs/{job_id}/stop",
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
        )
        if not reply.ok:
            raise BenchmarkError(f"the portal answered {reply.status_code}: {reply.text}")
        stops.append(time.perf_counter() - stopped_at)
        delays.append(await asyncio.wait_for(answered, WAIT_SECONDS) - stopped_at)
    await polls.stop()
    percents = {
        name: 100 * (after[name].cpu_seconds - usage.cpu_seconds) / seconds
        for name, usage in before.items()
    }
    of_access = [percent for name, percent in percents.items() if name.startswith("access")]
    memory = [usage.resident_bytes for name, usage in after.items() if name.startswith("access")]
    return {
        "agents": len(polls.members),
        "changes": len(delays),
        "cpu_percent_of_a_core_each": rounded(sum(of_access) / len(of_access)),
        "resident_mebibytes_each": rounded(max(memory) / MEBIBYTE),
        "mariadb_cpu_percent_of_a_core": rounded(percents["mariadb"]),
        "redis_cpu_percent_of_a_core": rounded(percents["redis"]) if "redis" in percents else None,
        **milliseconds_of(delays, name="from_stop_to_agent_milliseconds"),
        **milliseconds_of(stops, name="stop_milliseconds"),
    }


class Polls:
    """Agents that poll for their desired state, each over a connection of its own."""

    def __init__(self, members: Sequence[tuple[servers.Member, int]]) -> None:
        self.members = members
        self._generations: dict[str, int] = {}
        self._awaited: dict[str, asyncio.Future[float]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect, some at once, and let all agents poll."""
        connecting = asyncio.Semaphore(CONNECTING_AT_ONCE)
        ready = []
        for member, port in self.members:
            started = asyncio.get_running_loop().create_future()
            ready.append(started)
            poll = self._poll(member, port, started=started, connecting=connecting)
            self._tasks.append(asyncio.create_task(poll))
        await asyncio.gather(*ready)

    def answer_of(self, member: servers.Member) -> asyncio.Future[float]:
        """Return a future with the instant at which the agent gets another desired state."""
        future = asyncio.get_running_loop().create_future()
        self._awaited[member.appliance_id] = future
        return future

    async def stop(self) -> None:
        """End all polls.

        Raises:
            BenchmarkError: one has failed.
        """
        failed = [task for task in self._tasks if task.done()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if failed:
            raise BenchmarkError(f"{len(failed)} polls ended: {failed[0].exception()!r}")

    async def _poll(
        self,
        member: servers.Member,
        port: int,
        *,
        started: asyncio.Future[None],
        connecting: asyncio.Semaphore,
    ) -> None:
        connection, wait_seconds = Connection(port), 0
        headers = f"Authorization: Bearer {member.secret}\r\n"
        try:
            while True:
                generation = self._generations.get(member.appliance_id, -1)
                path = f"/agent/v1/desired?generation={generation}&wait_seconds={wait_seconds}"
                request = request_of("GET", path, headers=headers)
                if wait_seconds:
                    status, body = await connection.send(request)
                else:
                    async with connecting:
                        status, body = await connection.send(request)
                if status == HTTPStatus.OK:
                    state = json.loads(body)
                    self._generations[member.appliance_id] = state["generation"]
                    if awaited := self._awaited.pop(member.appliance_id, None):
                        awaited.set_result(time.perf_counter())
                elif status != HTTPStatus.NO_CONTENT:
                    raise BenchmarkError(f"the server answered {status}: {body[:200]!r}")  # noqa: TRY301 - `start` raises it, too
                wait_seconds = WAIT_SECONDS
                if not started.done():
                    started.set_result(None)
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise
        finally:
            connection.close()


def _jobs(
    deployment: Deployment, count: int, *, prefix: str
) -> tuple[str, dict[str, servers.Member]]:
    """Add appliances of acme with a running job each; return a token of its admin, and them."""
    secret = deployment.enrollment_secret("acme", uses=count)
    now, jobs = utc_now(), {}
    with servers.writing(deployment) as session:
        alice = session.scalars(select(User).where(User.email == ALICE)).unique().one()
        tenant = session.scalars(select(Tenant).where(Tenant.slug == "acme")).one()
        scope = Scope(user_id=alice.id, role=Role.ADMIN, tenant_id=tenant.id)
        _token, token = create_api_token(session, scope, name=f"{prefix}bench", now=now)
        for number in range(count):
            appliance, agent_secret = enroll_appliance(
                session,
                secret=secret,
                name=f"{prefix}{number:03}",
                inventory=Inventory(hostname="gpu-01"),
                now=now,
            )
            job = running_job(tenant.id, appliance.id, now=now, name="bench")
            session.add(job)
            session.flush()
            jobs[job.id] = servers.Member(appliance.id, tenant.id, agent_secret)
    return token, jobs


def _lines(plan: Plan, folder: Path, shared: Shared) -> Figures:
    """Follow at the portal what an agent sends to another process."""
    click.echo("lines", err=True)
    lines = follow.Plan(jobs=1, lines_per_second=plan.lines_per_second, seconds=plan.line_seconds)
    run = follow.start_jobs(shared.deployment, lines, 1, members=shared.members[:1])
    with TemporaryDirectory(dir=folder) as home, site(Path(home), shared, accesses=1) as current:
        run.agent_port = current.ports[0]
        asyncio.run(follow.write_and_follow(run))
    return {
        "lines": lines.lines,
        "lines_lost_or_repeated": run.lost_or_repeated,
        **milliseconds_of(run.delays_seconds, name="delay_milliseconds"),
    }
