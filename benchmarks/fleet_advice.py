"""Fleet advice for a large tenant: reading four weeks of jobs, and replays with one more appliance.

The jobs of 500 appliances with 8 GPUs run in whole hours; those that arrive on workdays from 9 to
17 waited for up to four hours. Half of the appliances are of another model.
"""

import random
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from benchmarks.shared.document import Outcome, Promise, rounded
from benchmarks.shared.filling import insert_rows
from benchmarks.shared.fleet import GIB, GPUS
from core.db import create_database_engine, create_session_factory, transaction
from core.ids import hash_secret, new_id
from core.migrations import upgrade_database
from jobqueue.advice.additions import add_replays
from jobqueue.advice.child import fleet_figures
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState, JobState
from jobqueue.usage.measuring import Period
from jobqueue.usage.models import UsageEntry, UsageHour
from protocol.job_spec import JobKind
from tenants.models import Appliance, ApplianceState
from tenants.tenants import create_tenant

MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
HOUR = timedelta(hours=1)
UNTIL = datetime(2026, 3, 2, tzinfo=UTC)
SINCE = UNTIL - timedelta(weeks=4)
MOST_SECONDS = 300.0
MOST_MEBIBYTES = 2048.0
_WORKDAYS, _OPENS, _CLOSES = 5, 9, 17
_PART = 20_000
_WHOLE = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The number of appliances with 8 GPUs, and of jobs in four weeks."""

    appliances: int = 500
    jobs: int = 100_000


FULL = Plan()
QUICK = Plan(appliances=20, jobs=2000)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Fill a database, and compute the figures with their replays."""
    engine = create_database_engine(f"sqlite:///{folder / 'vedette.db'}")
    upgrade_database(engine)
    sessions = create_session_factory(engine)
    with transaction(sessions) as session:
        tenant_id = create_tenant(session, name="Acme", slug="acme", now=SINCE).id
        hosts = [_appliance(tenant_id, number) for number in range(plan.appliances)]
        session.add_all(hosts)
        session.add(UsageHour(hour_at=UNTIL - HOUR, recorded_at=UNTIL))
        session.flush()
        places = [(host.id, host.name, MODELS[number % 2]) for number, host in enumerate(hosts)]
    rows = _rows(plan, tenant_id, places)
    while part := list(islice(rows, _PART)):
        with transaction(sessions) as session:
            insert_rows(session, Job, [job for job, _, _ in part])
            insert_rows(session, Attempt, [attempt for _, attempt, _ in part])
            insert_rows(session, UsageEntry, [entry for *_, entries in part for entry in entries])
    figures = _computed(Session(engine), tenant_id)
    engine.dispose()
    return Outcome(
        figures,
        [
            Promise("reading four weeks", figures["read_seconds"], MOST_SECONDS, "s"),
            Promise("replays of them", figures["replay_seconds"], 900.0, "s"),
            Promise("memory", figures["peak_mebibytes"], MOST_MEBIBYTES, "MiB"),
        ],
    )


def _computed(session: Session, tenant_id: str) -> dict[str, float]:
    with session:
        begun, cpu_begun = time.perf_counter(), time.process_time()
        figures = fleet_figures(session, tenant_id, Period(SINCE, UNTIL))
        read_seconds = time.perf_counter() - begun
        begun = time.perf_counter()
        add_replays(session, tenant_id, figures, report=lambda _part: None, now=UNTIL)
        replay_seconds = time.perf_counter() - begun
    return {
        "read_seconds": rounded(read_seconds),
        "replay_seconds": rounded(replay_seconds),
        "cpu_seconds": rounded(time.process_time() - cpu_begun),
        "replays": 1 + len(figures.additions),
        "short_gpu_hours": rounded(sum(float(row.short().sum()) for row in figures.models)),
        "peak_mebibytes": rounded(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def _appliance(tenant_id: str, number: int) -> Appliance:
    name = f"dgx-{number:05}"
    gpus = [
        {"index": at, "uuid": f"GPU-{name}-{at}", "model": MODELS[number % 2]}
        | {"memory_bytes": 80 * GIB}
        for at in range(GPUS)
    ]
    return Appliance(
        tenant_id=tenant_id,
        name=name,
        state=ApplianceState.ONLINE,
        secret_hash=hash_secret(name),
        inventory={
            "hostname": name,
            "cpu_count": 128,
            "memory_bytes": 1024 * GIB,
            "executors": ["docker"],
            "gpus": gpus,
        },
        enrolled_at=SINCE,
    )


def _rows(
    plan: Plan, tenant_id: str, places: list[tuple[str, str, str]]
) -> Iterator[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]]:
    """Yield jobs with their attempts and their rows of the ledger, in the order of submission."""
    drawn = random.Random(1)  # noqa: S311 - a benchmark
    hours = (UNTIL - SINCE) // HOUR - 16
    for number in range(plan.jobs):
        at = SINCE + number * hours // plan.jobs * HOUR
        is_busy = at.weekday() < _WORKDAYS and _OPENS <= at.hour < _CLOSES
        waited = drawn.randrange(5) if is_busy else 0
        gpus, length = drawn.choice((1, 1, 2, 4, 8)), drawn.randrange(1, 10)
        ident, name, model = places[drawn.randrange(len(places))]
        start_at = at + waited * HOUR
        end_at = start_at + length * HOUR
        job_id, attempt_id = new_id(), new_id()
        common = {"tenant_id": tenant_id, "appliance_id": ident}
        job = {
            "id": job_id,
            "tenant_id": tenant_id,
            "name": "train",
            "kind": JobKind.BATCH,
            "image": "acme/train:1",
            "gpus": gpus,
            "gpu_models": [model] if number % 3 == 0 else [],
            "memory_bytes": GIB,
            "state": JobState.SUCCEEDED,
            "submitted_at": at,
            "queue_at": at,
            "finished_at": end_at,
        }
        attempt = common | {
            "id": attempt_id,
            "job_id": job_id,
            "number": 1,
            "state": AttemptState.SUCCEEDED,
            "gpu_uuids": [f"GPU-{name}-{index}" for index in range(gpus)],
            "bound_at": at,
            "assigned_at": start_at,
            "started_at": start_at,
            "finished_at": end_at,
        }
        entry = common | {
            "job_id": job_id,
            "job_name": "train",
            "attempt_id": attempt_id,
            "gpu_model": model,
            "revision": 0,
            "allocated_milliseconds": gpus * _WHOLE,
            "used_milliseconds": gpus * _WHOLE,
            "idle_milliseconds": 0,
            "energy_joules": 0,
            "recorded_at": end_at,
        }
        entries = [
            entry | {"id": new_id(), "hour_at": start_at + hour * HOUR} for hour in range(length)
        ]
        yield job, attempt, entries
