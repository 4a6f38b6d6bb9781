"""Placement of jobs: one placement on a large fleet, and a long queue through the real database.

    python -m benchmarks.placement [--quick] [--output FILE]

*One placement* asks a planner for job after job, with shapes that repeat and with shapes that are
all different. *The queue* lies in SQLite and in MariaDB: the dispatcher of the scheduler places it,
in its own transactions. The simulated appliances end all that runs whenever nothing more fits; that
part is not timed. A decision is a job that starts, or is bound to an appliance. Memory is that of
the whole process.
"""

import random
import resource
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from sqlalchemy import Engine, event, insert, select, update
from sqlalchemy.orm import Session

from benchmarks.figures import Promise, document, percentile, write_document
from benchmarks.mariadb import mariadb
from core.clock import utc_now
from core.db import SessionFactory, create_database_engine, create_session_factory, transaction
from core.ids import new_id
from core.migrations import upgrade_database
from jobqueue.dispatch.dispatcher import Dispatcher
from jobqueue.models import Attempt, Job
from jobqueue.placement.plan import Action, Planner
from jobqueue.placement.policies import POLICY_NAMES
from jobqueue.placement.views import ApplianceView, GPUView, JobView, Snapshot
from jobqueue.states import ALLOCATED_STATES, AttemptState, JobState
from protocol.job_spec import JobKind
from tenants.models import Appliance, ApplianceState
from tenants.tenants import create_tenant

GIB = 1024**3
GPUS = 8
MOST_MILLISECONDS = 5.0
LEAST_DECISIONS_PER_SECOND = 1_000.0
_CHUNK = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The size of the fleet, the number of single placements, and the length of the queue."""

    appliances: int
    placements: int
    jobs: int


FULL = Plan(appliances=10_000, placements=2_000, jobs=100_000)
QUICK = Plan(appliances=500, placements=100, jobs=2_000)


def measure(plan: Plan) -> dict[str, object]:
    """Place jobs; return the document."""
    started_at = utc_now()
    single = {
        policy: {
            kind: _placements(plan, policy, are_alike=kind == "alike")
            for kind in ("alike", "different")
        }
        for policy in POLICY_NAMES
    }
    with TemporaryDirectory(prefix="vedette-bench-") as name:
        folder = Path(name)
        queue = {"sqlite": _drain(f"sqlite:///{folder / 'queue.db'}", plan)}
        with mariadb(folder) as server:
            queue["mariadb"] = _drain(server.database("queue"), plan)
    return document(
        "placement",
        started_at=started_at,
        settings=asdict(plan),
        results={"placement": single, "queue": queue},
        promises=[*_single_promises(single), *_queue_promises(queue)],
    )


def _single_promises(
    single: Mapping[str, Mapping[str, Mapping[str, float]]],
) -> Iterator[Promise]:
    for policy, kinds in single.items():
        for kind, figures in kinds.items():
            yield Promise(
                name=f"one placement, {policy}, jobs {kind}, median",
                bound=MOST_MILLISECONDS,
                unit="ms",
                measured=figures["milliseconds"],
            )


def _queue_promises(queue: Mapping[str, Mapping[str, float]]) -> Iterator[Promise]:
    for database, figures in queue.items():
        yield Promise(
            name=f"time of {LEAST_DECISIONS_PER_SECOND:.0f} decisions, {database}",
            bound=1.0,
            unit="s",
            measured=LEAST_DECISIONS_PER_SECOND / figures["decisions_per_second"],
        )


def _placements(plan: Plan, policy: str, *, are_alike: bool) -> dict[str, float]:
    chosen = random.Random(1)  # noqa: S311 - a benchmark
    views = [_view(number) for number in range(plan.appliances)]
    jobs = [
        JobView(
            id=f"{number:08}", name="job", submitted_at=utc_now(), **_request(chosen, are_alike)
        )
        for number in range(plan.placements)
    ]
    began = time.perf_counter()
    planner = Planner(
        Snapshot(
            now=utc_now(),
            appliances=views,
            jobs=jobs,
            policy=policy,
            workload=[(job.shape, 1.0) for job in jobs[:100]],
        )
    )
    built = time.perf_counter() - began
    took = []
    for job in jobs:
        began = time.perf_counter()
        planner.decide(job)
        took.append(1000 * (time.perf_counter() - began))
    return {
        "milliseconds": statistics.median(took),
        "milliseconds_p95": percentile(took, 95) or 0.0,
        "milliseconds_of_the_snapshot": 1000 * built,
    }


def _request(chosen: random.Random, are_alike: bool) -> dict[str, Any]:  # noqa: FBT001 - one caller
    memory_bytes = 16 * GIB if are_alike else chosen.randrange(GIB, 64 * GIB)
    return {
        "gpus": chosen.choice([1, 1, 1, 1, 2, 2, 4, 8]),
        "cpus": float(chosen.choice([4, 8, 16])),
        "memory_bytes": memory_bytes,
    }


def _view(number: int) -> ApplianceView:
    name = f"gpu-{number:05}"
    return ApplianceView(
        id=name,
        name=name,
        executors=("simulated",),
        cpus=128.0,
        memory_bytes=1024 * GIB,
        gpus=[GPUView(f"{name}-{slot}", 80 * GIB, model="H100") for slot in range(GPUS)],
    )


class _Locks:
    """The time for which each transaction excluded other writers."""

    def __init__(self, engine: Engine) -> None:
        self.seconds = [0.0]
        self._began = 0.0
        event.listen(engine, "before_cursor_execute", self._note)

    def _note(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not self._began and not statement.startswith("SELECT"):
            self._began = time.perf_counter()

    @contextmanager
    def transaction(self, sessions: SessionFactory) -> Iterator[Session]:
        """Open a transaction and note its length."""
        self._began = 0.0
        with transaction(sessions) as session:
            yield session
        if self._began:
            self.seconds.append(time.perf_counter() - self._began)


def _drain(url: str, plan: Plan) -> dict[str, float]:
    engine = create_database_engine(url)
    upgrade_database(engine)
    sessions = create_session_factory(engine)
    with transaction(sessions) as session:
        _fill(session, plan, utc_now())
    locks = _Locks(engine)
    dispatcher = Dispatcher(lambda: locks.transaction(sessions))
    decisions, rounds, took, cpu_seconds = 0, 0, [], 0.0
    while True:
        began, cpu_began = time.perf_counter(), time.process_time()
        done = dispatcher.cycle(now=utc_now())
        took.append(time.perf_counter() - began)
        cpu_seconds += time.process_time() - cpu_began
        changed = done[Action.ASSIGN] + done[Action.BIND]
        decisions += changed
        if changed or dispatcher.is_behind:
            continue
        with transaction(sessions) as session:
            if not _end_all(session):
                break
        rounds += 1
    engine.dispose()
    return {
        "jobs": plan.jobs,
        "decisions": decisions,
        "decisions_per_second": decisions / sum(took),
        "decisions_per_cpu_second": decisions / cpu_seconds,
        "seconds": sum(took),
        "cpu_seconds": cpu_seconds,
        "cycles": len(took),
        "cycle_seconds_max": max(took),
        "write_transactions": len(locks.seconds) - 1,
        "write_transaction_seconds_max": max(locks.seconds),
        "times_that_all_ended": rounds,
        "resident_mebibytes_max": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _end_all(session: Session) -> bool:
    """End all that runs; return whether anything ran."""
    ran = session.scalar(select(Attempt.id).where(Attempt.state.in_(ALLOCATED_STATES)).limit(1))
    now = utc_now()
    for model, state in ((Attempt, AttemptState.SUCCEEDED), (Job, JobState.SUCCEEDED)):
        running = [allocated_state.value for allocated_state in ALLOCATED_STATES]
        ended = update(model).where(model.state.in_(running))
        session.execute(
            ended.values(state=state, finished_at=now),
            execution_options={"synchronize_session": False},
        )
    return ran is not None


def _fill(session: Session, plan: Plan, now: datetime) -> None:
    tenant_id = create_tenant(session, slug="acme", name="Acme", now=now).id
    chosen = random.Random(2)  # noqa: S311 - a benchmark
    appliances = [_appliance(tenant_id, number, now) for number in range(plan.appliances)]
    jobs = [
        {
            "id": new_id(),
            "tenant_id": tenant_id,
            "name": f"job-{number}",
            "kind": JobKind.BATCH,
            "image": "acme/train:1",
            "state": JobState.SUBMITTED,
            "submitted_at": now + timedelta(microseconds=number),
            "queue_at": now + timedelta(microseconds=number),
            **_request(chosen, are_alike=True),
        }
        for number in range(plan.jobs)
    ]
    for model, rows in ((Appliance, appliances), (Job, jobs)):
        for start in range(0, len(rows), _CHUNK):
            session.execute(insert(model), rows[start : start + _CHUNK])


def _appliance(tenant_id: str, number: int, now: datetime) -> dict[str, Any]:
    name = f"gpu-{number:05}"
    gpus = [
        {
            "index": slot,
            "uuid": f"GPU-{number:05}-{slot}",
            "model": "NVIDIA H100 80GB HBM3",
            "memory_bytes": 80 * GIB,
        }
        for slot in range(GPUS)
    ]
    inventory = {
        "hostname": name,
        "cpu_count": 128,
        "memory_bytes": 1024 * GIB,
        "executors": ["simulated"],
        "gpus": gpus,
    }
    return {
        "tenant_id": tenant_id,
        "name": name,
        "state": ApplianceState.ONLINE,
        "secret_hash": f"{number:064}",
        "inventory": inventory,
        "report_id": new_id(),
        "enrolled_at": now,
        "last_seen_at": now,
    }


@click.command()
@click.option("--quick", is_flag=True, help="A small fleet and a short queue.")
@click.option("--output", type=click.Path(path_type=Path))
def main(*, quick: bool, output: Path | None) -> None:
    """Measure placement and print the document."""
    write_document(measure(QUICK if quick else FULL), output)


if __name__ == "__main__":
    main()
