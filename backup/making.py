"""Making a backup: gather what belongs to it, store it, delete backups that are too old."""

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from backup.contents import INCOMPLETE, gathered
from backup.repository import Repository
from backup.runs import end_run
from core.clock import Clock
from core.db import SessionFactory, transaction
from core.errors import UnavailableError, VedetteError
from core.quantities import format_size
from core.settings import ServerSettings
from timeseries.store import Store

log = logging.getLogger(__name__)


def make_backup(
    settings: ServerSettings,
    sessions: SessionFactory,
    store: Store,
    run_id: str,
    *,
    clock: Clock,
    is_stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Make the backup of a run, and store its result with it.

    Raises:
        VedetteError: it failed; the run says why, too.
    """
    try:
        _make(settings, sessions, store, run_id, clock=clock, is_stopping=is_stopping)
    except Exception as error:
        reason = error.message if isinstance(error, VedetteError) else str(error)
        with transaction(sessions) as session:
            end_run(session, run_id, now=clock(), error=reason or type(error).__name__)
        raise


def _make(
    settings: ServerSettings,
    sessions: SessionFactory,
    store: Store,
    run_id: str,
    *,
    clock: Clock,
    is_stopping: Callable[[], bool],
) -> None:
    repository = Repository.of(settings, is_stopping=is_stopping)
    with _alone(settings.data_dir):
        repository.prepare()
        with gathered(settings, store, now=clock()) as (manifest, paths):
            stored = repository.store(paths, exclude=INCOMPLETE)
        repository.forget(keep_days=settings.backup_retention_days, now=clock())
    with transaction(sessions) as session:
        end_run(
            session,
            run_id,
            now=clock(),
            stored=stored,
            data_at=manifest.data_at,
            message="\n".join(f"Not included: {part}." for part in manifest.left_out),
        )
    log.info(
        "backup %s: %s, of which %s are new",
        stored.snapshot,
        format_size(stored.total_bytes),
        format_size(stored.added_bytes),
    )


@contextmanager
def _alone(data_dir: Path) -> Iterator[None]:
    """Let no other process make a backup of this folder during the block."""
    folder = data_dir / "backup"
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UnavailableError(
            f"Another process makes a backup of {data_dir} now. Try again when it is done."
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)
