"""Jobs that stop when their GPUs stay idle.

A job's limit is a utilization and a time: it stops when each of its GPUs stays below the
utilization for all of that time. Times without samples are no idleness: after an outage of the
agent nothing stops, and neither does a job with a slice whose activity the driver can't tell.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.clock import NS_PER_SECOND, to_ns
from core.db import SessionFactory, begin_writing, chunked, transaction
from core.quantities import format_duration
from jobqueue.jobs.transitions import move_attempt, record_event
from jobqueue.models import Attempt, Job
from jobqueue.partitions.measures import ACTIVITY, NOT_MEASURABLE, slice_of
from jobqueue.states import AttemptState, Reason
from protocol.gpu_slices import PartitionMode
from tenants.fleet.appliances import bump_generation
from timeseries.store import Aggregate, RangeQuery, Store

# Jobs of one query.
_CHUNK = 200
# Windows of samples in the time of a limit, and the shortest window.
_WINDOWS = 10
_MIN_WINDOW_SECONDS = 30


def stop_idle_jobs(sessions: SessionFactory, store: Store, *, now: datetime) -> int:
    """Stop the running jobs whose GPUs were idle for the time of their limit.

    Returns:
        How many jobs were told to stop.

    Raises:
        StoreUnavailableError: the store is unavailable; nothing stops.
    """
    with transaction(sessions) as session:
        limited = _limited(session, now=now)
    idle = [
        attempt
        for (tenant_id, seconds), attempts in limited.items()
        for chunk in chunked(attempts, _CHUNK)
        for attempt in _idle(store, tenant_id, seconds, chunk, now=now)
    ]
    if not idle:
        return 0
    with transaction(sessions) as session:
        return sum(_stop(session, attempt.id, now=now) for attempt in idle)


def idle_message(job: Job) -> str:
    """Return why a job stopped at its limit."""
    lasting = format_duration(job.idle_gpu_seconds)
    what = "GPU slice" if job.attempt and job.attempt.gpu_slice else "GPUs"
    return f"Its {what} stayed below {job.idle_gpu_percent} % utilization for {lasting}."


def idle_limit_problem(job: Job) -> str:
    """Return why a job may outlast its limit; "" if nothing says so."""
    if job.attempt and job.idle_gpu_seconds and job.attempt.is_on_cluster:
        return "It does not stop, as clusters do not report how jobs use their GPUs."
    own = slice_of(job.attempt.gpu_slice) if job.attempt and job.idle_gpu_seconds else None
    if own is None:
        return ""
    if own.mode is PartitionMode.MIG:
        return f"It only stops where its slice is measured: {NOT_MEASURABLE[own.mode]}."
    return f"It does not stop, as its use of the GPU is not measurable: {NOT_MEASURABLE[own.mode]}."


def _limited(session: Session, *, now: datetime) -> dict[tuple[str, int], list[Attempt]]:
    """Return the running attempts that may be idle, by tenant and time of the limit."""
    statement = select(Attempt).where(
        Attempt.state == AttemptState.RUNNING,
        Attempt.stop_reason.is_(None),
        Attempt.job_id == Job.id,
        Job.idle_gpu_seconds > 0,
        Job.stop_requested_at.is_(None),
    )
    attempts: dict[tuple[str, int], list[Attempt]] = defaultdict(list)
    for attempt in session.scalars(statement.order_by(Attempt.id)).unique():
        seconds = attempt.job.idle_gpu_seconds
        if attempt.started_at and attempt.started_at <= now - timedelta(seconds=seconds):
            attempts[attempt.tenant_id, seconds].append(attempt)
    return attempts


def _idle(
    store: Store, tenant_id: str, seconds: int, attempts: Sequence[Attempt], *, now: datetime
) -> Iterator[Attempt]:
    step_ns = max(_MIN_WINDOW_SECONDS, seconds // _WINDOWS) * NS_PER_SECOND
    end_ns = to_ns(now)
    start_ns = end_ns - seconds * NS_PER_SECOND
    query = RangeQuery(
        measurement="gpu",
        fields=("utilization_percent",),
        aggregate=Aggregate.MAX,
        start_ns=start_ns,
        end_ns=end_ns,
        step_ns=step_ns,
        tenants=(tenant_id,),
        filters={"job": tuple(attempt.job_id for attempt in attempts)},
        group_by=("job", "uuid"),
    )
    maxima = store.query_range(query)
    if any(attempt.gpu_slice for attempt in attempts):
        maxima += store.query_range(replace(query, measurement="gpu_slice", fields=(ACTIVITY,)))
    # The windows that are whole: the first and the last one may have no sample.
    window_times = set(range(-(-start_ns // step_ns) * step_ns, end_ns - step_ns + 1, step_ns))
    highest: dict[tuple[str, str], float] = {}
    for series in maxima:
        if series.values and window_times <= set(series.times_ns):
            highest[series.tags["job"], series.tags["uuid"]] = max(series.values)
    for attempt in attempts:
        own = slice_of(attempt.gpu_slice)
        uuids = [own.uuid] if own else attempt.gpu_uuids
        values = [highest.get((attempt.job_id, uuid)) for uuid in uuids]
        limit = attempt.job.idle_gpu_percent
        if values and all(value is not None and value < limit for value in values):
            yield attempt


def _stop(session: Session, attempt_id: str, *, now: datetime) -> bool:
    running = AttemptState.RUNNING
    begin_writing(session)
    # Meanwhile it may have been stopped for another reason, which stays.
    locked = select(Attempt.id).where(Attempt.id == attempt_id, Attempt.stop_reason.is_(None))
    if session.scalar(locked.with_for_update()) is None or not move_attempt(
        session, attempt_id, running, expected={running}, stop_reason=Reason.IDLE_GPU
    ):
        return False
    attempt = session.get_one(Attempt, attempt_id)
    bump_generation(session, attempt.appliance_id)
    record_event(session, attempt.job, message=f"Stopping: {idle_message(attempt.job)}", now=now)
    return True
