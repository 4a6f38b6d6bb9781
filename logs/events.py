"""Events of the portal as lines: of appliances, jobs and alerts, and the audit log."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, false, select
from sqlalchemy.orm import Session, joinedload

from alerting.models import Alert, AlertTransition
from alerting.rules.service import alert_conditions
from alerting.states import AlertState, Severity
from core.clock import from_ns, to_ns
from core.db import SessionFactory, transaction
from jobqueue.jobs.gangs import with_gang
from jobqueue.models import JobEvent
from jobqueue.states import JobState
from logs.blocks import Block, block_of_lines
from logs.lines import NUMBER_OF_LEVEL, Source, table_of
from logs.query import LogQuery
from protocol.lines import LogLevel
from tenants.fleet.events import EventKind
from tenants.models import ApplianceEvent, AuditEntry
from tenants.permissions import Permission
from tenants.scope import Scope

BATCH = 1000
# The database stores microseconds.
_MOMENT_NS = 1000
_BAD_EVENTS = {EventKind.FENCED, EventKind.QUARANTINED, EventKind.REVOKED}
_BAD_JOBS = {JobState.FAILED, JobState.LOST}


@dataclass(frozen=True, slots=True)
class EventTable:
    """A table whose rows are events.

    Attributes:
        model: the table, with columns `id`, `at` and `tenant_id`.
        row: returns an event as a line, without its time and source.
        permission: who may read it.
        conditions: of the events of a query's appliance and job.
    """

    model: Any
    row: Callable[[Any], Mapping[str, Any]]
    permission: Permission
    conditions: Callable[[LogQuery], Sequence[ColumnElement[bool]]]


def event_block(
    sessions: SessionFactory, scope: Scope, source: Source, query: LogQuery
) -> list[Block]:
    """Return the blocks of the events of a source, which read a part of them at a time."""
    return [
        _block(_Events(sessions, scope, source, table, query), query.start_ns, query.end_ns)
        for table in EVENT_TABLES[source]
        if scope.allows(table.permission)
    ]


@dataclass(frozen=True, slots=True)
class _Events:
    sessions: SessionFactory
    scope: Scope
    source: Source
    table: EventTable
    query: LogQuery


def _block(events: _Events, start_ns: int, end_ns: int) -> Block:
    """Return the block of the events of a time range."""

    def load(_columns: Sequence[str]) -> Sequence[Block]:
        with transaction(events.sessions) as session:
            rows = _rows(session, events, from_ns(start_ns), from_ns(end_ns))
            has_rest = len(rows) == BATCH
            last_at = rows[-1].at if has_rest else None
            # Those of the last moment follow with the rest, unless all are of one moment.
            rows = [row for row in rows if row.at != last_at] or rows
            lines = table_of(
                {"at": to_ns(row.at), "source": events.source.value} | dict(events.table.row(row))
                for row in rows
            )
        blocks = [block for block in [block_of_lines(lines)] if block is not None]
        if not has_rest:
            return blocks
        if events.query.is_oldest_first:
            return [*blocks, _block(events, blocks[0].last_ns + _MOMENT_NS, end_ns)]
        return [*blocks, _block(events, start_ns, blocks[0].first_ns)]

    return Block(start_ns, end_ns, load)


def _rows(session: Session, events: _Events, start_at: datetime, end_at: datetime) -> list[Any]:
    """Return up to `BATCH` events in the order of the query."""
    model, scope = events.table.model, events.scope
    conditions = events.table.conditions(events.query)
    statement = select(model).where(model.at >= start_at, model.at < end_at, *conditions)
    if model is AlertTransition:
        statement = statement.join(Alert, Alert.id == AlertTransition.alert_id).options(
            joinedload(AlertTransition.alert)
        )
    if model is not AuditEntry:
        statement = scope.select(statement, model)
    elif scope.tenant_id:
        statement = statement.where(AuditEntry.chain == scope.tenant_id)
    newest_first = (model.at.desc(), model.id.desc())
    order = (model.at, model.id) if events.query.is_oldest_first else newest_first
    return list(session.scalars(statement.order_by(*order).limit(BATCH)).unique())


def _appliance_event(event: ApplianceEvent) -> Mapping[str, Any]:
    is_bad = event.kind in {kind.value for kind in _BAD_EVENTS} or (
        event.kind == EventKind.STATE.value and "lost" in event.message
    )
    level = LogLevel.WARNING if is_bad else LogLevel.INFO
    return {
        "level": NUMBER_OF_LEVEL[level],
        "appliance": event.appliance_id,
        "unit": "appliance",
        "event": event.kind,
        "text": event.message,
    }


def _job_event(event: JobEvent) -> Mapping[str, Any]:
    level = LogLevel.ERROR if event.state in _BAD_JOBS else LogLevel.INFO
    reason = event.reason.value.replace("_", " ")
    words = [f"job {event.state.value}", f"({reason})" if reason not in {"", "none"} else ""]
    text = " ".join(filter(None, [*words, event.message]))
    return {
        "level": NUMBER_OF_LEVEL[level],
        "job": event.job_id,
        "unit": "job",
        "event": event.state.value,
        "text": text,
    }


def _transition(transition: AlertTransition) -> Mapping[str, Any]:
    alert = transition.alert
    level = LogLevel.INFO
    if transition.to_state is AlertState.FIRING:
        is_critical = transition.severity is Severity.CRITICAL
        level = LogLevel.CRITICAL if is_critical else LogLevel.WARNING
    value = "" if transition.value is None else f", value {transition.value:g}"
    labels = " ".join(f"{name}={text}" for name, text in alert.tags.items())
    return {
        "level": NUMBER_OF_LEVEL[level],
        "appliance": alert.tags.get("appliance", ""),
        "unit": "alert",
        "event": transition.to_state.value,
        "subject": alert.id,
        "text": f"{alert.rule.name} {transition.to_state.value}{value} {labels}".strip(),
    }


def _audit_entry(entry: AuditEntry) -> Mapping[str, Any]:
    return {
        "unit": "audit",
        "event": entry.action,
        "text": f"{entry.actor_name} {entry.action} {entry.target_name}".strip(),
    }


def _of_appliance(query: LogQuery) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [false()] if query.job_id else []
    if query.appliance_id:
        conditions.append(ApplianceEvent.appliance_id == query.appliance_id)
    return conditions


def _of_job(query: LogQuery) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [false()] if query.appliance_id else []
    if query.job_id:
        conditions.append(JobEvent.job_id.in_(with_gang(query.job_id, rank=query.rank)))
    return conditions


def _of_alert(query: LogQuery) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [false()] if query.job_id else []
    own = alert_conditions(rule_id=None, severity=None, appliance_id=query.appliance_id or None)
    return [*conditions, *own]


def _of_audit(query: LogQuery) -> list[ColumnElement[bool]]:
    target = query.job_id or query.appliance_id
    return [AuditEntry.target_id == target] if target else []


EVENT_TABLES: Mapping[Source, Sequence[EventTable]] = {
    Source.EVENT: (
        EventTable(ApplianceEvent, _appliance_event, Permission.VIEW, _of_appliance),
        EventTable(JobEvent, _job_event, Permission.VIEW, _of_job),
    ),
    Source.ALERT: (EventTable(AlertTransition, _transition, Permission.VIEW, _of_alert),),
    Source.AUDIT: (EventTable(AuditEntry, _audit_entry, Permission.VIEW_AUDIT, _of_audit),),
}
