"""The processes of the portal: each writes its load every few seconds, for operators."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Unpack

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from core.leases import SCHEDULER_LEASE, Lease
from core.paging import Columns, Page, Paging, list_page
from tenants.models import ServerProcess
from tenants.permissions import Permission
from tenants.scope import Scope

BEAT_SECONDS = 10.0
# Three beats that are missing, and some time for a busy database.
SILENT_AFTER = timedelta(seconds=40)
FORGOTTEN_AFTER = timedelta(hours=1)
PROCESS_SORTS: Columns = {
    "name": ServerProcess.holder,
    "started_at": ServerProcess.started_at,
    "requests_per_second": ServerProcess.requests_per_second,
    "cpu_percent": ServerProcess.cpu_percent,
    "memory_bytes": ServerProcess.memory_bytes,
}


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """A process as operators see it."""

    process: ServerProcess
    is_responding: bool
    is_scheduler: bool

    @property
    def load(self) -> ServerProcess | None:
        """The process, with its load; None if it does not respond: what it wrote is history."""
        return self.process if self.is_responding else None


def note_process(session: Session, process: ServerProcess) -> None:
    """Store the load of a process, and forget those that ended without saying so."""
    # Without a lock on the rows of others, which they write at the same moment.
    is_forgotten = ServerProcess.seen_at < process.seen_at - FORGOTTEN_AFTER
    forgotten = session.scalars(select(ServerProcess.holder).where(is_forgotten)).all()
    session.merge(process)
    if forgotten:
        session.execute(delete(ServerProcess).where(ServerProcess.holder.in_(forgotten)))


def forget_process(session: Session, holder: str) -> None:
    """Remove a process that ends."""
    session.execute(delete(ServerProcess).where(ServerProcess.holder == holder))


def broker_states(session: Session, *, now: datetime) -> Counter[str]:
    """Return how many of the processes that respond have each `BrokerState`."""
    statement = select(ServerProcess.broker, func.count()).group_by(ServerProcess.broker)
    responding = statement.where(ServerProcess.seen_at > now - SILENT_AFTER)
    return Counter(dict(session.execute(responding).all()))


def silent_urls(session: Session, *, now: datetime) -> set[str]:
    """Return the addresses at which only processes were that don't respond any longer."""
    rows = session.execute(select(ServerProcess.url, ServerProcess.seen_at)).all()
    responding = {url for url, seen_at in rows if now - seen_at < SILENT_AFTER}
    return {url for url, _ in rows} - responding


def list_processes(
    session: Session, scope: Scope, *, now: datetime, **paging: Unpack[Paging]
) -> Page[ListedProcess]:
    """Return a page of the processes, by name unless sorted otherwise, for operators."""
    scope.require(Permission.OPERATE)
    lease = session.get(Lease, SCHEDULER_LEASE)
    holder = lease.holder if lease is not None and lease.expires_at > now else None
    page = list_page(
        session, select(ServerProcess), PROCESS_SORTS, last=ServerProcess.holder, **paging
    )
    listed = [
        ListedProcess(process, now - process.seen_at < SILENT_AFTER, process.holder == holder)
        for process in page.items
    ]
    return page.of(listed)
