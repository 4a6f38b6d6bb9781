"""Runs of backups, verifications and restores, as the database lists them.

A running server makes the backups, because it alone can copy the embedded store's file: a command
requests a run by a row, and the scheduler takes it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from backup.repository import Stored
from core.db import changed_one
from core.leases import SCHEDULER_LEASE, Lease
from core.settings import ServerSettings
from tenants.models import BackupKind, BackupRun, BackupState

RETRY_AFTER = timedelta(minutes=10)
# Runs that are listed on.
_MAX_RUNS = 500
_OPEN = (BackupState.REQUESTED, BackupState.RUNNING)


@dataclass(frozen=True, slots=True)
class BackupStatus:
    """How the backups go.

    Attributes:
        last: the last backup that ended; None before the first.
        last_good: the last one that succeeded.
        last_verification: the last test of a restore.
        since: the time of the data in the last good one, or of the first try before that.
    """

    last: BackupRun | None
    last_good: BackupRun | None
    last_verification: BackupRun | None
    since: datetime | None

    def is_overdue(self, interval: timedelta, *, now: datetime) -> bool:
        """Return whether two backups in a row are missing."""
        return self.since is not None and now - self.since > 2 * interval


def backup_status(session: Session) -> BackupStatus:
    """Return how the backups go."""
    backups = select(BackupRun).where(BackupRun.kind == BackupKind.BACKUP)
    newest = BackupRun.id.desc()
    ended = backups.where(BackupRun.state.not_in(_OPEN)).order_by(newest).limit(1)
    good = backups.where(BackupRun.state == BackupState.DONE).order_by(newest).limit(1)
    verifications = (
        select(BackupRun).where(BackupRun.kind == BackupKind.VERIFICATION).order_by(newest).limit(1)
    )
    last_good = session.scalar(good)
    since = last_good.data_at if last_good is not None else None
    if since is None:
        since = session.scalar(
            select(BackupRun.requested_at)
            .where(BackupRun.kind == BackupKind.BACKUP)
            .order_by(BackupRun.id)
            .limit(1)
        )
    return BackupStatus(session.scalar(ended), last_good, session.scalar(verifications), since)


def request_backup(session: Session, *, now: datetime) -> BackupRun:
    """Request a backup; one that waits already is returned."""
    waiting = select(BackupRun).where(
        BackupRun.kind == BackupKind.BACKUP, BackupRun.state == BackupState.REQUESTED
    )
    run = session.scalar(waiting) or BackupRun(
        kind=BackupKind.BACKUP, state=BackupState.REQUESTED, requested_at=now
    )
    session.add(run)
    session.flush()
    return run


def take_due(session: Session, settings: ServerSettings, *, now: datetime) -> BackupRun | None:
    """Return the backup to make now, which runs from then on; None if none is due.

    One is due when it was requested, or an interval after the last one, or some minutes after it
    failed. What a former process has not ended has failed.
    """
    _end_abandoned(session, now=now)
    waiting = select(BackupRun).where(
        BackupRun.kind == BackupKind.BACKUP, BackupRun.state == BackupState.REQUESTED
    )
    run = session.scalar(waiting.order_by(BackupRun.id))
    if run is None and settings.backup_url and _is_due(session, settings, now=now):
        run = request_backup(session, now=now)
    if run is not None:
        run.state = BackupState.RUNNING
        session.flush()
    return run


def _is_due(session: Session, settings: ServerSettings, *, now: datetime) -> bool:
    last = backup_status(session).last
    if last is None:
        return True
    interval = timedelta(seconds=settings.backup_interval_seconds)
    if last.state is BackupState.FAILED:
        interval = min(interval, RETRY_AFTER)
    # The clock may have been ahead when the last one was made.
    return not timedelta(0) <= now - last.requested_at < interval


def _end_abandoned(session: Session, *, now: datetime) -> None:
    running = select(BackupRun.id).where(
        BackupRun.kind == BackupKind.BACKUP, BackupRun.state == BackupState.RUNNING
    )
    for run_id in session.scalars(running).all():
        end_run(session, run_id, now=now, error="The process that made it has ended.")


def end_run(
    session: Session,
    run_id: str,
    *,
    now: datetime,
    error: str = "",
    stored: Stored | None = None,
    data_at: datetime | None = None,
    message: str = "",
) -> None:
    """Store the end of a run, and forget the oldest ones."""
    values: dict[str, Any] = {
        "state": BackupState.FAILED if error else BackupState.DONE,
        "finished_at": now,
        "data_at": data_at,
        "message": error or message,
    }
    if stored is not None:
        values |= {
            "snapshot": stored.snapshot,
            "total_bytes": stored.total_bytes,
            "added_bytes": stored.added_bytes,
        }
    guarded = update(BackupRun).where(BackupRun.id == run_id, BackupRun.state.in_(_OPEN))
    changed_one(session, guarded.values(**values), synchronize_session=False)
    oldest = session.scalar(select(BackupRun.id).order_by(BackupRun.id.desc()).offset(_MAX_RUNS))
    if oldest is not None:
        session.execute(
            delete(BackupRun).where(BackupRun.id <= oldest, BackupRun.kind != BackupKind.RESTORE)
        )


def has_scheduler(session: Session, *, now: datetime) -> bool:
    """Return whether a running process takes requests."""
    lease = session.get(Lease, SCHEDULER_LEASE, populate_existing=True)
    return lease is not None and lease.expires_at > now
