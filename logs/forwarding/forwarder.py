"""The forwarder: takes each target what it does not have yet, in the order of arrival.

A target that fails is tried again with increasing intervals, and delays no other. After a crash,
the lines of its last request are sent again.
"""

import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from alerting.notification.outbox import retry_delay
from alerting.notification.senders.notify import DeliveryError
from core.clock import to_ns
from core.db import SessionFactory, transaction
from jobqueue.models import Job
from logs.forwarding.formats import Line
from logs.forwarding.sending import ForwardSender
from logs.lines import Source, lines_of_batch, lines_of_log
from logs.models import ForwardBatch, LogForward
from protocol.lines import LEVELS
from tenants.models import Appliance

logger = logging.getLogger(__name__)

# Ids are given before a transaction commits: an earlier one may appear later.
SETTLED = timedelta(seconds=5)
BATCH_BYTES = 512 * 1024
BATCH_ROWS = 100
REQUESTS_AT_ONCE = 20
WORKERS = 8


def forward_due(sessions: SessionFactory, sender: ForwardSender, *, now: datetime) -> int:
    """Send to all targets that are due; return how many lines were delivered."""
    statement = select(LogForward).where(LogForward.is_enabled, LogForward.next_try_at <= now)
    with transaction(sessions) as session:
        forwards = list(session.scalars(statement.order_by(LogForward.next_try_at)))
    if not forwards:
        return 0
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="forward") as pool:
        return sum(pool.map(partial(_forward, sessions, sender, now), forwards))


def _forward(
    sessions: SessionFactory, sender: ForwardSender, now: datetime, forward: LogForward
) -> int:
    delivered, position = 0, forward.position
    for _ in range(REQUESTS_AT_ONCE):
        with transaction(sessions) as session:
            batches = _next_batches(session, forward, position, now)
            lines = _lines(session, forward, batches)
        if not batches:
            break
        try:
            refused = sender.send(forward, lines) if lines else 0
        except DeliveryError as error:
            _mark_failed(sessions, forward, error, now=now)
            break
        position = batches[-1].id
        sent = len(lines) - refused
        _mark_sent(sessions, forward, position, sent=sent, refused=refused, now=now)
        delivered += sent
    return delivered


def _next_batches(
    session: Session, forward: LogForward, position: str, now: datetime
) -> list[ForwardBatch]:
    statement = select(ForwardBatch).where(
        ForwardBatch.tenant_id == forward.tenant_id,
        ForwardBatch.id > position,
        ForwardBatch.created_at <= now - SETTLED,
    )
    batches: list[ForwardBatch] = []
    size = 0
    for batch in session.scalars(statement.order_by(ForwardBatch.id).limit(BATCH_ROWS)):
        size += batch.size_bytes
        if batches and size > BATCH_BYTES:
            break
        batches.append(batch)
    return batches


def _lines(session: Session, forward: LogForward, batches: Sequence[ForwardBatch]) -> list[Line]:
    """Return the lines that the target gets, with the names of their appliances and jobs."""
    appliances = _names(session, Appliance, {batch.appliance_id for batch in batches})
    jobs = _names(session, Job, {batch.job_id for batch in batches})
    least = LEVELS.index(forward.minimum_level)
    lines = []
    for batch in batches:
        source = Source.JOB if batch.job_id else Source.APPLIANCE
        if source.value not in forward.sources:
            continue
        for row in _rows(batch):
            if row["level"] < least:
                continue
            service = jobs.get(row["job"], "") or row["unit"]
            lines.append(
                row
                | {
                    "id": _ident(row),
                    "level": LEVELS[row["level"]].value,
                    "job_id": row["job"],
                    "service": service,
                    "appliance_name": appliances.get(row["appliance"], ""),
                }
            )
    return lines


def _rows(batch: ForwardBatch) -> list[dict[str, Any]]:
    if batch.job_id:
        constants = {
            "job": batch.job_id,
            "attempt": batch.attempt_number,
            "appliance": batch.appliance_id,
        }
        table = lines_of_log(
            batch.data.encode(),
            offset=batch.offset,
            default_ns=to_ns(batch.created_at),
            constants=constants,
        )
    else:
        table = lines_of_batch(batch.appliance_id, batch.data)
    times = table["at"].cast(pa.int64()).to_pylist()
    rows = table.drop_columns(["at"]).to_pylist()
    return [row | {"at_ns": at_ns} for at_ns, row in zip(times, rows, strict=True)]


def _ident(row: dict[str, Any]) -> str:
    names = ("at_ns", "sequence", "appliance", "job", "attempt", "text")
    values = repr([row[name] for name in names]).encode()
    return hashlib.blake2b(values, digest_size=16).hexdigest()


def _names(session: Session, model: type[Appliance | Job], ids: set[str]) -> dict[str, str]:
    statement = select(model.id, model.name).where(model.id.in_(ids - {""}))
    return {row.id: row.name for row in session.execute(statement)}


def _mark_sent(
    sessions: SessionFactory,
    forward: LogForward,
    position: str,
    *,
    sent: int,
    refused: int,
    now: datetime,
) -> None:
    values: dict[Any, Any] = {
        "position": position,
        "sent_lines": LogForward.sent_lines + sent,
        "refused_lines": LogForward.refused_lines + refused,
        "failures": 0,
        "last_error": f"The target refused {refused} lines." if refused else "",
    }
    if sent:
        values["last_sent_at"] = now
    _update(sessions, forward, values)


def _mark_failed(
    sessions: SessionFactory, forward: LogForward, error: DeliveryError, *, now: datetime
) -> None:
    logger.warning("forwarding logs to %s failed: %s", forward.name, error.message)
    failures = forward.failures + 1
    wait = max(retry_delay(failures), timedelta(seconds=error.retry_after_seconds))
    values = {"failures": failures, "last_error": error.message, "next_try_at": now + wait}
    _update(sessions, forward, values)


def _update(sessions: SessionFactory, forward: LogForward, values: dict[Any, Any]) -> None:
    """Change the state of a target, which the audit log does not record."""
    statement = update(LogForward).where(LogForward.id == forward.id).values(values)
    with transaction(sessions) as session:
        session.execute(statement, execution_options={"synchronize_session": False})
