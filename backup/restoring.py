"""Restoring a backup: fetch it beside the present data, check it, and put it into place.

All or nothing: nothing of the present data changes before the backup was fetched and checked, and
what was put into place goes back if the rest fails.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import delete, make_url, update
from sqlalchemy.orm import Session

from backup.contents import (
    SAMPLES,
    SECRET_KEY,
    SETTINGS,
    STAGE,
    Manifest,
    is_sqlite,
)
from backup.database_copy import MYSQL_DUMP, SQLITE_COPY, count_rows
from backup.repository import Repository, Snapshot
from core.errors import UnavailableError
from core.leases import Lease
from core.quantities import format_size
from core.secretbox import KEY_FILE
from core.settings import ServerSettings
from jobqueue.jobs.restored import settle_restored
from tenants.models import BackupKind, BackupRun, BackupState, EnrollmentToken, ServerProcess
from timeseries.store_url import files_folder, parse_store_url

RESTORED_SETTINGS = "restored-server.env"
Move = tuple[Path, Path]
"""Where a file or folder is, and where it goes."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A backup that was fetched into a folder.

    Attributes:
        root: the folder, below which its files have their paths.
        stage: the folder with the copies.
        manifest: what it holds.
    """

    root: Path
    stage: Path
    manifest: Manifest

    def folder(self, name: str) -> Path | None:
        """Return a folder of the manifest, if the backup has one."""
        original = self.manifest.folders.get(name)
        return self.root / original.lstrip("/") if original else None

    @property
    def database(self) -> Path:
        """The copy of the database."""
        is_file = self.manifest.database == "sqlite"
        return self.stage / (SQLITE_COPY if is_file else MYSQL_DUMP)


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check of a fetched backup has found to be whole."""

    tables: int
    rows: int
    samples: int | None
    files: int


def stage_of(snapshot: Snapshot) -> str:
    """Return the path of the copies in a snapshot.

    Raises:
        UnavailableError: it is not one of Vedette.
    """
    for path in snapshot.paths:
        if Path(path).name == STAGE:
            return path
    raise UnavailableError(f"The snapshot {snapshot.ident} is no backup of Vedette.")


def fetch(repository: Repository, snapshot: Snapshot, root: Path) -> Tree:
    """Write a backup into a folder.

    Raises:
        UnavailableError: the disk has no room for it, or it can't be read.
    """
    stage = root / stage_of(snapshot).lstrip("/")
    needed_bytes, free_bytes = repository.size_bytes(snapshot), shutil.disk_usage(root).free
    if free_bytes < needed_bytes:
        raise UnavailableError(
            f"The backup needs {format_size(needed_bytes)}, but {root} has only "
            f"{format_size(free_bytes)} free."
        )
    repository.restore(snapshot, root)
    return Tree(root, stage, Manifest.read(stage))


def check(tree: Tree) -> Checked:
    """Compare a fetched backup with what its manifest says.

    Raises:
        UnavailableError: something is missing or damaged; says what.
    """
    manifest = tree.manifest
    rows = count_rows(tree.database)
    differing = sorted(
        table
        for table in rows.keys() | manifest.rows.keys()
        if rows.get(table) != manifest.rows.get(table)
    )
    if differing:
        raise UnavailableError(f"The backup lacks rows of the tables {', '.join(differing)}.")
    samples, files = _check_samples(tree) if manifest.samples is not None else (None, 0)
    return Checked(len(rows), sum(rows.values()), samples, files)


def _check_samples(tree: Tree) -> tuple[int, int]:
    # Servers with another store never load DuckDB.
    from timeseries.duckdb.snapshot import listed_files, stored_samples_of  # noqa: PLC0415

    copy, folder = tree.stage / SAMPLES, tree.folder("samples")
    samples = stored_samples_of(copy)
    if samples != tree.manifest.samples:
        raise UnavailableError(
            f"The backup has {samples:,} samples, but should have {tree.manifest.samples:,}."
        )
    if folder is None:  # they are in a bucket
        return samples, 0
    files = listed_files(copy)
    missing = [
        path
        for path, size in files.items()
        if not (folder / path).is_file() or (folder / path).stat().st_size != size
    ]
    if missing:
        raise UnavailableError(
            f"The backup lacks {len(missing)} files of samples, such as {missing[0]}."
        )
    return samples, len(files)


def occupied(settings: ServerSettings) -> list[Path]:
    """Return what a restore would replace."""
    return [path for path in _places(settings) if _has_content(path)]


def put_into_place(tree: Tree, settings: ServerSettings, *, aside: Path) -> None:
    """Move what was fetched to where the server reads it, and what was there to `aside`.

    Raises:
        UnavailableError: something could not be moved; all is as it was.
    """
    done: list[Move] = []
    try:
        for path in occupied(settings):
            for present in _parts(path):
                _move(present, aside / _name_aside(path, present), done)
        for source, target in _moves(tree, settings):
            for part in _parts(source):
                _move(part, target if part == source else target / part.name, done)
    except BaseException as error:
        for source, target in reversed(done):
            shutil.move(target, source)
        if not isinstance(error, OSError):
            raise
        raise UnavailableError(
            f"The backup could not be put into place ({error}). Everything is as it was."
        ) from error


def _places(settings: ServerSettings) -> Iterator[Path]:
    """Yield all files and folders of a server's data that a backup has."""
    data_dir, store = settings.data_dir, parse_store_url(settings.resolved_timeseries_url)
    yield from (data_dir / name for name in (KEY_FILE, SECRET_KEY, RESTORED_SETTINGS))
    yield settings.exports_dir
    if is_sqlite(settings):
        database = sqlite_file(settings)
        yield from (database.with_name(f"{database.name}{end}") for end in ("", "-wal", "-shm"))
    if store.file is not None:
        names = (store.file.name + end for end in ("", ".wal", ".damage.json"))
        yield from (store.file.with_name(name) for name in names)
        yield from [] if "://" in store.files else [_samples_folder(settings, store.file)]
    if "://" not in settings.resolved_log_url:
        yield Path(settings.resolved_log_url)
    if settings.data_folder is not None:
        yield settings.data_folder


def _moves(tree: Tree, settings: ServerSettings) -> Iterator[Move]:
    """Yield what was fetched, and where it goes."""
    data_dir, store = settings.data_dir, parse_store_url(settings.resolved_timeseries_url)
    for name in (KEY_FILE, SECRET_KEY):
        yield tree.stage / name, data_dir / name
    yield tree.stage / SETTINGS, data_dir / RESTORED_SETTINGS
    targets = {"exports": settings.exports_dir}
    if store.file is not None and tree.manifest.samples is not None:
        yield tree.stage / SAMPLES, store.file
        targets["samples"] = _samples_folder(settings, store.file)
    if "://" not in settings.resolved_log_url:
        targets["logs"] = Path(settings.resolved_log_url)
    if settings.data_folder is not None:
        targets["data"] = settings.data_folder
    for name, target in targets.items():
        folder = tree.folder(name)
        if folder is not None and folder.is_dir():
            yield folder, target
    if is_sqlite(settings):
        yield tree.database, sqlite_file(settings)


def sqlite_file(settings: ServerSettings) -> Path:
    """Return the file of a server's database."""
    return Path(str(make_url(settings.resolved_database_url).database))


def _samples_folder(settings: ServerSettings, file: Path) -> Path:
    elsewhere = parse_store_url(settings.resolved_timeseries_url).files
    return Path(elsewhere) if elsewhere else files_folder(file)


def _has_content(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def _parts(path: Path) -> Sequence[Path]:
    """Return a file, or what is in a folder: the folder itself may be a mount."""
    return sorted(path.iterdir()) if path.is_dir() else [path]


def _name_aside(path: Path, part: Path) -> Path:
    return Path(path.name) if part == path else Path(path.name) / part.name


def _move(source: Path, target: Path, done: list[Move]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(source, target)
    done.append((source, target))


def settle(
    session: Session, manifest: Manifest, *, snapshot: str, keeps_queue: bool, now: datetime
) -> int:
    """Prepare a restored database for a server; return how many waiting jobs were stopped.

    Args:
        session: of the restored database.
        manifest: of the backup.
        snapshot: its id.
        keeps_queue: whether nothing has happened since the backup, so that waiting jobs may run.
        now: the time.
    """
    session.execute(delete(Lease))
    session.execute(delete(ServerProcess))
    session.add(
        BackupRun(
            kind=BackupKind.RESTORE,
            state=BackupState.DONE,
            requested_at=now,
            finished_at=now,
            data_at=manifest.data_at,
            snapshot=snapshot,
        )
    )
    if keeps_queue:
        return 0
    # They may have been used since.
    unused = EnrollmentToken.revoked_at.is_(None) & (EnrollmentToken.uses_left > 0)
    session.execute(update(EnrollmentToken).where(unused).values(revoked_at=now))
    return settle_restored(session, data_at=manifest.data_at, now=now)


def give_to(folder: Path, owner: os.stat_result) -> None:
    """Let root give all files below a folder to the owner of the data."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
