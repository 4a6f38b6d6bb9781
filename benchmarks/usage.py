"""The usage ledger of many attempts: recorded hour by hour, then recomputed to the same sum.

    python -m benchmarks.usage [--quick] [--output FILE]

Attempts of fifteen minutes on one GPU each begin one after the other over a month; every GPU has a
sample each five minutes, in the embedded store. The ledger is recorded as the scheduler does after
a long outage, then all of it is recomputed, which must append nothing. Both are done with SQLite
and with MariaDB. Memory is that of the whole process.
"""

import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from benchmarks.figures import Promise, document, write_document
from benchmarks.mariadb import mariadb
from core.clock import NS_PER_SECOND, to_ns, utc_now
from core.db import SessionFactory, create_database_engine, create_session_factory, transaction
from core.ids import new_id
from core.migrations import upgrade_database
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState, JobState
from jobqueue.usage.ledger import floor_hour, recompute, record_usage
from jobqueue.usage.measuring import Use
from jobqueue.usage.models import UsageEntry
from protocol.job_spec import JobKind
from tenants.models import Appliance, ApplianceState
from tenants.tenants import create_tenant
from timeseries.open_store import open_store
from timeseries.points import Batch, Point
from timeseries.store import Store

APPLIANCES, GPUS = 64, 8
LENGTH = timedelta(minutes=15)
SAMPLE_SECONDS = 300
_CHUNK = 5_000
_PENDING = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The number of attempts, and the days in which they begin."""

    attempts: int
    days: float


FULL = Plan(attempts=1_000_000, days=30)
QUICK = Plan(attempts=2_000, days=0.25)


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt: its number decides its GPU and its use."""

    job_id: str
    number: int
    began_at: datetime

    @property
    def gpu(self) -> str:
        """The UUID of its GPU."""
        return f"GPU-{self.number % APPLIANCES:03}-{self.number // APPLIANCES % GPUS}"


def measure(plan: Plan) -> dict[str, object]:
    """Record and recompute; return the document."""
    started_at = utc_now()
    with TemporaryDirectory(prefix="vedette-bench-") as name:
        folder = Path(name)
        store = open_store(f"duckdb:///{folder / 'samples.duckdb'}")
        appliances = [new_id() for _ in range(APPLIANCES)]
        tenant_id, runs = new_id(), list(_runs(plan, started_at))
        try:
            _fill_store(store, runs, tenant_id, appliances)
            store.maintain(now_ns=to_ns(utc_now()))
            results = {
                "sqlite": _ledger(
                    f"sqlite:///{folder / 'v.db'}", store, runs, tenant_id, appliances
                )
            }
            with mariadb(folder) as server:
                url = server.database("ledger")
                results["mariadb"] = _ledger(url, store, runs, tenant_id, appliances)
        finally:
            store.close()
    return document(
        "usage",
        started_at=started_at,
        settings=asdict(plan),
        results=results,
        promises=[
            Promise(
                name=f"milliseconds by which a recomputed ledger differs, {database}",
                bound=0.0,
                unit="ms",
                measured=float(figures["difference_milliseconds"]),
            )
            for database, figures in results.items()
        ],
    )


def _runs(plan: Plan, now: datetime) -> Iterator[Run]:
    begin_at = floor_hour(now) - timedelta(days=plan.days, hours=2)
    step = timedelta(days=plan.days) / plan.attempts
    for number in range(plan.attempts):
        yield Run(new_id(), number, begin_at + number * step)


def _fill_store(store: Store, runs: list[Run], tenant_id: str, appliances: list[str]) -> None:
    pending = []
    for start in range(0, len(runs), _CHUNK):
        points = [point for run in runs[start : start + _CHUNK] for point in _points(run)]
        identity = {"tenant": tenant_id, "appliance": appliances[0]}
        pending.append(store.submit(Batch.of(points), identity=identity))
        while len(pending) > _PENDING:
            pending.pop(0).result()
    for future in pending:
        future.result()


def _points(run: Run) -> Iterator[Point]:
    tags = {"gpu": run.gpu[-1], "uuid": run.gpu, "job": run.job_id}
    fields = {"utilization_percent": float(run.number % 101), "power_watts": 250.5}
    for second in range(0, int(LENGTH.total_seconds()), SAMPLE_SECONDS):
        yield Point("gpu", tags, fields, to_ns(run.began_at) + second * NS_PER_SECOND)


def _ledger(
    url: str, store: Store, runs: list[Run], tenant_id: str, appliances: list[str]
) -> dict[str, float]:
    engine = create_database_engine(url)
    upgrade_database(engine)
    sessions = create_session_factory(engine)
    with transaction(sessions) as session:
        _fill(session, runs, tenant_id, appliances)
    now = utc_now()
    began, rows = time.perf_counter(), 0
    while appended := record_usage(sessions, store, now=now):
        rows += appended
    recorded_seconds = time.perf_counter() - began
    before = _sums(sessions)
    began = time.perf_counter()
    hours = list(recompute(sessions, store, since=now - timedelta(days=3650), until=now, now=now))
    recomputed_seconds = time.perf_counter() - began
    difference = _sums(sessions) - before
    engine.dispose()
    return {
        "attempts": len(runs),
        "hours": len(hours),
        "rows": rows,
        "recorded_seconds": recorded_seconds,
        "recomputed_seconds": recomputed_seconds,
        "rows_appended_by_recomputing": sum(appended for _, appended in hours),
        "allocated_gpu_hours": before.allocated_milliseconds / 3_600_000,
        "used_gpu_hours": before.used_milliseconds / 3_600_000,
        "difference_milliseconds": max(abs(figure) for figure in difference.figures),
        "resident_mebibytes_max": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _sums(sessions: SessionFactory) -> Use:
    columns = [func.sum(getattr(UsageEntry, name)) for name in Use.__dataclass_fields__]
    with transaction(sessions) as session:
        return Use(*map(int, session.execute(select(*columns)).one()))


def _fill(session: Session, runs: list[Run], tenant_id: str, appliances: list[str]) -> None:
    now = utc_now()
    create_tenant(session, slug="acme", name="Acme", now=now).id = tenant_id
    session.flush()
    rows = [_appliance(tenant_id, ident, number) for number, ident in enumerate(appliances)]
    session.execute(insert(Appliance), rows)
    for start in range(0, len(runs), _CHUNK):
        chunk = runs[start : start + _CHUNK]
        session.execute(insert(Job), [_job(run, tenant_id) for run in chunk])
        attempts = [_attempt(run, tenant_id, appliances) for run in chunk]
        session.execute(insert(Attempt), attempts)


def _job(run: Run, tenant_id: str) -> dict[str, Any]:
    return {
        "id": run.job_id,
        "tenant_id": tenant_id,
        "name": "train",
        "kind": JobKind.BATCH,
        "image": "acme/train:1",
        "gpus": 1,
        "memory_bytes": 2**30,
        "state": JobState.SUCCEEDED,
        "submitted_at": run.began_at,
        "queue_at": run.began_at,
        "started_at": run.began_at,
        "finished_at": run.began_at + LENGTH,
    }


def _attempt(run: Run, tenant_id: str, appliances: list[str]) -> dict[str, Any]:
    return {
        "job_id": run.job_id,
        "tenant_id": tenant_id,
        "appliance_id": appliances[run.number % APPLIANCES],
        "number": 1,
        "state": AttemptState.SUCCEEDED,
        "gpu_uuids": [run.gpu],
        "bound_at": run.began_at,
        "assigned_at": run.began_at,
        "started_at": run.began_at,
        "finished_at": run.began_at + LENGTH,
    }


def _appliance(tenant_id: str, ident: str, number: int) -> dict[str, Any]:
    gpus = [
        {
            "index": gpu,
            "uuid": f"GPU-{number:03}-{gpu}",
            "model": "NVIDIA H100 80GB HBM3",
            "memory_bytes": 80 * 2**30,
        }
        for gpu in range(GPUS)
    ]
    return {
        "id": ident,
        "tenant_id": tenant_id,
        "name": f"gpu-{number:03}",
        "state": ApplianceState.ONLINE,
        "secret_hash": f"{number:064}",
        "inventory": {"hostname": f"gpu-{number:03}", "gpus": gpus},
        "enrolled_at": utc_now(),
        "last_seen_at": utc_now(),
    }


@click.command()
@click.option("--quick", is_flag=True, help="Few attempts.")
@click.option("--output", type=click.Path(path_type=Path))
def main(*, quick: bool, output: Path | None) -> None:
    """Measure the ledger and print the document."""
    write_document(measure(QUICK if quick else FULL), output)


if __name__ == "__main__":
    main()
