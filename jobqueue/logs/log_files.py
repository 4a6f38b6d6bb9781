"""Logs of ended attempts: moved from the database to files, and deleted above a tenant's bound.

    TENANT/JOB/ATTEMPT NUMBER.log
    TENANT/JOB/ATTEMPT NUMBER.parquet   the same lines, to search them
    TENANT/appliances/ID.parquet        lines of appliances (`logs`)

The files are in a folder or another file system of fsspec, such as an S3 bucket. A log is in a file
once its attempt says so, which happens after the file is complete: a crash leaves the log in the
database, and the file is written again. Readers of the file come after the transaction.
"""

import logging
import os
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, BinaryIO

import fsspec
from fsspec.implementations.local import LocalFileSystem
from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.orm import Session

from core.db import SessionFactory, changed_one, transaction
from core.errors import ConfigurationError, UnavailableError
from jobqueue.jobs.transitions import note_attempt
from jobqueue.logs.logs import MAX_LIMIT_BYTES, LogPage, delete_log, file_name, read_chunks
from jobqueue.models import Attempt, LogChunk
from jobqueue.states import AttemptState, LogState

log = logging.getLogger(__name__)

# A report that an attempt ended comes after its log; a lost attempt may still send some.
SETTLED = timedelta(seconds=30)
LOST_SETTLED = timedelta(hours=1)
BATCH = 100
# In a tenant's folder, beside those of jobs; `logs` looks after its files.
APPLIANCES = "appliances"
_FINAL = [state for state in AttemptState if state.is_final]


class LogFiles:
    """Files of logs.

    Args:
        url: of the folder: a path, `s3://bucket/prefix` with the variables of the AWS tools, or any
            other address that fsspec knows.

    Raises:
        ConfigurationError: fsspec can't open it, for example because a package is missing.
    """

    def __init__(self, url: str) -> None:
        self._errors: tuple[type[Exception], ...] = (OSError,)
        try:
            if url.startswith("s3://"):
                # 5 MiB that servers with a folder save.
                from obstore.exceptions import BaseError  # noqa: PLC0415
                from obstore.fsspec import FsspecStore  # noqa: PLC0415

                self._errors = (OSError, BaseError)
                is_plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
                self._fs: Any = FsspecStore("s3", client_options={"allow_http": is_plain})
                self._root = url.removeprefix("s3://").rstrip("/")
            else:
                self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            fault = f"log_url {url!r} can't be opened: {error}"
            raise ConfigurationError([fault], source="The configuration") from error

    def filled(self, page: LogPage) -> LogPage:
        """Return a page with its part of the log, if that is in a file.

        Raises:
            UnavailableError: the file system does not answer.
        """
        if not page.file:
            return page
        try:
            data = self._fs.cat_file(
                self._path(page.file), start=page.offset, end=page.offset + page.limit
            )
        except self._errors as error:
            raise UnavailableError(f"The log can't be read now ({error}). Try again.") from error
        return page.with_data(data)

    def open(self, name: str) -> BinaryIO:
        """Return a file that is open for reading.

        Raises:
            FileNotFoundError: it was deleted.
            UnavailableError: the file system does not answer.
        """
        try:
            file: BinaryIO = self._fs.open(self._path(name), "rb")
        except FileNotFoundError:
            raise
        except self._errors as error:
            raise UnavailableError(f"Logs can't be read now ({error}). Try again.") from error
        return file

    def write(self, name: str, pieces: Iterator[bytes]) -> None:
        """Write a file; it is on disk afterwards."""
        path = self._path(name)
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        with self._fs.open(path, "wb") as file:
            for piece in pieces:
                file.write(piece)
            if isinstance(self._fs, LocalFileSystem):
                file.flush()
                os.fsync(file.fileno())

    def of_tenant(self, tenant_id: str) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield the name of each file of a tenant, below its folder, with its content in pieces."""
        for job_id in self.names(tenant_id):
            for name in self.names(f"{tenant_id}/{job_id}"):
                yield f"{job_id}/{name}", self._read(f"{tenant_id}/{job_id}/{name}")

    def _read(self, name: str) -> Iterator[bytes]:
        with self._fs.open(self._path(name), "rb") as file:
            while piece := file.read(MAX_LIMIT_BYTES):
                yield piece

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, which may be missing, without hidden files."""
        try:
            paths = self._fs.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        names = (str(path).rstrip("/").rpartition("/")[2] for path in paths)
        return sorted(name for name in names if not name.startswith("."))

    def delete(self, name: str) -> None:
        """Delete a file or a folder; a missing one is ignored."""
        try:
            self._fs.rm(self._path(name), recursive=True)
        except FileNotFoundError:
            log.debug("%s is already deleted", name)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")


def move_logs(
    sessions: SessionFactory,
    files: LogFiles,
    *,
    now: datetime,
    is_stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Move the logs of ended attempts to files; return how many were moved."""
    with transaction(sessions) as session:
        attempts = session.scalars(select(Attempt).where(_is_settled(now)).limit(BATCH)).all()
        logs = [
            (
                attempt.id,
                file_name(attempt.tenant_id, attempt.job_id, attempt.number),
                attempt.log_bytes,
            )
            for attempt in attempts
        ]
    moved = 0
    for attempt_id, name, size in logs:
        if is_stopping():
            break
        files.write(name, _pieces(sessions, attempt_id, size))
        with transaction(sessions) as session:
            unchanged = (Attempt.log_bytes == size, Attempt.log_state == LogState.LIVE)
            done = update(Attempt).where(Attempt.id == attempt_id, *unchanged)
            if changed_one(session, done.values(log_state=LogState.FILE)):
                session.execute(delete(LogChunk).where(LogChunk.attempt_id == attempt_id))
                note_attempt(session, attempt_id)
                moved += 1
    return moved


def bound_tenants(session: Session, *, max_bytes: int) -> int:
    """Delete the oldest logs of ended attempts of tenants that have more; return how many.

    Files are deleted by the next `sweep_files`.
    """
    total, deleted = func.sum(Attempt.log_bytes), 0
    stored = Attempt.log_state != LogState.DELETED
    statement = select(Attempt.tenant_id, total).where(stored).group_by(Attempt.tenant_id)
    for tenant_id, size in session.execute(statement.having(total > max_bytes)).all():
        excess = int(size) - max_bytes
        oldest = select(Attempt.id, Attempt.log_bytes).where(
            Attempt.tenant_id == tenant_id,
            stored,
            Attempt.log_bytes > 0,
            Attempt.state.in_(_FINAL),
        )
        for attempt_id, log_bytes in session.execute(oldest.order_by(Attempt.id)).all():
            if excess <= 0:
                break
            delete_log(session, attempt_id)
            excess -= log_bytes
            deleted += 1
    return deleted


def sweep_files(sessions: SessionFactory, files: LogFiles) -> int:
    """Delete files whose attempts, jobs or tenants are gone; return how many files or folders."""
    swept = 0
    for tenant_id in files.names():
        for job_id in files.names(tenant_id):
            if job_id == APPLIANCES:
                continue
            with transaction(sessions) as session:
                numbers = set(
                    session.scalars(
                        select(Attempt.number).where(
                            Attempt.job_id == job_id, Attempt.log_state != LogState.DELETED
                        )
                    )
                )
            folder = f"{tenant_id}/{job_id}"
            wanted = {f"{number}.{kind}" for number in numbers for kind in ("log", "parquet")}
            gone = [f"{folder}/{name}" for name in files.names(folder) if name not in wanted]
            for name in gone if numbers else [folder]:
                files.delete(name)
                swept += 1
    return swept


def _is_settled(now: datetime) -> ColumnElement[bool]:
    is_lost = Attempt.state == AttemptState.LOST
    return (
        (Attempt.log_state == LogState.LIVE)
        & (Attempt.log_bytes > 0)
        & Attempt.state.in_(_FINAL)
        & (Attempt.finished_at < now - SETTLED)
        & (~is_lost | (Attempt.finished_at < now - LOST_SETTLED))
    )


def _pieces(sessions: SessionFactory, attempt_id: str, size: int) -> Iterator[bytes]:
    offset = 0
    while offset < size:
        with transaction(sessions) as session:
            data = read_chunks(session, attempt_id, offset=offset, limit=MAX_LIMIT_BYTES)
        if not data:
            return
        yield data
        offset += len(data)
