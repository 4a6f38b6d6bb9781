"""The work of a tenant's removal, step by step, by the scheduler.

How far it is, is kept in the database: whoever goes on after a crash begins the present state
anew, and each can be repeated.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Table, and_, delete, exists, select, update
from sqlalchemy.orm import Session, aliased

from core.clock import Clock
from core.db import Base, SessionFactory, transaction
from tenants.audit import record
from tenants.customers.archive import Archive, Stopped
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

# Doors forget a closed tenant's agents within seconds; nothing is exported before they did.
SETTLE = timedelta(seconds=10)
BATCH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Remover:
    """What the work needs.

    Attributes:
        sessions: the database, with an actor for the audit log.
        store: where the samples are.
        folder: where exports are put.
        clock: the time.
        is_stopping: asked now and then; the work is left where it is as soon as it says so.
    """

    sessions: SessionFactory
    store: Store
    folder: Path
    clock: Clock
    is_stopping: Callable[[], bool]


def work_removals(remover: Remover) -> int:
    """Work every removal that is asked for to its end; return how many were finished.

    One that fails is left where it is, with the reason, and begun again by the next call.
    """
    finished = 0
    for removal_id in _waiting(remover):
        try:
            _work(remover, removal_id)
            finished += 1
        except Stopped:
            return finished
        except Exception as error:
            logger.exception("the removal %s did not get on", removal_id)
            _note(remover, removal_id, error=str(error)[:2000] or type(error).__name__)
    return finished


def tell(
    session: Session,
    removal: TenantRemoval,
    action: str,
    *,
    after: dict[str, Any] | None = None,
    now: datetime,
) -> None:
    """Tell of it in the platform's log: the tenant's own goes with the tenant."""
    record(
        session, action=action, target_kind="tenant", target_id=removal.tenant_id,
        target_name=removal.tenant_name, tenant_id=None, after=after, now=now,
    )  # fmt: skip


def _waiting(remover: Remover) -> list[str]:
    settled_at = remover.clock() - SETTLE
    statement = select(TenantRemoval.id).where(
        TenantRemoval.state != RemovalState.REMOVED, TenantRemoval.requested_at <= settled_at
    )
    with transaction(remover.sessions) as session:
        return list(session.scalars(statement.order_by(TenantRemoval.id)))


def _work(remover: Remover, removal_id: str) -> None:
    while True:
        with transaction(remover.sessions) as session:
            removal = session.get_one(TenantRemoval, removal_id)
        if removal.state is RemovalState.REMOVED:
            return
        _STEPS[removal.state](remover, removal)
        if remover.is_stopping():
            raise Stopped


def _export(remover: Remover, removal: TenantRemoval) -> None:
    archive = Archive(
        remover.sessions, remover.store, removal.tenant_id, is_stopping=remover.is_stopping
    )
    size_bytes = archive.write(
        remover.folder / removal.file_name,
        progress=lambda done, total: _note(remover, removal.id, done=done, total=total),
    )
    now = remover.clock()
    values = {"exported_at": now, "file_bytes": size_bytes}
    with transaction(remover.sessions) as session:
        if _move(session, removal, RemovalState.DELETING_ROWS, **values):
            tell(session, removal, "tenant.exported", after={"bytes": size_bytes}, now=now)


def _delete_rows(remover: Remover, removal: TenantRemoval) -> None:
    """Delete table by table, in pieces, so that no transaction gets large; the tenant last."""
    _delete_people(remover, removal.tenant_id)
    tables = list(_tables())
    for done, table in enumerate(tables):
        _note(remover, removal.id, done=done, total=len(tables) + 2)
        _in_pieces(remover, table, table.c.tenant_id == removal.tenant_id)
    _note(remover, removal.id, done=len(tables), total=len(tables) + 2)
    entries: Any = AuditEntry.__table__
    _in_pieces(remover, entries, entries.c.chain == removal.tenant_id)
    now = remover.clock()
    with transaction(remover.sessions) as session:
        session.execute(delete(AuditHead).where(AuditHead.chain == removal.tenant_id))
        session.execute(delete(Tenant).where(Tenant.id == removal.tenant_id))
        if _move(session, removal, RemovalState.DELETING_SAMPLES, total=1):
            tell(session, removal, "tenant.rows_deleted", now=now)


def _delete_samples(remover: Remover, removal: TenantRemoval) -> None:
    remover.store.delete_tenant(removal.tenant_id)
    now = remover.clock()
    with transaction(remover.sessions) as session:
        if _move(session, removal, RemovalState.REMOVED, finished_at=now, done=1, total=1):
            tell(session, removal, "tenant.removed", now=now)


_STEPS: dict[RemovalState, Callable[[Remover, TenantRemoval], None]] = {
    RemovalState.EXPORTING: _export,
    RemovalState.DELETING_ROWS: _delete_rows,
    RemovalState.DELETING_SAMPLES: _delete_samples,
}


def _tables() -> Iterable[Table]:
    """Yield the tables whose rows belong to tenants, those that refer to others first."""
    kept = {TenantRemoval.__tablename__}
    for table in reversed(Base.metadata.sorted_tables):
        if "tenant_id" in table.c and table.name not in kept:
            yield table


def _in_pieces(remover: Remover, table: Table, where: Any) -> None:  # noqa: ANN401 - any condition
    keys = list(table.primary_key.columns)
    while True:
        if remover.is_stopping():
            raise Stopped
        with transaction(remover.sessions) as session:
            rows = session.execute(select(*keys).where(where).limit(BATCH)).all()
            if not rows:
                return
            for row in _chunks_of_keys(keys, rows):
                session.execute(delete(table).where(row))


def _chunks_of_keys(keys: list[Any], rows: Any) -> Iterable[Any]:  # noqa: ANN401 - SQLAlchemy's
    if len(keys) == 1:
        yield keys[0].in_([row[0] for row in rows])
        return
    for row in rows:
        yield and_(*(key == value for key, value in zip(keys, row, strict=True)))


def _delete_people(remover: Remover, tenant_id: str) -> None:
    """Delete those who belong to this tenant alone and are no operators."""
    other = aliased(Membership)
    elsewhere = exists().where(other.user_id == User.id, other.tenant_id != tenant_id)
    only_here = (
        select(User.id)
        .join(Membership, Membership.user_id == User.id)
        .where(Membership.tenant_id == tenant_id, User.is_operator.is_(False), ~elsewhere)
    )
    while True:
        if remover.is_stopping():
            raise Stopped
        with transaction(remover.sessions) as session:
            found = list(session.scalars(only_here.limit(BATCH)))
            session.execute(
                delete(User).where(User.id.in_(found)),
                execution_options={"synchronize_session": False},
            )
        if not found:
            return


def _move(session: Session, removal: TenantRemoval, state: RemovalState, **values: Any) -> bool:  # noqa: ANN401 - columns
    moved = session.execute(
        update(TenantRemoval)
        .where(TenantRemoval.id == removal.id, TenantRemoval.state == removal.state)
        .values(**{"state": state, "error": "", "done": 0, "total": 0, **values})
    )
    return bool(moved.rowcount)  # type: ignore[attr-defined] # an UPDATE gives a CursorResult


def _note(remover: Remover, removal_id: str, **values: Any) -> None:  # noqa: ANN401 - columns
    with transaction(remover.sessions) as session:
        session.execute(
            update(TenantRemoval).where(TenantRemoval.id == removal_id).values(**values)
        )
