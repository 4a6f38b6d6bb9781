"""Jobs and alerts of an appliance, or of one of its GPUs, as bars on the time axis."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.models import Alert, AlertTransition
from alerting.states import AlertState
from core.clock import from_ns, to_ns
from core.quantities import format_duration
from dash_app.charts import Bar
from dash_app.routes import job_path
from dash_app.timerange import Span
from jobqueue.partitions.measures import slice_of
from jobqueue.queue.service import attempts_between
from jobqueue.rentals import RentedJob, listed_job, owner_text
from protocol.clusters import are_requested
from protocol.gpu_slices import GPUSlice, PartitionMode
from tenants.models import Appliance
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG

# Newest first; more would not be told apart.
MAX_BARS = 500
_MAX_TRANSITIONS = 2000
OF_CLUSTER = "GPUs of the cluster"
NO_GPU = "Jobs without GPUs"
ALERTS = "Alerts"


def timeline(
    session: Session,
    scope: Scope,
    appliance: Appliance,
    *,
    gpus: Mapping[str, str],
    span: Span,
    search: str,
) -> tuple[Bar, ...]:
    """Return the bars: a row for each GPU with jobs, and one for alerts.

    Args:
        session: the database session.
        scope: the current scope.
        appliance: the appliance.
        gpus: UUID to index of the GPUs to show; the alerts are those of these and of the host.
        span: the time range.
        search: the query string of the links.
    """
    bars = [
        *_jobs(session, scope, appliance, span, gpus=gpus, search=search),
        *_alerts(session, scope, appliance, set(gpus.values()), span),
    ]
    return tuple(bars[-MAX_BARS:])


def _jobs(
    session: Session,
    scope: Scope,
    appliance: Appliance,
    span: Span,
    *,
    gpus: Mapping[str, str],
    search: str,
) -> Iterator[Bar]:
    start, end = from_ns(span.start_ns), from_ns(span.end_ns)
    lanes = _Lanes()
    for attempt in attempts_between(
        session, scope, appliance.id, start=start, end=end, limit=MAX_BARS, has_rented=True
    ):
        if attempt.started_at is None:
            continue
        start_ns = to_ns(attempt.started_at)
        end_ns = to_ns(attempt.finished_at) if attempt.finished_at else span.end_ns
        job = listed_job(attempt, scope)
        text = f"{job.name}, {owner_text(job)}, {_duration(start_ns, end_ns)}"
        rows = [f"GPU {gpus[uuid]}" for uuid in attempt.gpu_uuids if uuid in gpus]
        if rows and (own := slice_of(attempt.gpu_slice)):
            rows = [f"{rows[0]} {lanes.name(rows[0], own, start_ns, end_ns)}"]
        if not attempt.gpu_uuids and len(gpus) != 1:
            rows = [NO_GPU]
        if not rows and appliance.cluster_kind:
            rows = [attempt.node.name if attempt.node else OF_CLUSTER]
        elif not rows and are_requested(attempt.gpu_uuids):
            rows = [OF_CLUSTER]
        for row in rows:
            yield Bar(
                row=row,
                start_ns=max(start_ns, span.start_ns),
                end_ns=min(end_ns, span.end_ns),
                label=job.name,
                text=text,
                href="" if isinstance(job, RentedJob) else f"{job_path(job.id)}{search}",
            )


class _Lanes:
    """Rows for jobs that share a GPU: that of the first slot under MIG, else any that is free."""

    def __init__(self) -> None:
        self._taken: dict[str, list[tuple[int, int]]] = defaultdict(list)

    def name(self, gpu: str, own: GPUSlice, start_ns: int, end_ns: int) -> str:
        """Return the name of the row of an attempt from one instant to another."""
        if own.mode is PartitionMode.MIG:
            return f"slot {own.start}"
        for number in count(1):
            taken = self._taken[f"{gpu} {number}"]
            if all(end_ns <= since or start_ns >= until for since, until in taken):
                break
        taken.append((start_ns, end_ns))
        return f"share {number}"


def _alerts(
    session: Session, scope: Scope, appliance: Appliance, gpus: set[str], span: Span
) -> Iterator[Bar]:
    """Yield the times for which alerts fired, from their history."""
    statement: Any = (
        select(AlertTransition, Alert)
        .join(Alert, AlertTransition.alert_id == Alert.id)
        .where(Alert.tenant_id == appliance.tenant_id, AlertTransition.at < from_ns(span.end_ns))
        .order_by(AlertTransition.at.desc(), AlertTransition.id.desc())
        .limit(_MAX_TRANSITIONS)
    )
    newest_first = session.execute(scope.select(statement, Alert)).unique().all()
    started: dict[str, tuple[AlertTransition, Alert]] = {}
    is_here = _is_of(appliance.id, gpus)
    for transition, alert in reversed(newest_first):
        if not is_here(alert):
            continue
        before = started.pop(alert.id, None)
        if before is not None:
            yield from _alert_bar(*before, end_ns=to_ns(transition.at), span=span)
        if transition.to_state is AlertState.FIRING:
            started[alert.id] = transition, alert
    for transition, alert in started.values():
        yield from _alert_bar(transition, alert, end_ns=span.end_ns, span=span)


def _is_of(appliance_id: str, gpus: set[str]) -> Callable[[Alert], bool]:
    def is_of(alert: Alert) -> bool:
        gpu = alert.tags.get("gpu")
        return alert.tags.get(APPLIANCE_TAG) == appliance_id and (gpu is None or gpu in gpus)

    return is_of


def _alert_bar(
    transition: AlertTransition, alert: Alert, *, end_ns: int, span: Span
) -> Sequence[Bar]:
    start_ns = to_ns(transition.at)
    if end_ns <= span.start_ns:
        return ()
    where = f" on GPU {alert.tags['gpu']}" if "gpu" in alert.tags else ""
    text = f"{alert.rule.name}{where}, {transition.severity.value}, {_duration(start_ns, end_ns)}"
    return (
        Bar(
            row=ALERTS,
            start_ns=max(start_ns, span.start_ns),
            end_ns=min(end_ns, span.end_ns),
            label=alert.rule.name,
            text=text,
            href=f"/alerts/{alert.id}",
            tone=transition.severity.value,
        ),
    )


def _duration(start_ns: int, end_ns: int) -> str:
    return format_duration((end_ns - start_ns) / 10**9)
