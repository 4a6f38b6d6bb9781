"""`vedette restore`: a server from a backup, all or nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import click
from sqlalchemy import inspect, select, text
from sqlalchemy.exc import SQLAlchemyError

from backup.contents import SETTINGS, Manifest, is_sqlite
from backup.database_copy import drop_tables, load_dump
from backup.repository import LATEST, Repository
from backup.restoring import (
    RESTORED_SETTINGS,
    Tree,
    check,
    fetch,
    give_to,
    occupied,
    put_into_place,
    settle,
    sqlite_file,
    stage_of,
)
from backup.scratch import scratch_folder
from cli.database import RESTORE_MARK, open_database
from cli.listen_address import check_port
from cli.privileges import acting_as_owner
from cli.server_init import prepare_folder
from core.clock import utc_now
from core.db import create_database_engine, transaction
from core.errors import ConflictError, DatabaseUnavailableError, InvalidInputError
from core.settings import ServerSettings, load_server_settings
from tenants.lifecycle.server_processes import SILENT_AFTER
from tenants.models import ServerProcess


@click.command()
@click.option("--snapshot", "ident", default=LATEST, show_default=True, help="Which backup.")
@click.option("--from", "url", help="Where the backups are. Defaults to the setting backup_url.")
@click.option(
    "--password-file",
    type=click.Path(path_type=Path),
    help="File with their password. Defaults to the setting backup_password_file.",
)
@click.option(
    "--replace", "replaces", is_flag=True, help="Set data that is there aside, in the data folder."
)
@click.option(
    "--keep-queue",
    "keeps_queue",
    is_flag=True,
    help="Let waiting jobs run: the server did nothing after this backup.",
)
@click.option("--user", "user_name", help="Owner of a new data folder, if root creates it.")
@click.option("--print-settings", is_flag=True, help="Print the backup's settings, and stop.")
def restore(
    *,
    ident: str,
    url: str | None,
    password_file: Path | None,
    replaces: bool,
    keeps_queue: bool,
    user_name: str | None,
    print_settings: bool,
) -> None:
    """Restore a server from a backup, into the places that this host's settings name.

    Stop the server first. Everything is fetched and checked before anything changes: a restore that
    fails leaves what was there.
    """
    settings = load_server_settings()
    if url:
        settings = replace(settings, backup_url=url)
    if password_file:
        settings = replace(settings, backup_password_file=password_file)
    repository = Repository(settings.backup_url, settings.backup_password_file)
    snapshot = repository.snapshot(ident)
    if print_settings:
        click.echo(repository.read(snapshot, f"{stage_of(snapshot)}/{SETTINGS}"), nl=False)
        return
    check_port(settings.host, settings.port)
    prepare_folder(settings, user_name)
    with acting_as_owner(settings.data_dir):
        _require_stopped(settings, now=utc_now())
        _require_empty(settings, replaces=replaces)
        with scratch_folder(settings.data_dir) as root:
            click.echo(f"Fetching backup {snapshot.ident} ...")
            tree = fetch(repository, snapshot, root)
            give_to(root, settings.data_dir.stat())
            stopped = _restore(
                tree, settings, snapshot=snapshot.ident, keeps_queue=keeps_queue, now=utc_now()
            )
    _print_next_steps(tree.manifest, settings, stopped)


def _require_stopped(settings: ServerSettings, *, now: datetime) -> None:
    """Refuse to take the files from a server, which would go on writing into those set aside.

    Raises:
        ConflictError: one of its processes runs, on whichever port.
    """
    if not is_sqlite(settings) or not sqlite_file(settings).exists():
        return
    engine = create_database_engine(settings.resolved_database_url)
    try:
        with engine.connect() as connection:
            process = connection.execute(
                select(ServerProcess.holder, ServerProcess.parts, ServerProcess.seen_at)
                .order_by(ServerProcess.seen_at.desc())
                .limit(1)
            ).first()
    except (SQLAlchemyError, DatabaseUnavailableError):
        return  # a damaged database is a reason for a restore
    finally:
        engine.dispose()
    if process is not None and now - process.seen_at < SILENT_AFTER:
        raise ConflictError(
            f"The server runs: {process.parts} as {process.holder}. Stop it first. One that was "
            f"killed counts as running for {SILENT_AFTER.total_seconds():.0f} seconds."
        )


def _require_empty(settings: ServerSettings, *, replaces: bool) -> None:
    """Refuse to restore over data.

    Raises:
        ConflictError: there is some, and it is not to be replaced, or can't be.
    """
    if not is_sqlite(settings):
        engine = create_database_engine(settings.resolved_database_url)
        try:
            tables = inspect(engine).get_table_names()
        finally:
            engine.dispose()
        if tables:
            raise ConflictError(
                f"The database {engine.url.render_as_string()} has {len(tables)} tables. Name an "
                "empty one in DATABASE_URL."
            )
    present = occupied(settings)
    if present and not replaces:
        listed = ", ".join(map(str, present))
        raise ConflictError(
            f"There is data already: {listed}. With --replace it is set aside in "
            f"{settings.data_dir}, or name another folder in VEDETTE_DATA_DIR."
        )


def _restore(
    tree: Tree, settings: ServerSettings, *, snapshot: str, keeps_queue: bool, now: datetime
) -> int:
    """Check what was fetched and put it into place; return how many waiting jobs were stopped."""
    _require_same_kind(tree.manifest, settings)
    checked = check(tree)
    click.echo(f"Checked: {checked.rows:,} rows, {checked.files:,} files of samples.")
    aside = settings.data_dir / f"before-restore-{now:%Y%m%dT%H%M%SZ}"
    with _loaded(tree, settings) as fetched_settings:
        with (
            open_database(fetched_settings, may_create=True) as (_engine, sessions),
            transaction(sessions) as session,
        ):
            stopped = settle(
                session, tree.manifest, snapshot=snapshot, keeps_queue=keeps_queue, now=now
            )
        if is_sqlite(settings):
            _close_log(tree.database)
        mark = settings.data_dir / RESTORE_MARK
        mark.touch()
        # Of a process that is killed now, the mark stays: no server starts with half of the files.
        try:
            put_into_place(tree, settings, aside=aside)
        finally:
            mark.unlink()
    if aside.exists():
        click.echo(f"What was there before is in {aside}.")
    return stopped


@contextmanager
def _loaded(tree: Tree, settings: ServerSettings) -> Iterator[ServerSettings]:
    """Give settings with which the fetched database can be opened; after an error it is gone."""
    fetched = replace(settings, data_dir=tree.stage)
    if is_sqlite(settings):
        yield replace(fetched, database_url=f"sqlite:///{tree.database}")
        return
    engine = create_database_engine(settings.resolved_database_url, answer_seconds=None)
    try:
        load_dump(tree.database, engine)
        try:
            yield fetched
        except BaseException:
            drop_tables(engine)
            raise
    finally:
        engine.dispose()


def _close_log(database: Path) -> None:
    """Write SQLite's log into the file, so that the file can be moved by itself."""
    engine = create_database_engine(f"sqlite:///{database}")
    with engine.connect() as connection:
        connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    engine.dispose()


def _require_same_kind(manifest: Manifest, settings: ServerSettings) -> None:
    kind = "sqlite" if is_sqlite(settings) else "mysql"
    if manifest.database != kind:
        name = "a file of SQLite" if manifest.database == "sqlite" else "MySQL or MariaDB"
        raise InvalidInputError(
            f"The backup's database is {name}: set DATABASE_URL to such a one. "
            "`vedette restore --print-settings` shows the settings of the backup."
        )


def _print_next_steps(manifest: Manifest, settings: ServerSettings, stopped: int) -> None:
    click.echo(f"Restored the server as of {manifest.data_at:%Y-%m-%d %H:%M} UTC.")
    if stopped:
        click.echo(
            f"{stopped} waiting jobs were stopped, as they may have run since; their users see why."
        )
    for part in manifest.left_out:
        click.echo(f"Not included: {part}.")
    click.echo(
        f"Compare your settings with {settings.data_dir / RESTORED_SETTINGS}, run `vedette server "
        "check`, and start the server. Agents connect by themselves."
    )
