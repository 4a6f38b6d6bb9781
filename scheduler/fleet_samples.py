"""Samples that the portal itself writes, so that rules can watch what only the portal knows.

`appliance_status` is of each appliance in service that is no node of a cluster, by the portal's
clock, and `service_status` of each service that runs on one; `job_queue`, `rule_evaluation` and
`outgoing_messages` are of each tenant, without an appliance. During a mass outage the portal
suspects itself, so that it writes nothing about appliances.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from alerting.models import Rule
from core.clock import to_ns
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState, JobState
from protocol.attempts import Health
from protocol.job_spec import JobKind
from tenants.fleet.liveness import current_outage
from tenants.fleet.states import has_no_connector, in_service
from tenants.lifecycle.message_budgets import ALERTS, MESSAGES, MessageBudgets, sent_messages
from tenants.models import Appliance, ApplianceState
from timeseries.points import Batch, Point
from timeseries.store import APPLIANCE_TAG, TENANT_TAG, Store

NO_BUDGETS = MessageBudgets()
FAILURES_WITHIN = timedelta(hours=1)
_REACHABLE = {
    ApplianceState.ONLINE: 1,
    ApplianceState.STALE: 1,
    ApplianceState.REPORTING: 1,
}
_WAITING = (JobState.SUBMITTED, JobState.QUEUED)

Identity = tuple[str, str]
"""A tenant and, unless "", an appliance."""


def fleet_points(
    session: Session, *, budgets: MessageBudgets = NO_BUDGETS, now: datetime
) -> dict[Identity, list[Point]]:
    """Return the points of appliances and queues by what they are about."""
    points_by_subject: dict[Identity, list[Point]] = {}
    if current_outage(session) is None:
        points_by_subject |= {
            (tenant_id, appliance_id): [Point("appliance_status", {}, fields, to_ns(now))]
            for tenant_id, appliance_id, fields in _appliances(session)
        }
        for identity, tags, fields in _services(session):
            points_by_subject.setdefault(identity, []).append(
                Point("service_status", tags, fields, to_ns(now))
            )
    for tenant_id, fields in _queues(session, now=now):
        points_by_subject[tenant_id, ""] = [Point("job_queue", {}, fields, to_ns(now))]
    for tenant_id, fields in _rules(session):
        points = points_by_subject.setdefault((tenant_id, ""), [])
        points.append(Point("rule_evaluation", {}, fields, to_ns(now)))
    for tenant_id, fields in _messages(session, budgets, now=now):
        points = points_by_subject.setdefault((tenant_id, ""), [])
        points.append(Point("outgoing_messages", {}, fields, to_ns(now)))
    return points_by_subject


def write_fleet(store: Store, points: dict[Identity, list[Point]]) -> None:
    """Write the points; call it outside of any transaction."""
    submitted = []
    for (tenant_id, appliance_id), subject_points in points.items():
        appliance = {APPLIANCE_TAG: appliance_id} if appliance_id else {}
        identity = {TENANT_TAG: tenant_id} | appliance
        submitted.append(store.submit(Batch.of(subject_points), identity=identity))
    for write in submitted:
        write.result()


def _appliances(session: Session) -> Iterable[tuple[str, str, dict[str, float]]]:
    statement = select(
        Appliance.tenant_id,
        Appliance.id,
        Appliance.state,
        Appliance.clock_skew_seconds,
        Appliance.quarantined_at,
    ).where(in_service(), has_no_connector(), Appliance.state != ApplianceState.ENROLLED)
    for tenant_id, appliance_id, state, skew_seconds, began_at in session.execute(statement):
        fields = {
            "reachable": float(_REACHABLE.get(state, 0)),
            "quarantined": float(began_at is not None),
        }
        if skew_seconds is not None and state in _REACHABLE:
            fields["clock_offset_seconds"] = abs(skew_seconds)
        yield tenant_id, appliance_id, fields


def _services(session: Session) -> Iterable[tuple[Identity, dict[str, str], dict[str, float]]]:
    """Yield the services that run on appliances that report; one that starts has no health yet."""
    statement = (
        select(
            Job.tenant_id,
            func.coalesce(Attempt.contract_id, Attempt.appliance_id).label("place_id"),
            Job.id,
            Job.name,
            Job.array_index,
            Attempt.health,
            Attempt.restarts,
        )
        .join(Attempt, Attempt.job_id == Job.id)
        .join(Appliance, Appliance.id == Attempt.appliance_id)
        .where(
            Attempt.state == AttemptState.RUNNING,
            Job.kind == JobKind.SERVICE,
            Appliance.state.in_(_REACHABLE),
        )
    )
    for row in session.execute(statement):
        service = row.name if row.array_index is None else f"{row.name}[{row.array_index}]"
        fields = {"restarts": float(row.restarts)}
        if row.health is not Health.STARTING:
            fields["healthy"] = float(row.health in {Health.HEALTHY, Health.UNKNOWN})
        yield (row.tenant_id, row.place_id), {"job": row.id, "service": service}, fields


def _messages(
    session: Session, budgets: MessageBudgets, *, now: datetime
) -> Iterable[tuple[str, dict[str, float]]]:
    """Yield what tenants sent within their hours, in percent of their budgets."""
    sent = sent_messages(session, now=now)
    for tenant_id in sorted({tenant_id for tenant_id, _ in sent}):
        fields = {
            field: 100 * sent.get((tenant_id, subject), 0) / budgets.limit(subject)
            for field, subject in (("used_percent", MESSAGES), ("alerts_used_percent", ALERTS))
            if budgets.limit(subject)
        }
        if fields:
            yield tenant_id, fields


def _queues(session: Session, *, now: datetime) -> Iterable[tuple[str, dict[str, float]]]:
    waiting = session.execute(
        # A job that was tried again, or a service that was woken, waits since then.
        select(Job.tenant_id, func.count(), func.min(func.coalesce(Job.retry_at, Job.submitted_at)))
        .where(Job.state.in_(_WAITING))
        .group_by(Job.tenant_id)
    )
    queues = {
        tenant_id: {
            "waiting_jobs": float(count),
            "longest_wait_seconds": max(0.0, (now - oldest_at).total_seconds()),
        }
        for tenant_id, count, oldest_at in waiting
    }
    failed = session.execute(
        select(Job.tenant_id, func.count())
        .join(Attempt, Attempt.job_id == Job.id)
        .where(Attempt.state == AttemptState.FAILED, Attempt.finished_at >= now - FAILURES_WITHIN)
        .group_by(Job.tenant_id, Job.id)
    )
    for tenant_id, count in failed:
        fields = queues.setdefault(tenant_id, {})
        fields["failed_attempts"] = max(fields.get("failed_attempts", 0.0), float(count))
    return queues.items()


def _rules(session: Session) -> Iterable[tuple[str, dict[str, float]]]:
    statement = (
        select(
            Rule.tenant_id,
            func.count(),
            func.sum(case((Rule.evaluation_error != "", 1), else_=0)),
            func.sum(Rule.skipped_evaluations),
            func.sum(Rule.query_seconds),
        )
        .where(Rule.is_enabled)
        .group_by(Rule.tenant_id)
    )
    names = ("rules", "failing_rules", "skipped_evaluations", "query_seconds")
    for tenant_id, *values in session.execute(statement):
        yield tenant_id, dict(zip(names, map(float, values), strict=True))
