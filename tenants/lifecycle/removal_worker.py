"""Runs removals of tenants step by step, in the scheduler.

Progress is stored in the database. After a crash the current state starts again; each state can
be repeated.
"""

import logging
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Table, and_, delete, exists, false, or_, select, update
from sqlalchemy.orm import Session, aliased

from core.clock import Clock
from core.db import SessionFactory, changed_one, transaction
from core.errors import DatabaseUnavailableError
from tenants.auditing.recording import record
from tenants.lifecycle.archive import Archive, ArchiveInterrupted, TenantLogs, tenant_tables
from tenants.models import (
    AuditEntry,
    AuditHead,
    Membership,
    RemovalState,
    Tenant,
    TenantRemoval,
    User,
)
from timeseries.store import Store

logger = logging.getLogger(__name__)

# Ingestion refuses a closed tenant's agents within seconds; export only after that.
SETTLE = timedelta(seconds=10)
BATCH = 200
# Tables after which the progress is stored: most are empty, and to store it takes longer.
PROGRESS_EVERY = 5


# What a tenant rented is what others earn: these rows remain, without what they tell of its jobs.
_OF_TWO_TENANTS: Mapping[str, Mapping[str, str | None]] = {
    "billing_lines": {"user_id": None, "project_id": None, "job_name": ""},
    "billing_closings": {},
}


def _nothing(_subject: object) -> None:
    """Delete or move nothing, where there is no store of data."""


def _is_free(_session: Session, _tenant_id: str) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remover:
    """The dependencies of a removal.

    Attributes:
        sessions: of the database, with an actor for the audit log.
        store: has the samples.
        logs: has the logs of ended jobs.
        folder: of exports.
        publish: moves an export from there to where all processes find it.
        delete_images: deletes the images of the tenant with a slug.
        delete_data: deletes the stored uploads and results of a tenant.
        forget: removes a tenant's id from what belongs to the platform.
        waits_for: returns what of others a tenant must not be removed before, or "".
        clock: the time.
        is_stopping: whether to stop between two steps.
    """

    sessions: SessionFactory
    store: Store
    logs: TenantLogs
    folder: Path
    delete_images: Callable[[str], object]
    forget: Callable[[Session, str], object]
    clock: Clock
    is_stopping: Callable[[], bool]
    delete_data: Callable[[str], object] = _nothing
    publish: Callable[[Path], object] = _nothing
    waits_for: Callable[[Session, str], str] = _is_free


def run_removals(remover: Remover) -> int:
    """Run all requested removals; return how many finished.

    One that fails stores the reason and is retried by the next call.
    """
    finished = 0
    for removal_id in _pending(remover):
        try:
            finished += _work(remover, removal_id)
        except (ArchiveInterrupted, DatabaseUnavailableError):
            return finished
        except Exception as error:
            logger.exception("removal %s failed", removal_id)
            _store(remover, removal_id, error=str(error)[:2000] or type(error).__name__)
    return finished


def record_removal(
    session: Session,
    removal: TenantRemoval,
    action: str,
    *,
    after: dict[str, Any] | None = None,
    now: datetime,
) -> None:
    """Record an action in the platform's log: the tenant's own log is deleted with it."""
    record(
        session,
        action=action,
        target_kind="tenant",
        target_id=removal.tenant_id,
        target_name=removal.tenant_name,
        tenant_id=None,
        after=after,
        now=now,
    )


def _pending(remover: Remover) -> list[str]:
    settled_at = remover.clock() - SETTLE
    statement = select(TenantRemoval.id).where(
        TenantRemoval.state != RemovalState.REMOVED, TenantRemoval.requested_at <= settled_at
    )
    with transaction(remover.sessions) as session:
        return list(session.scalars(statement.order_by(TenantRemoval.id)))


def _work(remover: Remover, removal_id: str) -> bool:
    """Take the steps of a removal; return whether it is finished, and does not wait."""
    while True:
        with transaction(remover.sessions) as session:
            removal = session.get_one(TenantRemoval, removal_id)
            reason = ""
            if removal.state is RemovalState.EXPORTING:
                reason = remover.waits_for(session, removal.tenant_id)
        if reason:
            _store(remover, removal_id, error=reason)
            return False
        if removal.state is RemovalState.REMOVED:
            return True
        _STEPS[removal.state](remover, removal)
        if remover.is_stopping():
            raise ArchiveInterrupted


def _export(remover: Remover, removal: TenantRemoval) -> None:
    archive = Archive(
        remover.sessions,
        remover.store,
        remover.logs,
        removal.tenant_id,
        is_stopping=remover.is_stopping,
    )
    path = remover.folder / removal.file_name
    size_bytes = archive.write(
        path,
        progress=lambda done, total: _store_progress(remover, removal.id, done=done, total=total),
    )
    remover.publish(path)
    now = remover.clock()
    values = {"exported_at": now, "file_bytes": size_bytes}
    with transaction(remover.sessions) as session:
        if _move(session, removal, RemovalState.DELETING_ROWS, **values):
            record_removal(
                session, removal, "tenant.exported", after={"bytes": size_bytes}, now=now
            )


def _delete_rows(remover: Remover, removal: TenantRemoval) -> None:
    """Delete table by table in batches, so that transactions stay small; the tenant last.

    Images go before it: a new tenant with the same slug would have them.
    """
    remover.delete_images(removal.tenant_slug)
    remover.delete_data(removal.tenant_id)
    _delete_users(remover, removal.tenant_id)
    # Referring tables first.
    tables = tenant_tables()[::-1]
    for done, table in enumerate(tables):
        _store_progress(remover, removal.id, done=done, total=len(tables) + 2)
        own = table.c.tenant_id == removal.tenant_id
        if table.name in _OF_TWO_TENANTS:
            _clear_in_batches(remover, table, own)
            own &= table.c.contract_id.is_(None)
        _delete_in_batches(remover, table, own)
    _store_progress(remover, removal.id, done=len(tables), total=len(tables) + 2)
    entries: Any = AuditEntry.__table__
    _delete_in_batches(remover, entries, entries.c.chain == removal.tenant_id)
    now = remover.clock()
    with transaction(remover.sessions) as session:
        remover.forget(session, removal.tenant_id)
        session.execute(delete(AuditHead).where(AuditHead.chain == removal.tenant_id))
        session.execute(delete(Tenant).where(Tenant.id == removal.tenant_id))
        if _move(session, removal, RemovalState.DELETING_SAMPLES, total=1):
            record_removal(session, removal, "tenant.rows_deleted", now=now)


def _delete_samples(remover: Remover, removal: TenantRemoval) -> None:
    """Delete samples, and logs: only now no ended attempt is left whose log moves to a file."""
    remover.store.delete_tenant(removal.tenant_id)
    remover.logs.delete(removal.tenant_id)
    now = remover.clock()
    with transaction(remover.sessions) as session:
        if _move(session, removal, RemovalState.REMOVED, finished_at=now, done=1, total=1):
            record_removal(session, removal, "tenant.removed", now=now)


_STEPS: dict[RemovalState, Callable[[Remover, TenantRemoval], None]] = {
    RemovalState.EXPORTING: _export,
    RemovalState.DELETING_ROWS: _delete_rows,
    RemovalState.DELETING_SAMPLES: _delete_samples,
}


def _delete_in_batches(remover: Remover, table: Table, where: Any) -> None:  # noqa: ANN401 - any condition
    keys = list(table.primary_key.columns)
    while True:
        if remover.is_stopping():
            raise ArchiveInterrupted
        with transaction(remover.sessions) as session:
            rows = session.execute(select(*keys).where(where).limit(BATCH)).all()
            if not rows:
                return
            matches = [and_(*map(operator.eq, keys, row)) for row in rows]
            if len(keys) == 1:
                matches = [keys[0].in_([row[0] for row in rows])]
            for match in matches:
                session.execute(delete(table).where(match))


def _clear_in_batches(remover: Remover, table: Table, where: Any) -> None:  # noqa: ANN401 - any condition
    """Clear the columns of a table that tell of a tenant's jobs."""
    values = _OF_TWO_TENANTS[table.name]
    told = or_(false(), *(table.c[name].is_distinct_from(value) for name, value in values.items()))
    while values:
        if remover.is_stopping():
            raise ArchiveInterrupted
        with transaction(remover.sessions) as session:
            keys = session.scalars(select(table.c.id).where(where, told).limit(BATCH)).all()
            if not keys:
                return
            session.execute(update(table).where(table.c.id.in_(keys)).values(**values))


def _delete_users(remover: Remover, tenant_id: str) -> None:
    """Delete users who belong to this tenant only and are no operators."""
    other = aliased(Membership)
    elsewhere = exists().where(other.user_id == User.id, other.tenant_id != tenant_id)
    only_here = (
        select(User.id)
        .join(Membership, Membership.user_id == User.id)
        .where(Membership.tenant_id == tenant_id, User.is_operator.is_(False), ~elsewhere)
    )
    users: Any = User.__table__
    _delete_in_batches(remover, users, users.c.id.in_(only_here))


def _move(session: Session, removal: TenantRemoval, state: RemovalState, **values: Any) -> bool:  # noqa: ANN401 - columns
    return changed_one(
        session,
        update(TenantRemoval)
        .where(TenantRemoval.id == removal.id, TenantRemoval.state == removal.state)
        .values(**{"state": state, "error": "", "done": 0, "total": 0, **values}),
    )


def _store_progress(remover: Remover, removal_id: str, *, done: int, total: int) -> None:
    if done % PROGRESS_EVERY == 0 or done >= total - 2:
        _store(remover, removal_id, done=done, total=total)


def _store(remover: Remover, removal_id: str, **values: Any) -> None:  # noqa: ANN401 - columns
    with transaction(remover.sessions) as session:
        session.execute(
            update(TenantRemoval).where(TenantRemoval.id == removal_id).values(**values)
        )
