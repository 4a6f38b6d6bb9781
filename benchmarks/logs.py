"""Searching a day of the logs of 200 jobs, in files, as a user's request does.

    rare            a word that one line has
    frequent        a word that a third of the lines has
    phrase          three words next to each other
    expression      a regular expression that few lines match
    no match        a regular expression that no line matches: everything is read
    counts          all lines over time
    counts of word  the lines with the frequent word over time

Each figure is the median of repeated searches, the first of which reads the files.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from sqlalchemy import update

from benchmarks.shared.document import Outcome, Promise, median, rounded, seconds_of
from cli.database import open_database
from core.clock import to_ns
from core.db import SessionFactory, transaction
from core.ids import new_id
from core.settings import ServerSettings
from jobqueue.logs.log_files import LogFiles
from jobqueue.logs.logs import file_name
from jobqueue.models import Attempt
from jobqueue.queue.past_jobs import PastJob, add_past_jobs
from jobqueue.states import JobState, LogState
from logs.lines import Source
from logs.packing import index_job_logs
from logs.query import LogQuery
from logs.search import count_lines, search
from logs.sources import LogSources
from protocol.job_spec import JobKind
from tenants.models import Appliance, ApplianceState, Membership, Role, Tenant, TenantState, User
from tenants.scope import Scope

MAX_SEARCH_SECONDS = 2.0
DAY_START = datetime(2026, 3, 2, tzinfo=UTC)
DAY_END = DAY_START + timedelta(days=1)
MEBIBYTE = 2**20
SEARCHES = {
    "rare": "needle",
    "frequent": "loss",
    "phrase": '"gradient norm above"',
    "expression": r"/step 99\d{2} .*loss=0\.0/",
    "no match": r"/Segmentation fault .core/",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is searched."""

    jobs: int = 200
    lines: int = 10_000
    repetitions: int = 5


FULL = Plan()
QUICK = Plan(jobs=4, lines=300, repetitions=1)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Write the logs, index them, and search."""
    files = LogFiles(str(folder / "job-logs"))
    with open_database(ServerSettings(data_dir=folder), may_create=True) as (_, sessions):
        scope = _fill(plan, sessions, files)
        seconds = {"index all logs": seconds_of(lambda: _index(sessions, files))}
        for name, run in _searches(sessions, files, scope).items():
            seconds[name] = median([seconds_of(run) for _ in range(plan.repetitions)]) or 0.0
    sizes = {
        kind: sum(path.stat().st_size for path in folder.rglob(f"*.{kind}")) / MEBIBYTE
        for kind in ("log", "parquet")
    }
    slowest = max(value for name, value in seconds.items() if name != "index all logs")
    results = {
        "data": {"log_mib": rounded(sizes["log"]), "index_mib": rounded(sizes["parquet"])},
        **{name: {"seconds": rounded(value)} for name, value in seconds.items()},
    }
    return Outcome(results, [Promise("slowest search", slowest, MAX_SEARCH_SECONDS, "seconds")])


def _searches(
    sessions: SessionFactory, files: LogFiles, scope: Scope
) -> dict[str, Callable[[], object]]:
    sources = LogSources(sessions, files, scope, now=DAY_END)

    def query(text: str) -> LogQuery:
        return replace(LogQuery.between(DAY_START, DAY_END, text), sources=frozenset({Source.JOB}))

    timed: dict[str, Callable[[], object]] = {
        name: lambda text=text: search(query(text), sources.blocks)  # type: ignore[misc]
        for name, text in SEARCHES.items()
    }
    timed["counts"] = lambda: count_lines(query(""), sources.blocks, buckets=60)
    timed["counts of word"] = lambda: count_lines(query("loss"), sources.blocks, buckets=60)
    return timed


def _index(sessions: SessionFactory, files: LogFiles) -> None:
    while index_job_logs(sessions, files, now=DAY_END):
        pass


def _fill(plan: Plan, sessions: SessionFactory, files: LogFiles) -> Scope:
    """Add the jobs, each with a log in a file that covers an hour; return their user's scope."""
    random = Random(1)  # noqa: S311 - the same data in every run
    with transaction(sessions) as session:
        tenant = Tenant(slug="acme", name="Acme", state=TenantState.ACTIVE, created_at=DAY_START)
        user = User(
            email="alice@acme.example", name="Alice", password_hash="", created_at=DAY_START
        )
        user.memberships = [Membership(tenant=tenant, role=Role.ADMIN, created_at=DAY_START)]
        session.add_all([tenant, user])
        session.flush()
        appliance = Appliance(
            tenant_id=tenant.id,
            name="dgx-01",
            state=ApplianceState.ONLINE,
            inventory={},
            secret_hash=new_id(),
            enrolled_at=DAY_START,
        )
        session.add(appliance)
        session.flush()
        scope = Scope.of(user)
        jobs = [_job(number, random) for number in range(plan.jobs)]
        add_past_jobs(session, scope, appliance.id, jobs, now=DAY_END)
        for number, job in enumerate(jobs):
            lines = list(_lines(plan, number, job.started_at, random))
            files.write(file_name(tenant.id, job.id, 1), iter(lines))
            stored = {"log_bytes": sum(map(len, lines)), "log_state": LogState.FILE}
            session.execute(update(Attempt).where(Attempt.job_id == job.id).values(**stored))
    return scope


def _job(number: int, random: Random) -> PastJob:
    started_at = DAY_START + timedelta(seconds=random.randrange(0, 23 * 3600))
    return PastJob(
        id=new_id(),
        name=f"train-{number}",
        kind=JobKind.BATCH,
        image="acme/train:1",
        command=["python", "train.py"],
        gpu_uuids=[],
        cpus=1,
        memory_bytes=2**30,
        submitted_at=started_at,
        started_at=started_at,
        finished_at=started_at + timedelta(hours=1),
        state=JobState.SUCCEEDED,
    )


def _lines(plan: Plan, job: int, started_at: datetime, random: Random) -> Iterator[bytes]:
    step_ns = 3600 * 10**9 // plan.lines
    for number in range(plan.lines):
        at_ns = to_ns(started_at) + number * step_ns
        at = f"{datetime.fromtimestamp(at_ns // 10**9, UTC):%Y-%m-%dT%H:%M:%S}.{at_ns % 10**9:09}Z"
        match number % 3:
            case 0:
                text = f"epoch {number // 500} step {number} loss={random.random():.4f}"
            case 1:
                text = f"INFO worker {job}: read shard {random.getrandbits(32):08x} of the data set"
            case _:
                text = f"WARNING gradient norm {random.random() * 9:.3f}, clipped at 1.0"
        if number == plan.lines // 2 and job % 50 == 0:
            text = f"gradient norm above the limit at step {number}"
        if number == plan.lines // 3 and job == 1:
            text = "needle in the log"
        yield f"{at} stdout F {text}\n".encode()
