"""10,000 agents that poll one process: how long from placement to delivery?

    python -m benchmarks.polls [--quick] [--output FILE]

Each agent has a connection on which it polls for its desired state, as agents do; nothing else is
sent. Jobs are put into the database, the server's scheduler places them, and the time is that from
the placement to the answer that has the attempt. The agents start at different times, as those of a
fleet do, and share the machine with the server.
"""

import asyncio
import contextlib
import json
import random
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from sqlalchemy import select, update

from benchmarks.figures import document, percentile, rounded, write_document
from benchmarks.gateway import Gateway, Member, enroll_fleet, make_gateway, serving
from benchmarks.meter import read_usage, spent
from benchmarks.processes import BenchmarkError
from cli.database import open_database
from core.clock import utc_now
from core.db import transaction
from jobqueue.models import Attempt, Job
from jobqueue.states import JobState
from protocol.job_spec import JobKind
from tenants.models import Appliance, ApplianceState

WAIT_SECONDS = 25
SETTLE_SECONDS = 10.0
# All agents come from one address here.
ENVIRON = {"VEDETTE_MAX_CONNECTIONS_PER_ADDRESS": "16384"}
LATEST_SECONDS = 120.0
INVENTORY = {
    "hostname": "bench",
    "cpu_count": 64,
    "memory_bytes": 512 * 2**30,
    "executors": ["docker"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The numbers of agents that poll and that get a job, and the seconds between jobs."""

    agents: int = 10_000
    jobs: int = 300
    job_seconds: float = 0.2


FULL = Plan()
QUICK = Plan(agents=100, jobs=10)


def measure(plan: Plan) -> dict[str, object]:
    """Poll and deliver; return the document."""
    started_at = utc_now()
    with TemporaryDirectory(prefix="vedette-bench-") as name:
        gateway = make_gateway(Path(name), extra_environ=ENVIRON)
        members = enroll_fleet(gateway, plan.agents)
        _bring_online(gateway)
        with serving(gateway) as pid:
            results = asyncio.run(_Polls(plan, gateway, members, pid).run())
    return document("polls", started_at=started_at, settings=asdict(plan), results=results)


class _Polls:
    def __init__(self, plan: Plan, gateway: Gateway, members: list[Member], pid: int) -> None:
        self._plan, self._gateway, self._members, self._pid = plan, gateway, members, pid
        self._delivered: dict[str, float] = {}
        self._polls = 0
        self._errors: list[str] = []
        self._is_open = asyncio.Event()
        self._has_all = asyncio.Event()

    async def run(self) -> dict[str, float | int | None]:
        """Open the polls, add jobs, and wait until all are delivered."""
        agents = [
            asyncio.create_task(self._poll(member, WAIT_SECONDS * number / len(self._members)))
            for number, member in enumerate(self._members)
        ]
        await self._is_open.wait()
        await asyncio.sleep(SETTLE_SECONDS)
        before = read_usage(self._pid)
        await asyncio.sleep(SETTLE_SECONDS)
        idle = spent(before, read_usage(self._pid))
        chosen = random.Random(1).sample(self._members, self._plan.jobs)  # noqa: S311
        before = read_usage(self._pid)
        for member in chosen:
            await asyncio.to_thread(_submit, self._gateway, member)
            await asyncio.sleep(self._plan.job_seconds)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_all.wait(), LATEST_SECONDS)
        busy = spent(before, read_usage(self._pid))
        for agent in agents:
            agent.cancel()
        await asyncio.gather(*agents, return_exceptions=True)
        if self._errors:
            raise BenchmarkError(f"{len(self._errors)} polls failed: {self._errors[0]}")
        placed = _placements(self._gateway)
        delays = [
            1000 * (at - placed[ident].timestamp())
            for ident, at in self._delivered.items()
            if ident in placed
        ]
        return {
            "agents": len(agents),
            "jobs": len(chosen),
            "jobs_delivered": len(delays),
            "delivery_median_milliseconds": percentile(delays, 50),
            "delivery_p99_milliseconds": percentile(delays, 99),
            "delivery_max_milliseconds": rounded(max(delays, default=0.0)),
            "idle_cpu_percent_of_a_core": rounded(idle["cpu_percent_of_a_core"]),
            "busy_cpu_percent_of_a_core": rounded(busy["cpu_percent_of_a_core"]),
            "server_resident_mebibytes": rounded(busy["resident_mebibytes"]),
        }

    async def _poll(self, member: Member, start_seconds: float) -> None:
        await asyncio.sleep(start_seconds)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._gateway.port)
            generation = -1
            while True:
                path = f"/agent/v1/desired?generation={generation}&wait_seconds={WAIT_SECONDS}"
                headers = f"Host: bench\r\nAuthorization: Bearer {member.secret}\r\n\r\n"
                writer.write(f"GET {path} HTTP/1.1\r\n{headers}".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                status, body = await _body(reader, head)
                if status == 200:  # noqa: PLR2004 - HTTP
                    self._count(is_first=generation < 0)
                    desired = json.loads(body)
                    generation = desired["generation"]
                    now = time.time()
                    for attempt in desired.get("attempts", ()):
                        self._delivered.setdefault(attempt["attempt_id"], now)
                    if len(self._delivered) == self._plan.jobs:
                        self._has_all.set()
                elif status != 204:  # noqa: PLR2004 - HTTP
                    self._fail(f"{status} {body[:200]!r}")
                    return
        except (OSError, asyncio.IncompleteReadError) as error:
            self._fail(str(error))

    def _count(self, *, is_first: bool) -> None:
        self._polls += is_first
        if self._polls == len(self._members):
            self._is_open.set()

    def _fail(self, error: str) -> None:
        self._errors.append(error)
        self._is_open.set()
        self._has_all.set()


async def _body(reader: asyncio.StreamReader, head: bytes) -> tuple[int, bytes]:
    lines = head.decode().lower().split("\r\n")
    length = next((line[16:] for line in lines if line.startswith("content-length: ")), "0")
    return int(lines[0].split()[1]), await reader.readexactly(int(length))


def _bring_online(gateway: Gateway) -> None:
    """Let the whole fleet look as after heartbeats, which are not part of the measurement."""
    later = datetime.fromtimestamp(time.time() + 3600, tz=utc_now().tzinfo)
    with open_database(gateway.settings) as (_engine, sessions), transaction(sessions) as session:
        online = update(Appliance).values(
            state=ApplianceState.ONLINE, last_seen_at=later, inventory=INVENTORY
        )
        session.execute(online, execution_options={"synchronize_session": False})


def _submit(gateway: Gateway, member: Member) -> None:
    now = utc_now()
    with open_database(gateway.settings) as (_engine, sessions), transaction(sessions) as session:
        session.add(
            Job(
                tenant_id=member.tenant_id,
                appliance_id=member.appliance_id,
                name="bench",
                kind=JobKind.BATCH,
                image="bench:1",
                state=JobState.SUBMITTED,
                memory_bytes=2**20,
                submitted_at=now,
            )
        )


def _placements(gateway: Gateway) -> dict[str, datetime]:
    with open_database(gateway.settings) as (_engine, sessions), sessions() as session:
        rows = session.execute(select(Attempt.id, Attempt.assigned_at))
        return {ident: at for ident, at in rows if at is not None}


@click.command()
@click.option("--quick", is_flag=True, help="A few agents.")
@click.option("--output", type=click.Path(path_type=Path))
def main(*, quick: bool, output: Path | None) -> None:
    """Measure the delivery of placements and print the document."""
    write_document(measure(QUICK if quick else FULL), output)


if __name__ == "__main__":
    main()
