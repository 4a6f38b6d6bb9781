"""The queue of lines to forward: filled with what arrives, bounded, and emptied when delivered.

It is in the database, so that any process of the portal fills it in the transaction that stores the
lines. A tenant without forwarding has none.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, exists, func, insert, select, update
from sqlalchemy.orm import Session

from core.ids import new_id
from jobqueue.logs.logs import read_chunks
from jobqueue.models import OWN_APPLIANCE_ID, Attempt
from logs.models import ForwardBatch, LogForward
from protocol.attempts import LogAck, LogChunk


def queue_lines(session: Session, batches: Sequence[Mapping[str, Any]]) -> None:
    """Queue lines of an appliance, as rows of `LogBatch`."""
    if batches and has_forwards(session, batches[0]["tenant_id"]):
        names = ("tenant_id", "appliance_id", "line_count", "size_bytes", "data")
        rows = [
            {"id": new_id(), "created_at": batch["received_at"]}
            | {name: batch[name] for name in names}
            for batch in batches
        ]
        session.execute(insert(ForwardBatch), rows)


def queue_output(
    session: Session,
    chunks: Sequence[LogChunk],
    acks: Sequence[LogAck],
    *,
    now: datetime,
) -> None:
    """Queue what was stored of the output of attempts."""
    stored = {
        chunk.attempt_id: (chunk.offset, ack.next_offset)
        for chunk, ack in zip(chunks, acks, strict=True)
        # A chunk at another offset was not stored.
        if chunk.offset < ack.next_offset <= chunk.offset + len(chunk.data)
    }
    if not stored:
        return
    # Those of a rented appliance are of other tenants than it.
    has_forward = exists().where(LogForward.tenant_id == Attempt.tenant_id, LogForward.is_enabled)
    columns = (Attempt.id, Attempt.tenant_id, Attempt.job_id, Attempt.number)
    attempts = session.execute(
        select(*columns, OWN_APPLIANCE_ID.label("appliance_id")).where(
            Attempt.id.in_(stored), has_forward
        )
    )
    for attempt in attempts.all():
        offset, end = stored[attempt.id]
        data = read_chunks(session, attempt.id, offset=offset, limit=end - offset)
        session.add(
            ForwardBatch(
                tenant_id=attempt.tenant_id,
                appliance_id=attempt.appliance_id or "",
                job_id=attempt.job_id,
                attempt_number=attempt.number,
                offset=offset,
                created_at=now,
                line_count=data.count(b"\n"),
                size_bytes=len(data),
                data=data.decode(errors="replace"),
            )
        )


def has_forwards(session: Session, tenant_id: str) -> bool:
    """Return whether lines of a tenant are forwarded."""
    statement = select(LogForward.id).where(
        LogForward.tenant_id == tenant_id, LogForward.is_enabled
    )
    return session.scalar(statement.limit(1)) is not None


def trim_queue(session: Session, *, max_bytes: int) -> int:
    """Delete what all targets have, and the oldest above a tenant's bound; return how many lines.

    Lines that are dropped are counted by the targets that did not have them.
    """
    total = func.sum(ForwardBatch.size_bytes)
    sizes = select(ForwardBatch.tenant_id, total).group_by(ForwardBatch.tenant_id)
    dropped = 0
    for tenant_id, size in session.execute(sizes).all():
        positions = select(func.min(LogForward.position)).where(
            LogForward.tenant_id == tenant_id, LogForward.is_enabled
        )
        delivered_to = session.scalar(positions)
        _delete_until(session, tenant_id, "~" if delivered_to is None else delivered_to)
        dropped += _drop_excess(session, tenant_id, int(size) - max_bytes)
    return dropped


def _drop_excess(session: Session, tenant_id: str, excess: int) -> int:
    of_tenant = ForwardBatch.tenant_id == tenant_id
    columns = (ForwardBatch.id, ForwardBatch.size_bytes, ForwardBatch.line_count)
    until, lines = "", 0
    if excess > 0:
        for row in session.execute(select(*columns).where(of_tenant).order_by(ForwardBatch.id)):
            if excess <= 0:
                break
            until, lines, excess = row.id, lines + row.line_count, excess - row.size_bytes
    if until:
        behind = update(LogForward).where(
            LogForward.tenant_id == tenant_id, LogForward.is_enabled, LogForward.position < until
        )
        values = {"dropped_lines": LogForward.dropped_lines + lines, "position": until}
        session.execute(behind.values(values), execution_options={"synchronize_session": False})
        _delete_until(session, tenant_id, until)
    return lines


def _delete_until(session: Session, tenant_id: str, until: str) -> None:
    statement = delete(ForwardBatch).where(
        ForwardBatch.tenant_id == tenant_id, ForwardBatch.id <= until
    )
    session.execute(statement, execution_options={"synchronize_session": False})
