"""Builders for tests of the job queue: DGX-like appliances, jobs, and shortcuts through life."""

# ruff: noqa: ANN401 - builders pass any field on

from collections import Counter
from contextlib import nullcontext
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.clock import to_ns
from jobqueue.dispatch.dispatcher import Dispatcher
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.logs.logs import MAX_LOG_BYTES, append_logs
from jobqueue.models import Attempt, Job
from jobqueue.placement.decisions import Action, Decision, in_order
from jobqueue.placement.gangs import decide_all
from jobqueue.placement.plan import Planner
from jobqueue.placement.views import ApplianceView, GPUView, JobView, RunningJob, Snapshot
from jobqueue.queue.service import submit_job
from protocol.attempts import AttemptObservation, LogAck, LogChunk, ObservedState
from protocol.job_spec import JobRequest
from tenants.models import Appliance, Tenant, User
from tests.cast import BOX, NOON, Cast, make_appliance, scope_of

GIB = 1024**3


def gpu_uuid(name: str, index: int) -> str:
    """The UUID of a GPU of the appliance called `name`."""
    return f"GPU-{name}-{index}"


def appliance(name: str, *, gpus: int = 8, **changes: Any) -> ApplianceView:
    """An online appliance with idle GPUs of 80 GiB, 64 cores and 512 GiB; its id is its name."""
    fields: dict[str, Any] = {
        "id": name,
        "name": name,
        "executors": ("docker",),
        "cpus": 64.0,
        "memory_bytes": 512 * GIB,
        "gpus": tuple(GPUView(gpu_uuid(name, index), 80 * GIB) for index in range(gpus)),
    }
    return ApplianceView(**(fields | changes))


def busy(name: str, *, free_gpus: int = 0, **changes: Any) -> ApplianceView:
    """An appliance of eight GPUs of which the last `free_gpus` are free."""
    taken = [gpu_uuid(name, index) for index in range(8 - free_gpus)]
    return appliance(name, running=[RunningJob(job_id=f"on-{name}", gpu_uuids=taken)], **changes)


def job(name: str, **changes: Any) -> JobView:
    """A waiting job for one core and 1 GiB, submitted at noon; its id is its name."""
    fields: dict[str, Any] = {
        "id": name,
        "name": name,
        "submitted_at": NOON,
        "memory_bytes": GIB,
    }
    return JobView(**(fields | changes))


def inventory(name: str, *, gpus: int | list[dict[str, Any]] = 8, **changes: Any) -> dict[str, Any]:
    """The inventory of such an appliance as its agent sends it; `gpus` is a number, or they."""
    fields: dict[str, Any] = {
        "hostname": name,
        "cpu_count": 64,
        "memory_bytes": 512 * GIB,
        "executors": ["docker"],
        "gpus": [
            {
                "index": index,
                "uuid": gpu_uuid(name, index),
                "model": "NVIDIA H100 80GB HBM3",
                "memory_bytes": 80 * GIB,
            }
            for index in range(gpus)
        ]
        if isinstance(gpus, int)
        else gpus,
    }
    return fields | changes


def add_appliance(session: Session, tenant: Tenant, name: str, **changes: Any) -> Appliance:
    """Add an online appliance with that inventory."""
    return make_appliance(session, tenant, name, inventory=inventory(name, **changes))


def submit(session: Session, user: User, name: str = "train", **changes: Any) -> Job:
    """Submit a job at noon."""
    fields: dict[str, Any] = {"name": name, "image": "python:3.13"}
    return submit_job(session, scope_of(user), JobRequest(**(fields | changes)), box=BOX, now=NOON)


def dispatch(session: Session, *, now: datetime) -> Counter[Action]:
    """Place the waiting jobs of all tenants in the session's transaction."""
    dispatcher = Dispatcher(lambda: nullcontext(session))
    done = dispatcher.cycle(now=now)
    while dispatcher.is_behind:
        done += dispatcher.cycle(now=now)
    # It has expired what the session had read, and the cast outlives the session.
    session.scalars(select(Tenant)).all()
    return done


def start(session: Session, cast: Cast, **changes: Any) -> Attempt:
    """Add an appliance, submit a job of Alice's and dispatch it; return its attempt."""
    add_appliance(session, cast.acme, "dgx-01")
    submitted = submit(session, cast.alice, **changes)
    dispatch(session, now=NOON)
    session.refresh(submitted)
    assert submitted.attempt is not None
    return submitted.attempt


def observed(attempt: Attempt, state: ObservedState, **changes: Any) -> AttemptObservation:
    """Return the appliance's observation of an attempt."""
    return AttemptObservation(attempt_id=attempt.id, state=state, **changes)


def report(session: Session, attempt: Attempt, state: ObservedState, **changes: Any) -> int:
    """Let the attempt's own appliance report it, a minute past noon."""
    now = NOON.replace(minute=1)
    seen = [observed(attempt, state, **changes)]
    moved = apply_report(session, attempt.appliance_id, seen, now=now)
    session.refresh(attempt)
    session.refresh(attempt.job)
    return moved


def noon_ns(*, plus_seconds: int = 0) -> int:
    """Nanoseconds of noon and some seconds."""
    return to_ns(NOON) + plus_seconds * 1_000_000_000


def append_log(
    session: Session,
    attempt: Attempt,
    data: bytes,
    *,
    offset: int = 0,
    max_bytes: int = MAX_LOG_BYTES,
) -> LogAck:
    """Upload a chunk of an attempt's log."""
    chunk = LogChunk(attempt_id=attempt.id, offset=offset, data=data)
    [ack] = append_logs(session, attempt.appliance_id, [chunk], max_bytes=max_bytes, box=BOX)
    return ack


def plan(snapshot: Snapshot) -> list[Decision]:
    """Decide for every waiting job in turn; what one is allocated is not free for the next."""
    planner = Planner(snapshot)
    return [made for job in in_order(snapshot.jobs) for made in decide_all(planner, job)]
