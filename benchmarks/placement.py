"""Placement of jobs: one placement on a large fleet, and a long queue through the real database.

*One placement* asks a planner for job after job, with shapes that repeat and with shapes that are
all different. *The queue* lies in SQLite and in MariaDB: the dispatcher of the scheduler places it,
in its own transactions; in SQLite also ordered by fair shares of a tree of projects. The simulated
appliances end all that runs whenever nothing fits any more; that part is not timed. A decision is a
job that starts, or is bound to an appliance. Memory is that of the whole process.
"""

import random
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from benchmarks.shared.document import (
    MILLISECONDS,
    Figures,
    Outcome,
    Promise,
    median,
    percentile,
    rounded,
    seconds_of,
)
from benchmarks.shared.filling import appliance_rows, insert_rows
from benchmarks.shared.fleet import GIB, GPUS, name_of
from benchmarks.shared.servers import mariadb
from core.clock import utc_now
from core.db import create_database_engine, create_session_factory, transaction
from core.ids import new_id
from core.migrations import upgrade_database
from jobqueue.dispatch.dispatcher import Dispatcher
from jobqueue.fairshare.settings import OrderPolicy, OrderSettings
from jobqueue.jobs.settings import QueueSettings
from jobqueue.models import Attempt, Job, TenantQueueSettings
from jobqueue.placement.decisions import Action
from jobqueue.placement.plan import Planner
from jobqueue.placement.policies import POLICY_NAMES
from jobqueue.placement.views import ApplianceView, GPUView, JobView, Snapshot
from jobqueue.projects.models import Project
from jobqueue.states import ALLOCATED_STATES, AttemptState, JobState
from protocol.job_spec import JobKind
from tenants.models import Appliance
from tenants.tenants import create_tenant

MOST_MILLISECONDS = 5.0
DECISIONS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The size of the fleet, the number of single placements, and the length of the queue."""

    appliances: int = 10_000
    placements: int = 2_000
    jobs: int = 100_000


FULL = Plan()
QUICK = Plan(appliances=500, placements=100, jobs=2_000)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Place jobs."""
    single = {
        policy: {
            "alike": _placements(plan, policy, least_bytes=16 * GIB),
            "different": _placements(plan, policy, least_bytes=GIB),
        }
        for policy in POLICY_NAMES
    }
    queue = {"sqlite": _drain(f"sqlite:///{folder / 'queue.db'}", plan)}
    queue |= {
        f"sqlite, {policy}": _drain(f"sqlite:///{folder / policy}.db", plan, policy)
        for policy in (OrderPolicy.FAIR_TREE, OrderPolicy.DRF)
    }
    with mariadb(folder / "mariadb") as server:
        queue["mariadb"] = _drain(server.new_database(), plan)
    promises = [
        Promise(
            f"one placement, {policy}, jobs {kind}, median",
            figures["milliseconds"],
            MOST_MILLISECONDS,
            "ms",
        )
        for policy, kinds in single.items()
        for kind, figures in kinds.items()
    ]
    for database, figures in queue.items():
        seconds = DECISIONS / (figures["decisions_per_second"] or 1.0)
        promises.append(Promise(f"time of {DECISIONS} decisions, {database}", seconds, 1.0, "s"))
    return Outcome({"placement": single, "queue": queue}, promises)


def _placements(plan: Plan, policy: str, *, least_bytes: int) -> Figures:
    """Place jobs with at least this much memory; with 16 GiB, all have the same."""
    requests = _requests(random.Random(1), least_bytes=least_bytes)  # noqa: S311 - a benchmark
    jobs = [
        JobView(id=f"{number:08}", name="job", submitted_at=utc_now(), **next(requests))
        for number in range(plan.placements)
    ]
    views = [_view(name_of(number)) for number in range(plan.appliances)]
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
    took = [MILLISECONDS * seconds_of(lambda job=job: planner.decide(job)) for job in jobs]  # type: ignore[misc]
    return {
        "milliseconds": median(took),
        "milliseconds_p95": percentile(took, 95),
        "milliseconds_of_the_snapshot": rounded(MILLISECONDS * built),
    }


def _requests(chosen: random.Random, *, least_bytes: int) -> Iterator[dict[str, Any]]:
    while True:
        yield {
            "gpus": chosen.choice([1, 1, 1, 1, 2, 2, 4, 8]),
            "cpus": float(chosen.choice([4, 8, 16])),
            "memory_bytes": least_bytes
            if least_bytes == 16 * GIB
            else chosen.randrange(least_bytes, 64 * GIB),
        }


def _view(name: str) -> ApplianceView:
    return ApplianceView(
        id=name,
        name=name,
        executors=("simulated",),
        cpus=128.0,
        memory_bytes=1024 * GIB,
        gpus=[GPUView(f"{name}-{slot}", 80 * GIB, model="H100") for slot in range(GPUS)],
    )


def _drain(url: str, plan: Plan, policy: OrderPolicy = OrderPolicy.FIFO) -> Figures:
    engine = create_database_engine(url)
    upgrade_database(engine)
    sessions = create_session_factory(engine)
    with transaction(sessions) as session:
        _fill(session, plan, policy)
    dispatcher = Dispatcher(lambda: transaction(sessions))
    decisions, took, cpu_seconds = 0, [], 0.0
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
    engine.dispose()
    return {
        "decisions": decisions,
        "decisions_per_second": rounded(decisions / sum(took)),
        "decisions_per_cpu_second": rounded(decisions / cpu_seconds),
        "seconds": rounded(sum(took)),
        "cpu_seconds": rounded(cpu_seconds),
        "cycles": len(took),
        "cycle_seconds_max": rounded(max(took)),
        "resident_mebibytes_max": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _end_all(session: Session) -> bool:
    """End all that runs; return whether anything ran."""
    ran = session.scalar(select(Attempt.id).where(Attempt.state.in_(ALLOCATED_STATES)).limit(1))
    running = [allocated_state.value for allocated_state in ALLOCATED_STATES]
    for model, state in ((Attempt, AttemptState.SUCCEEDED), (Job, JobState.SUCCEEDED)):
        ended = update(model).where(model.state.in_(running))
        session.execute(
            ended.values(state=state, finished_at=utc_now()),
            execution_options={"synchronize_session": False},
        )
    return ran is not None


def _fill(session: Session, plan: Plan, policy: OrderPolicy) -> None:
    now = utc_now()
    tenant_id = create_tenant(session, slug="acme", name="Acme", now=now).id
    requests = _requests(random.Random(2), least_bytes=16 * GIB)  # noqa: S311 - a benchmark
    project_ids = _add_projects(session, tenant_id, policy)
    jobs = [
        {
            "id": new_id(),
            "tenant_id": tenant_id,
            "name": f"job-{number}",
            "project_id": project_ids[number % len(project_ids)],
            "kind": JobKind.BATCH,
            "image": "acme/train:1",
            "state": JobState.SUBMITTED,
            "submitted_at": now + timedelta(microseconds=number),
            "queue_at": now + timedelta(microseconds=number),
            **next(requests),
        }
        for number in range(plan.jobs)
    ]
    insert_rows(session, Appliance, list(appliance_rows(tenant_id, plan.appliances, now=now)))
    insert_rows(session, Job, jobs)


def _add_projects(session: Session, tenant_id: str, policy: OrderPolicy) -> list[str | None]:
    """Add ten projects with ten below each, and let the tenant order its queue by their shares."""
    if policy is OrderPolicy.FIFO:
        return [None]
    ordering = asdict(OrderSettings(policy=policy))
    defaults = asdict(QueueSettings()) | {"data_roots": [], "ordering": ordering}
    session.add(TenantQueueSettings(tenant_id=tenant_id, **defaults))
    parents = [_project(tenant_id, f"department-{number}", number) for number in range(10)]
    session.add_all(parents)
    session.flush()
    teams = [
        _project(tenant_id, f"team-{number}", number, parents[number % 10].id)
        for number in range(100)
    ]
    session.add_all(teams)
    session.flush()
    return [team.id for team in teams]


def _project(tenant_id: str, name: str, number: int, parent_id: str | None = None) -> Project:
    return Project(
        tenant_id=tenant_id,
        name=name,
        parent_id=parent_id,
        shares=1 + number % 5,
        created_at=utc_now(),
    )
