"""The scheduler's part of services that scale: look at each that is due, decide, and apply.

Each service has a transaction of its own, and the store of samples is asked outside of it. What is
decided at a change, or refused, is an event in the history of the service's first instance.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from core.clock import NS_PER_SECOND, to_ns
from core.db import SessionFactory, begin_writing, transaction
from core.errors import ConflictError, DatabaseUnavailableError
from core.quantities import format_duration
from jobqueue.holds.service import require_no_hold
from jobqueue.jobs.transitions import record_event
from jobqueue.models import Job, ServiceScaler
from jobqueue.partitions.measures import ACTIVITY
from jobqueue.services.autoscaling.decision import Decision, Memory, Observation, decide
from jobqueue.services.autoscaling.instances import is_awake, is_ready, set_awake
from jobqueue.services.autoscaling.traffic import (
    BURST_SECONDS,
    WINDOW_SECONDS,
    Traffic,
    advance,
    read_traffic,
)
from jobqueue.services.scaling import instances_of, is_instance
from jobqueue.states import WAITING, JobState, Reason
from protocol.autoscaling import Autoscaling, ScalingMetric
from timeseries.points import Batch, Point
from timeseries.store import (
    APPLIANCE_TAG,
    TENANT_TAG,
    Aggregate,
    RangeQuery,
    RejectedPoint,
    Store,
    StoreUnavailableError,
)

log = logging.getLogger(__name__)

INTERVAL = timedelta(seconds=15)
# While it wakes, so that its wake-up is measured.
WAKING_INTERVAL = timedelta(seconds=2)
# Services that one pass looks at; of each tenant, the others are due first in the next one.
MAX_SERVICES = 200
# Samples that are older say nothing about now.
SAMPLE_SECONDS = 90
# A service whose instances fail is not given others for this time.
FAILED_WITHIN = timedelta(minutes=10)
MAX_WHY_LENGTH = 500
MEASUREMENT = "service_load"
_STORE_METRICS = frozenset({ScalingMetric.GPU_UTILIZATION, ScalingMetric.SAMPLES})
# An instance that waits for these is about to start.
_STARTS = frozenset({Reason.NONE, Reason.UPDATED})


@dataclass(frozen=True, slots=True)
class _Question:
    """What to ask the store about a service."""

    tenant_id: str
    policy: Autoscaling
    ready_ids: tuple[str, ...]
    has_slices: bool


def scale_services(
    sessions: SessionFactory,
    store: Store,
    *,
    now: datetime,
    is_stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Decide about the services that are due, up to `MAX_SERVICES`; return how many."""
    # Tenants take turns: the many services of a tenant must not delay those of others.
    due_at = ServiceScaler.evaluate_at
    turn = func.row_number().over(partition_by=ServiceScaler.tenant_id, order_by=due_at)
    due = select(ServiceScaler.service_id).where(due_at <= now).order_by(turn, due_at)
    with transaction(sessions) as session:
        service_ids = session.scalars(due.limit(MAX_SERVICES)).all()
    writes: list[Future[list[RejectedPoint]]] = []
    for service_id in service_ids:
        if is_stopping():
            break
        try:
            writes += _scale(sessions, store, service_id, now=now)
        except DatabaseUnavailableError:
            raise
        except Exception:
            # The services of other tenants must not wait for it.
            log.exception("the service %s was not scaled; trying again", service_id)
            later = update(ServiceScaler).where(ServiceScaler.service_id == service_id)
            with transaction(sessions) as session:
                session.execute(later.values(evaluate_at=now + INTERVAL))
    for write in writes:
        try:
            write.result()
        except StoreUnavailableError as error:
            log.warning("the load of services was not stored: %s", error)
            break
    return len(service_ids)


def _scale(
    sessions: SessionFactory, store: Store, service_id: str, *, now: datetime
) -> list[Future[list[RejectedPoint]]]:
    """Decide about a service; return the writes of its samples."""
    with transaction(sessions) as session:
        question = _question(session, service_id)
    load = _ask(store, question, now=now) if question else None
    with transaction(sessions) as session:
        begin_writing(session)
        point = _evaluate(session, service_id, load, now=now)
    if question is None or point is None:
        return []
    return [store.submit(Batch.of([point]), identity={TENANT_TAG: question.tenant_id})]


def policy_of(instances: Sequence[Job]) -> Autoscaling | None:
    """Return how a service scales, of its instances; None if it does not."""
    stored = instances[0].autoscaling if instances else None
    return msgspec.convert(stored, Autoscaling | None)


def _question(session: Session, service_id: str) -> _Question | None:
    stored = session.execute(
        select(Job.tenant_id, Job.autoscaling).where(*is_instance(service_id)).limit(1)
    ).one_or_none()
    if stored is None or stored.autoscaling is None:
        return None
    policy = msgspec.convert(stored.autoscaling, Autoscaling)
    if ScalingMetric(policy.metric) not in _STORE_METRICS:
        return _Question(stored.tenant_id, policy, (), has_slices=False)
    instances = instances_of(session, service_id)
    ready = [instance for instance in instances if is_ready(instance)]
    has_slices = any(instance.attempt and instance.attempt.gpu_slice for instance in ready)
    ready_ids = tuple(instance.id for instance in ready)
    return _Question(stored.tenant_id, policy, ready_ids, has_slices)


def _ask(store: Store, question: _Question, *, now: datetime) -> float | None:
    """Return the load of a metric that is in the store; None if it is not known, or another."""
    metric = ScalingMetric(question.policy.metric)
    if metric not in _STORE_METRICS:
        return None
    if metric is ScalingMetric.SAMPLES:
        measurement, _, field = question.policy.samples.partition(".")
        tags = question.policy.tags
        filters: dict[str, tuple[str, ...]] = {name: (value,) for name, value in tags.items()}
    else:
        measurement, field = "gpu", "utilization_percent"
        if question.has_slices:
            measurement, field = "gpu_slice", ACTIVITY
        filters = {"job": question.ready_ids}
        if not question.ready_ids:
            return 0.0
    end_ns = to_ns(now)
    query = RangeQuery(
        measurement=measurement,
        fields=(field,),
        aggregate=Aggregate.AVG,
        start_ns=end_ns - SAMPLE_SECONDS * NS_PER_SECOND,
        end_ns=end_ns,
        tenants=(question.tenant_id,),
        filters=filters,
        group_by=("job",) if metric is ScalingMetric.GPU_UTILIZATION else (APPLIANCE_TAG,),
    )
    try:
        values = [series.values[-1] for series in store.query_range(query) if series.values]
    except StoreUnavailableError:
        return None
    if not values:
        return None
    if metric is ScalingMetric.SAMPLES:
        return sum(values)
    # An instance without samples yet is used as the others are.
    return sum(values) / len(values) * len(question.ready_ids)


def _evaluate(
    session: Session, service_id: str, load: float | None, *, now: datetime
) -> Point | None:
    scaler = session.get(ServiceScaler, service_id, with_for_update=True)
    if scaler is None or scaler.evaluate_at > now:
        return None
    instances = instances_of(session, service_id)
    policy = policy_of(instances)
    if policy is None:
        session.delete(scaler)
        return None
    traffic = msgspec.convert(scaler.traffic, Traffic)
    traffic = advance(traffic, read_traffic(session, service_id), at=now.timestamp())
    seen = _observation(session, instances, policy, traffic, load, now=now)
    seen = replace(seen, spent=scaler.cost_hold)
    memory = msgspec.convert(scaler.memory, Memory)
    if scaler.woken_at is not None:
        # It may take longer to start than it serves without requests.
        memory.busy_at = now.timestamp()
    decision = decide(policy, memory, seen, now=now)
    decision = _applied(session, instances, seen, decision, now=now)
    _note(session, instances[0], scaler, seen, decision, now=now)
    scaler.memory = msgspec.to_builtins(decision.memory)
    scaler.traffic = msgspec.to_builtins(traffic)
    scaler.load = seen.load
    _note_wake_up(session, instances, scaler, now=now)
    scaler.evaluate_at = now + (INTERVAL if scaler.woken_at is None else WAKING_INTERVAL)
    return _point(instances[0], service_id, seen, decision, traffic, now=now)


def _observation(
    session: Session,
    instances: Sequence[Job],
    policy: Autoscaling,
    traffic: Traffic,
    load: float | None,
    *,
    now: datetime,
) -> Observation:
    awake = sum(map(is_awake, instances))
    metric, burst, is_used = ScalingMetric(policy.metric), load, traffic.is_used
    if metric in {ScalingMetric.REQUESTS_PER_SECOND, ScalingMetric.CONCURRENT_REQUESTS}:
        which = int(metric is ScalingMetric.CONCURRENT_REQUESTS)
        last_minute, last_seconds = traffic.rates(WINDOW_SECONDS), traffic.rates(BURST_SECONDS)
        load = last_minute[which] if last_minute else None
        burst = last_seconds[which] if last_seconds else None
    elif metric is ScalingMetric.SAMPLES:
        is_used = is_used or bool(load)
    return Observation(
        awake=awake,
        ready=sum(map(is_ready, instances)),
        load=load,
        # Utilization has no bursts: GPUs are busy whenever they load a model.
        burst=None if metric is ScalingMetric.GPU_UTILIZATION else burst,
        is_used=is_used,
        obstacle=_obstacle(session, instances, now=now),
    )


def _obstacle(session: Session, instances: Sequence[Job], *, now: datetime) -> str:
    """Return why a service gets no more instances now; "" if nothing says so."""
    for instance in instances:
        if instance.state in WAITING and instance.reason not in _STARTS:
            return f"{instance.title} waits already: {instance.message}"[:MAX_WHY_LENGTH]
    try:
        require_no_hold(session, instances[0])
    except ConflictError as error:
        return error.message
    service_id = instances[0].array_id or instances[0].id
    failed = select(func.max(Job.finished_at)).where(
        or_(Job.id == service_id, Job.array_id == service_id),
        Job.state.in_((JobState.FAILED, JobState.LOST)),
        Job.finished_at > now - FAILED_WITHIN,
    )
    failed_at = session.scalar(failed)
    if failed_at is not None:
        ago = format_duration(round((now - failed_at).total_seconds()))
        return f"an instance failed {ago} ago"
    return ""


def _applied(
    session: Session,
    instances: Sequence[Job],
    seen: Observation,
    decision: Decision,
    *,
    now: datetime,
) -> Decision:
    if decision.wanted == seen.awake:
        return decision
    try:
        set_awake(session, instances, decision.wanted, now=now)
    except ConflictError as error:
        return Decision(
            wanted=seen.awake,
            why=f"{decision.why}; {error.message}",
            memory=decision.memory,
            is_refused=True,
        )
    return decision


def _note(
    session: Session,
    first: Job,
    scaler: ServiceScaler,
    seen: Observation,
    decision: Decision,
    *,
    now: datetime,
) -> None:
    """Note a decision, as an event if it changes something."""
    why = decision.why.rstrip(".")[:MAX_WHY_LENGTH]
    if decision.wanted != seen.awake:
        message = f"Scaled from {seen.awake} to {decision.wanted} instances: {why}."
        record_event(session, first, message=message, now=now)
        scaler.decided_at = now
    elif decision.is_refused and not scaler.is_refused:
        record_event(session, first, message=f"Not scaled up: {why}.", now=now)
    scaler.wanted, scaler.why, scaler.is_refused = decision.wanted, why, decision.is_refused


def _note_wake_up(
    session: Session, instances: Sequence[Job], scaler: ServiceScaler, *, now: datetime
) -> None:
    """Measure how long a wake-up took, once an instance serves."""
    ready = next(filter(is_ready, instances), None)
    if scaler.woken_at is None:
        return
    if ready is None or ready.attempt is None:
        if not any(map(is_awake, instances)):
            scaler.woken_at = None  # its instance has failed, or was stopped
        return
    ready_at = now if ready.health_check else ready.attempt.started_at or now
    scaler.wake_seconds = max(0.0, (ready_at - scaler.woken_at).total_seconds())
    scaler.woken_at = None
    record_event(session, ready, message=f"Awake after {scaler.wake_seconds:.0f} s.", now=now)


def _point(
    first: Job,
    service_id: str,
    seen: Observation,
    decision: Decision,
    traffic: Traffic,
    *,
    now: datetime,
) -> Point:
    fields = {
        "awake_instances": float(seen.awake),
        "ready_instances": float(seen.ready),
        "wanted_instances": float(decision.wanted),
    }
    rates = traffic.rates(BURST_SECONDS)
    if rates is not None:
        fields["requests_per_second"], fields["concurrent_requests"] = rates
    return Point(MEASUREMENT, {"job": service_id, "service": first.name}, fields, to_ns(now))
