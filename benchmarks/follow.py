"""Measure how soon a line of a job's log reaches a client that follows it, and count losses.

    python -m benchmarks.follow [--quick] [--output FILE]

Jobs on a fleet write lines at a steady rate; their logs are sent every 0.2 s, as agents do, those
of an appliance in one request, and each job is followed over server-sent events. The delay of a
line is the time from its writing to its event at the follower: the engine and the drawing of the
browser are not part of it. Senders and followers share the machine with the server.
"""

import asyncio
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import click
import httpx
import msgspec
from sqlalchemy import select

from benchmarks.figures import Promise, document, percentile, rounded, write_document
from benchmarks.gateway import Gateway, Member, enroll_fleet, make_gateway, serving
from benchmarks.meter import cpu_ns, read_usage, spent
from benchmarks.processes import BenchmarkError
from cli.database import open_database
from core.clock import utc_now
from core.db import transaction
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState, JobState
from protocol.attempts import LogChunk, LogReply, LogUpload
from protocol.job_spec import JobKind
from protocol.logs import LogLine, Stream, record
from tenants.models import User
from tenants.scope import Scope
from tenants.users.tokens import create_api_token

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


FULL = Plan()
QUICK = Plan(jobs=5, lines_per_second=20, seconds=3)


class _Lines(msgspec.Struct):
    lines: list[LogLine]


@dataclass
class Run:
    """The lines that were written, and what followers received."""

    delays_seconds: list[float] = field(default_factory=list)
    received: dict[str, list[int]] = field(default_factory=dict)


def measure(plan: Plan) -> dict[str, object]:
    """Write and follow; return the document."""
    started_at = utc_now()
    results: dict[str, object] = {}
    for jobs in sorted({1, plan.jobs}):
        results[f"{jobs} jobs"] = _followed(plan, jobs)
    one_job, all_jobs = (results[f"{jobs} jobs"] for jobs in (1, plan.jobs))
    assert isinstance(one_job, dict)  # noqa: S101 - ours
    assert isinstance(all_jobs, dict)  # noqa: S101 - ours
    return document(
        "follow",
        started_at=started_at,
        settings=asdict(plan),
        results=results,
        promises=[
            Promise(
                name="median delay of a line of one job",
                bound=MOST_MEDIAN_MILLISECONDS,
                measured=one_job["delay_median_milliseconds"],
                unit="ms",
            ),
            Promise(
                name=f"lines lost or repeated of {plan.jobs} jobs",
                bound=0,
                measured=all_jobs["lines_lost_or_repeated"],
                unit="lines",
            ),
        ],
    )


def _followed(plan: Plan, jobs: int) -> dict[str, float | None]:
    with TemporaryDirectory(prefix="vedette-bench-") as name:
        gateway = make_gateway(Path(name))
        members = enroll_fleet(gateway, -(-jobs // JOBS_OF_AN_APPLIANCE))
        attempts, token = _start(gateway, members, jobs)
        with serving(gateway) as pid:
            before, driver_ns = read_usage(pid), cpu_ns(os.getpid())
            run = asyncio.run(_write_and_follow(plan, gateway.url, attempts, token))
            after, driver_ns = read_usage(pid), cpu_ns(os.getpid()) - driver_ns
    lines = plan.lines_per_second * plan.seconds
    wanted = list(range(lines))
    wrong = sum(
        len(set(wanted) ^ set(numbers)) + len(numbers) - len(set(numbers))
        for numbers in run.received.values()
    )
    used = spent(before, after)
    driver_seconds = driver_ns / 1e9 / (after.at_seconds - before.at_seconds)
    delays = [1000 * delay for delay in run.delays_seconds]
    return {
        "lines": lines * jobs,
        "lines_lost_or_repeated": wrong,
        "delay_median_milliseconds": percentile(delays, 50),
        "delay_p99_milliseconds": percentile(delays, 99),
        "server_cpu_percent_of_a_core": rounded(used["cpu_percent_of_a_core"]),
        "driver_cpu_percent_of_a_core": rounded(100 * driver_seconds),
        "server_resident_mebibytes": rounded(used["resident_mebibytes"]),
    }


def _start(
    gateway: Gateway, members: list[Member], jobs: int
) -> tuple[dict[str, tuple[str, Member]], str]:
    """Add running jobs; return their attempts by job, and an API token that may read all."""
    now, attempts = utc_now(), {}
    with open_database(gateway.settings) as (_engine, sessions), transaction(sessions) as session:
        operator = session.scalars(select(User).where(User.is_operator)).first()
        if operator is None:
            raise BenchmarkError("the gateway's database has no operator")
        _token, secret = create_api_token(session, Scope.of(operator), name="bench", now=now)
        for number in range(jobs):
            member = members[number // JOBS_OF_AN_APPLIANCE]
            job = Job(
                tenant_id=member.tenant_id,
                name=f"job-{number}",
                kind=JobKind.SERVICE,
                image="bench",
                memory_bytes=2**30,
                state=JobState.RUNNING,
                submitted_at=now,
                started_at=now,
            )
            session.add(job)
            session.flush()
            attempt = Attempt(
                job_id=job.id,
                tenant_id=member.tenant_id,
                appliance_id=member.appliance_id,
                number=1,
                state=AttemptState.RUNNING,
                bound_at=now,
                started_at=now,
            )
            session.add(attempt)
            session.flush()
            attempts[job.id] = (attempt.id, member)
    return attempts, secret


async def _write_and_follow(
    plan: Plan, url: str, attempts: dict[str, tuple[str, Member]], token: str
) -> Run:
    run = Run(received={job_id: [] for job_id in attempts})
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=SETTLE_SECONDS, limits=limits) as client:
        followers = [
            asyncio.create_task(_follow(url, plan, job_id, token, run)) for job_id in attempts
        ]
        async with asyncio.TaskGroup() as group:
            for member in {member.secret: member for _, member in attempts.values()}.values():
                own = [attempt_id for attempt_id, other in attempts.values() if other is member]
                group.create_task(_write(client, plan, own, member))
        await asyncio.wait(followers, timeout=SETTLE_SECONDS)
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
    return run


async def _write(
    client: httpx.AsyncClient, plan: Plan, attempt_ids: list[str], member: Member
) -> None:
    """Write lines of an appliance's jobs at their times, and send what is new as its agent does."""
    began, number, total = time.time(), 0, plan.lines_per_second * plan.seconds
    offsets = dict.fromkeys(attempt_ids, 0)
    while number < total:
        await asyncio.sleep(SEND_SECONDS)
        due = min(total, int((time.time() - began) * plan.lines_per_second))
        times = ((line, began + line / plan.lines_per_second) for line in range(number, due))
        data = b"".join(
            record(b"2026-01-01T00:00:00Z", Stream.STDOUT, f"{line} {at:.6f}\n".encode())
            for line, at in times
        )
        if data:
            chunks = [
                LogChunk(attempt_id=attempt_id, offset=offset, data=data)
                for attempt_id, offset in offsets.items()
            ]
            answer = await client.post(
                "/agent/v1/logs",
                content=msgspec.msgpack.encode(LogUpload(chunks=chunks)),
                headers={"Authorization": f"Bearer {member.secret}"},
            )
            answer.raise_for_status()
            acks = msgspec.json.decode(answer.content, type=LogReply).acks
            offsets = {
                attempt_id: ack.next_offset for attempt_id, ack in zip(offsets, acks, strict=True)
            }
            number = due


async def _follow(url: str, plan: Plan, job_id: str, token: str, run: Run) -> None:
    """Read events until the last line, on a bare connection: 200 HTTP clients cost more."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(
        address.hostname, address.port, limit=MAX_EVENT_BYTES
    )
    request = f"GET /api/v1/jobs/{job_id}/follow HTTP/1.1\r\nHost: {address.netloc}\r\n"
    writer.write(f"{request}Authorization: Bearer {token}\r\n\r\n".encode())
    received, last = run.received[job_id], plan.lines_per_second * plan.seconds - 1
    status = await reader.readline()
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
        if received and received[-1] == last:
            break
    writer.close()


@click.command(help=sys.modules[__name__].__doc__)
@click.option("--quick", is_flag=True, help="A few jobs for some seconds.")
@click.option("--output", type=click.Path(path_type=Path))
def main(*, quick: bool, output: Path | None) -> None:
    """Measure and print the document."""
    write_document(measure(QUICK if quick else FULL), output)


if __name__ == "__main__":
    main()
