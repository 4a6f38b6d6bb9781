"""`vedette backup`: back this server up, list and verify its backups.

A running server makes the backup itself, at the request of the command: it alone can copy the
embedded store's file.
"""

import time
from pathlib import Path

import click
from sqlalchemy.orm import Session

from backup.making import make_backup
from backup.repository import LATEST, Repository
from backup.restoring import Checked, check, fetch
from backup.runs import end_run, has_scheduler, request_backup
from backup.scratch import scratch_folder
from cli.database import open_database, require_database
from cli.local_time import local_minutes
from cli.privileges import acting_as_owner
from core.clock import utc_now
from core.db import SessionFactory, transaction
from core.errors import UnavailableError, VedetteError
from core.quantities import format_duration, format_size
from core.settings import ServerSettings, load_server_settings
from tenants.models import BackupKind, BackupRun, BackupState
from timeseries.open_store import open_store
from timeseries.store import StoreUnavailableError

_POLL_SECONDS = 0.5
# How long a server may take from opening its store to making backups.
_START_SECONDS = 30.0


@click.group(invoke_without_command=True)
@click.pass_context
def backup(context: click.Context) -> None:
    """Back this server up now: database, samples, keys, logs of jobs and settings.

    Needs the settings backup_url and backup_password_file. Works while the server runs, and stores
    only what is new since the last backup.
    """
    if context.invoked_subcommand is not None:
        return
    settings = load_server_settings()
    with acting_as_owner(settings.data_dir):
        place = Repository.of(settings).place
        require_database(settings)
        with open_database(settings) as (_engine, sessions):
            run = _made(settings, sessions)
    if run.state is BackupState.FAILED:
        raise UnavailableError(f"The backup failed: {run.message}")
    seconds = (run.finished_at - run.requested_at).total_seconds() if run.finished_at else 0.0
    click.echo(
        f"Backup {run.snapshot} is in {place}: {format_size(run.total_bytes)}, of "
        f"which {format_size(run.added_bytes)} are new, in {format_duration(seconds)}."
    )
    if run.message:
        click.echo(run.message)


@backup.command("list")
def list_command() -> None:
    """List the backups, the oldest first."""
    settings = load_server_settings()
    with acting_as_owner(settings.data_dir):
        snapshots = Repository.of(settings).snapshots()
    for snapshot in snapshots:
        click.echo(f"{snapshot.ident}  {local_minutes(snapshot.at)}")
    if not snapshots:
        click.echo("There is no backup yet. Make one: vedette backup")


@backup.command()
@click.option("--snapshot", "ident", default=LATEST, show_default=True, help="Which backup.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Where to restore it for the test. Defaults to a folder in the data directory.",
)
def verify(*, ident: str, folder: Path | None) -> None:
    """Restore a backup into a folder, and compare it with what it should have.

    Checks the hash of each file, the structure and the row counts of the database, all samples and
    their files, and the repository. The folder is deleted at the end.
    """
    settings = load_server_settings()
    with acting_as_owner(settings.data_dir):
        parent = folder or settings.data_dir / "backup"
        with open_database(settings) as (_engine, sessions):
            try:
                checked, ident = _verified(Repository.of(settings), ident, parent)
            except VedetteError as error:
                _record(sessions, error=error.message)
                raise
            _record(sessions, snapshot=ident)
    samples = "" if checked.samples is None else f", {checked.samples:,} samples"
    click.echo(
        f"Backup {ident} can be restored: {checked.rows:,} rows of {checked.tables} tables"
        f"{samples} and {checked.files:,} files of samples are as they should be."
    )


def _verified(repository: Repository, ident: str, parent: Path) -> tuple[Checked, str]:
    snapshot = repository.snapshot(ident)
    with scratch_folder(parent) as root:
        checked = check(fetch(repository, snapshot, root))
    repository.check()
    return checked, snapshot.ident


def _record(sessions: SessionFactory, *, snapshot: str = "", error: str = "") -> None:
    now = utc_now()
    with transaction(sessions) as session:
        session.add(
            BackupRun(
                kind=BackupKind.VERIFICATION,
                state=BackupState.FAILED if error else BackupState.DONE,
                requested_at=now,
                finished_at=now,
                snapshot=snapshot,
                message=error,
            )
        )


def _made(settings: ServerSettings, sessions: SessionFactory) -> BackupRun:
    """Let the server make a backup, or make it here if none runs; return its run."""
    with transaction(sessions) as session:
        run = request_backup(session, now=utc_now())
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with transaction(sessions) as session:
            current = session.get_one(BackupRun, run.id, populate_existing=True)
            if current.finished_at is not None:
                return current
            is_ours = _is_ours(session, current)
        if not is_ours or not _could_make_here(settings, sessions, run.id, deadline):
            time.sleep(_POLL_SECONDS)


def _is_ours(session: Session, run: BackupRun) -> bool:
    """Return whether no server will make a requested backup."""
    return run.state is BackupState.REQUESTED and not has_scheduler(session, now=utc_now())


def _could_make_here(
    settings: ServerSettings, sessions: SessionFactory, run_id: str, deadline: float
) -> bool:
    """Make a backup in this process; return False if a server has opened its store just now."""
    try:
        store = open_store(settings.resolved_timeseries_url)
    except StoreUnavailableError as error:
        if time.monotonic() < deadline:
            return False
        with transaction(sessions) as session:
            end_run(session, run_id, now=utc_now(), error=error.message)
        raise
    try:
        make_backup(settings, sessions, store, run_id, clock=utc_now)
    finally:
        store.close()
    return True
