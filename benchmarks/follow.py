"""How soon a line of a job's log reaches a client that follows it, and whether lines are lost.

Jobs on a fleet write lines at a steady rate; their logs are sent every 0.2 s, as agents do, those
of an appliance in one request, and each job is followed over server-sent events. The delay of a
line is the time from its writing to its event at the follower: the engine and the drawing of the
browser are not part of it. Senders and followers share the machine with the server.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import msgspec
from sqlalchemy import select

from benchmarks.shared.document import (
    BenchmarkError,
    Figures,
    Outcome,
    Promise,
    milliseconds_of,
    rounded,
)
from benchmarks.shared.filling import running_job
from benchmarks.shared.load import Connection, request_of
from benchmarks.shared.meter import cpu_seconds, server_figures, watched
from benchmarks.shared.servers import Member, enroll_fleet, writing
from core.clock import utc_now
from protocol.attempts import LogChunk, LogReply, LogUpload
from protocol.logs import LogLine, Stream, record
from tenants.models import User
from tenants.scope import Scope
from tenants.users.tokens import create_api_token
from tests.deployment import OLIVIA, Deployment, make_deployment, serving

MOST_MEDIAN_MILLISECONDS = 500.0
SEND_SECONDS = 0.2
SETTLE_SECONDS = 60.0
JOBS_OF_AN_APPLIANCE = 10
MAX_EVENT_BYTES = 4 * 2**20
_LOG_EVENT = b'data: {"attempt_number":1,"offset"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The number of jobs, their lines a second, and the duration."""

    jobs: int = 200
    lines_per_second: int = 100
    seconds: int = 60

    @property
    def lines(self) -> int:
        """The number of lines of each job."""
        return self.lines_per_second * self.seconds


FULL = Plan()
QUICK = Plan(jobs=5, lines_per_second=20, seconds=3)


class _Lines(msgspec.Struct):
    lines: list[LogLine]


@dataclass
class Run:
    """The attempts by job, each with its appliance, and what followers received.

    `agent_port` is that of the process to which agents send.
    """

    deployment: Deployment
    plan: Plan
    token: str
    attempts: dict[str, tuple[str, Member]]
    delays_seconds: list[float] = field(default_factory=list)
    received: dict[str, list[int]] = field(default_factory=dict)
    agent_port: int = 0

    @property
    def lost_or_repeated(self) -> int:
        """The number of lines that a follower did not receive once."""
        wanted = set(range(self.plan.lines))
        return sum(
            len(wanted ^ set(numbers)) + len(numbers) - len(set(numbers))
            for numbers in self.received.values()
        )


def measure(plan: Plan, folder: Path) -> Outcome:
    """Write and follow the logs of one job, and of all."""
    alone, together = (_followed(folder / str(jobs), plan, jobs) for jobs in (1, plan.jobs))
    name = "median delay of a line of one job"
    promises = [
        Promise(name, alone["delay_milliseconds_p50"], MOST_MEDIAN_MILLISECONDS, "ms"),
        Promise(
            f"lines lost or repeated of {plan.jobs} jobs",
            together["lines_lost_or_repeated"],
            0.0,
            "lines",
        ),
    ]
    return Outcome({"1 jobs": alone, f"{plan.jobs} jobs": together}, promises)


def _followed(folder: Path, plan: Plan, jobs: int) -> Figures:
    run = start_jobs(make_deployment(folder), plan, jobs)
    with serving(run.deployment) as process, watched(process.pid) as readings:
        driver_seconds = cpu_seconds(os.getpid())
        asyncio.run(write_and_follow(run))
        driver_seconds = cpu_seconds(os.getpid()) - driver_seconds
    seconds = readings[-1].at_seconds - readings[0].at_seconds
    return {
        "lines": plan.lines * jobs,
        "lines_lost_or_repeated": run.lost_or_repeated,
        **milliseconds_of(run.delays_seconds, name="delay_milliseconds"),
        **server_figures(readings),
        "driver_cpu_percent_of_a_core": rounded(100 * driver_seconds / seconds),
    }


def start_jobs(
    deployment: Deployment, plan: Plan, jobs: int, *, members: Sequence[Member] = ()
) -> Run:
    """Add running jobs, and an API token that may read all; enroll appliances unless given."""
    members = members or enroll_fleet(deployment, -(-jobs // JOBS_OF_AN_APPLIANCE))
    now = utc_now()
    with writing(deployment) as session:
        olivia = session.scalars(select(User).where(User.email == OLIVIA)).unique().one()
        _token, secret = create_api_token(session, Scope.of(olivia), name="bench", now=now)
        run = Run(deployment, plan, secret, {}, agent_port=deployment.port)
        for number in range(jobs):
            member = members[number // JOBS_OF_AN_APPLIANCE]
            job = running_job(member.tenant_id, member.appliance_id, now=now, name=f"job-{number}")
            session.add(job)
            session.flush()
            run.attempts[job.id] = (job.attempts[0].id, member)
            run.received[job.id] = []
    return run


async def write_and_follow(run: Run) -> None:
    """Write all lines, and follow them to the last one."""
    followers = [asyncio.create_task(_follow(run, job_id)) for job_id in run.attempts]
    by_appliance: dict[str, list[str]] = {}
    for attempt_id, member in run.attempts.values():
        by_appliance.setdefault(member.secret, []).append(attempt_id)
    async with asyncio.TaskGroup() as group:
        for secret, attempt_ids in by_appliance.items():
            group.create_task(_write(run, attempt_ids, secret))
    await asyncio.wait(followers, timeout=SETTLE_SECONDS)
    for follower in followers:
        follower.cancel()
    await asyncio.gather(*followers, return_exceptions=True)


async def _write(run: Run, attempt_ids: list[str], secret: str) -> None:
    """Write lines of an appliance's jobs at their times, and send what is new as its agent does."""
    plan, headers = run.plan, f"Authorization: Bearer {secret}\r\n"
    connection = Connection(run.agent_port)
    began, number = time.time(), 0
    offsets = dict.fromkeys(attempt_ids, 0)
    while number < plan.lines:
        await asyncio.sleep(SEND_SECONDS)
        due = min(plan.lines, int((time.time() - began) * plan.lines_per_second))
        if due == number:
            continue
        times = ((line, began + line / plan.lines_per_second) for line in range(number, due))
        data = b"".join(
            record(b"2026-01-01T00:00:00Z", Stream.STDOUT, f"{line} {at:.6f}\n".encode())
            for line, at in times
        )
        chunks = [
            LogChunk(attempt_id=attempt_id, offset=offset, data=data)
            for attempt_id, offset in offsets.items()
        ]
        body = msgspec.msgpack.encode(LogUpload(chunks=chunks))
        request = request_of("POST", "/agent/v1/logs", headers=headers, body=body)
        status, answer = await connection.send(request)
        if status != HTTPStatus.OK:
            raise BenchmarkError(f"the server answered {status}: {answer!r}")
        acks = msgspec.json.decode(answer, type=LogReply).acks
        for attempt_id, ack in zip(attempt_ids, acks, strict=True):
            offsets[attempt_id] = ack.next_offset
        number = due
    connection.close()


async def _follow(run: Run, job_id: str) -> None:
    """Read events until the last line, on a bare connection: 200 HTTP clients cost more."""
    port = run.deployment.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MAX_EVENT_BYTES)
    headers = f"Authorization: Bearer {run.token}\r\n"
    writer.write(request_of("GET", f"/api/v1/jobs/{job_id}/follow", headers=headers))
    status, received = await reader.readline(), run.received[job_id]
    if HTTPStatus.OK.phrase.encode() not in status:
        raise BenchmarkError(f"the server answered {status!r}")
    while line := await reader.readline():
        if not line.startswith(_LOG_EVENT):
            continue
        now = time.time()
        for entry in msgspec.json.decode(line.removeprefix(b"data: "), type=_Lines).lines:
            number, _, at = entry.text.partition(" ")
            run.delays_seconds.append(now - float(at))
            received.append(int(number))
        if received and received[-1] == run.plan.lines - 1:
            break
    writer.close()
