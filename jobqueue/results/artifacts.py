"""The results of a job as users see them: lists, the content of files, and when they expire.

Results of ended jobs are deleted once they are older than their tenant retains them. What their
parts held is deleted a day later, when nothing else refers to it (`datasets.parts`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Unpack

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from core.db import chunked
from core.errors import NotFoundError
from core.paging import Columns, Page, Paging, list_page
from datasets.models import DataPart, TenantDataSettings
from jobqueue.models import Attempt, Job
from jobqueue.results.announcements import parts_of, path_hash
from jobqueue.results.models import Artifact, ResultReport
from protocol.results import MAX_JOB_FILES
from tenants.permissions import Permission
from tenants.scope import Scope

ARTIFACT_SORTS: Columns = {
    "path": Artifact.path,
    "size_bytes": Artifact.size_bytes,
    "uploaded_at": Artifact.uploaded_at,
}
BATCH = 500


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file's content: in a bucket of the tenant, by its connection, or in ours."""

    sha256: str
    size_bytes: int
    is_in_bucket: bool
    connection_id: str | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """A file, and where its content is."""

    artifact_id: str
    path: str
    sha256: str
    size_bytes: int
    modified_at: datetime
    tenant_id: str
    parts: tuple[Part, ...]


ReadPart = Callable[[str, Part, int, int], bytes]
"""Returns the content of a tenant's part."""


def list_artifacts(
    session: Session, scope: Scope, job_id: str, *, prefix: str = "", **paging: Unpack[Paging]
) -> Page[Artifact]:
    """Return files of a job whose paths begin with a prefix, by path."""
    job = _job(session, scope, job_id)
    statement = select(Artifact).where(Artifact.job_id == job.id).order_by(Artifact.path)
    if prefix:
        statement = statement.where(Artifact.path.startswith(prefix, autoescape=True))
    return list_page(session, statement, ARTIFACT_SORTS, last=Artifact.id, **paging)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is directly in a folder: a file, or a folder with what is below it.

    Attributes:
        files: how many files it has.
        modified_at: when the newest of them was written.
        attempt_number: of the attempt that wrote that one.
    """

    name: str
    path: str
    is_folder: bool
    files: int
    size_bytes: int
    modified_at: datetime
    attempt_number: int | None


def folder_entries(session: Session, scope: Scope, job_id: str, folder: str) -> list[Entry]:
    """Return what is in a folder of a job's results, folders first."""
    job = _job(session, scope, job_id)
    prefix = f"{folder.rstrip('/')}/"
    rows = session.execute(
        select(Artifact.path, Artifact.size_bytes, Artifact.modified_at, Attempt.number)
        .outerjoin(Attempt, Attempt.id == Artifact.attempt_id)
        .where(Artifact.job_id == job.id, Artifact.path.startswith(prefix, autoescape=True))
        .order_by(Artifact.modified_at, Artifact.id)
        .limit(MAX_JOB_FILES)
    )
    entries: dict[str, Entry] = {}
    for path, size_bytes, modified_at, number in rows:
        name, slash, _ = path.removeprefix(prefix).partition("/")
        before = entries.get(name)
        entries[name] = Entry(
            name=name,
            path=f"{prefix}{name}",
            is_folder=bool(slash) or (before is not None and before.is_folder),
            files=1 + (before.files if before else 0),
            size_bytes=size_bytes + (before.size_bytes if before else 0),
            modified_at=modified_at,
            attempt_number=number,
        )
    return sorted(entries.values(), key=lambda entry: (not entry.is_folder, entry.name))


def totals(session: Session, job: Job) -> tuple[int, int]:
    """Return the number of a job's files, and their size in bytes."""
    row = session.execute(
        select(func.count(), func.sum(Artifact.size_bytes)).where(Artifact.job_id == job.id)
    ).one()
    return row[0], int(row[1] or 0)


def result_report(session: Session, job: Job) -> ResultReport | None:
    """Return what the appliance of the latest attempt says of its results."""
    return session.get(ResultReport, job.attempt.id) if job.attempt is not None else None


def content_of(session: Session, scope: Scope, job_id: str, path: str) -> Content:
    """Return a file of a job.

    Raises:
        NotFoundError: the job has no such file.
    """
    job = _job(session, scope, job_id)
    artifact = session.scalar(
        select(Artifact).where(Artifact.job_id == job.id, Artifact.path_sha256 == path_hash(path))
    )
    if artifact is None:
        raise NotFoundError(f"The job {job.name!r} has no file {path[:200]!r} in its results.")
    return _contents(session, [artifact])[0]


def all_contents(session: Session, scope: Scope, job_id: str, *, prefix: str = "") -> list[Content]:
    """Return the files of a job, or those below a prefix, by path."""
    job = _job(session, scope, job_id)
    statement = select(Artifact).where(Artifact.job_id == job.id).order_by(Artifact.path)
    if prefix:
        statement = statement.where(Artifact.path.startswith(prefix, autoescape=True))
    return _contents(session, list(session.scalars(statement.limit(MAX_JOB_FILES)).unique()))


def _job(session: Session, scope: Scope, job_id: str) -> Job:
    scope.require(Permission.VIEW)
    return scope.get(session, Job, job_id, kind="job")


def _contents(session: Session, artifacts: list[Artifact]) -> list[Content]:
    parts = parts_of(session, [artifact.id for artifact in artifacts])
    in_bucket: dict[str, str | None] = {}
    tenant_ids = {artifact.tenant_id for artifact in artifacts}  # of one job: one, or none
    for hashes in chunked({part.sha256 for own in parts.values() for part in own}):
        rows = select(DataPart.sha256, DataPart.connection_id).where(
            DataPart.tenant_id.in_(tenant_ids), DataPart.sha256.in_(hashes), DataPart.is_in_bucket
        )
        in_bucket.update((sha256, connection_id) for sha256, connection_id in session.execute(rows))
    return [
        Content(
            artifact_id=artifact.id,
            path=artifact.path,
            sha256=artifact.sha256,
            size_bytes=artifact.size_bytes,
            modified_at=artifact.modified_at,
            tenant_id=artifact.tenant_id,
            parts=tuple(
                Part(
                    part.sha256,
                    part.size_bytes,
                    is_in_bucket=part.sha256 in in_bucket,
                    connection_id=in_bucket.get(part.sha256),
                )
                for part in parts.get(artifact.id, [])
            ),
        )
        for artifact in artifacts
    ]


def read_range(content: Content, read: ReadPart, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a file from `start` up to `end`, part by part."""
    offset = 0
    for part in content.parts:
        first, last = max(start - offset, 0), min(end - offset, part.size_bytes)
        if first < last:
            yield read(content.tenant_id, part, first, last)
        offset += part.size_bytes
        if offset >= end:
            return


def expire_results(session: Session, *, now: datetime) -> int:
    """Delete up to `BATCH` files of one tenant; return how many, 0 if there are no more."""
    rows = session.execute(
        select(TenantDataSettings.tenant_id, TenantDataSettings.results_retention_days).where(
            TenantDataSettings.results_retention_days.is_not(None)
        )
    ).all()
    for tenant_id, days in rows:
        before = now - timedelta(days=days or 0)
        expired = (
            select(Artifact.id)
            .join(Job, Job.id == Artifact.job_id)
            .where(
                Artifact.tenant_id == tenant_id,
                Artifact.uploaded_at < before,
                Job.finished_at < before,
            )
            .order_by(Artifact.uploaded_at)
            .limit(BATCH)
        )
        ids = list(session.scalars(expired))
        if ids:
            session.execute(
                delete(Artifact).where(Artifact.id.in_(ids)),
                execution_options={"synchronize_session": False},
            )
            return len(ids)
    return 0
