"""Stores what appliances announce of the results of their attempts, and finds their parts.

Announcements may be repeated, late or out of order. A file is that of the newest attempt that wrote
it: one of an older attempt never replaces it. Nothing is stored before all parts of a file are.

An agent asks for parts by their hash alone: those of its tenant, or of a job of a customer. Those
of results have an address that the portal made, which names the attempt of a customer; parts of a
customer's datasets are found by what its jobs that run on the appliance read.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from core.clock import from_ns
from core.db import chunked
from core.errors import NotFoundError
from core.ids import new_id
from datasets.models import DataPart, VersionPart
from datasets.parts import missing_parts, note_use, record_part
from datasets.settings import settings_of
from jobqueue.models import Attempt, Job
from jobqueue.rentals import rented_data
from jobqueue.results.models import Artifact, ArtifactPart, ResultReport
from protocol.datasets import PART_BYTES
from protocol.results import (
    MAX_ANNOUNCED_PARTS,
    MAX_JOB_FILES,
    ResultFile,
    ResultPage,
    ResultPart,
    ResultUpload,
    is_result_path,
)

PAGE_FILES = 200
_LATER = "a later attempt of the job has written this file"
# The years 1970 to 2200.
_MAX_TIME_NS = 7_258_118_400 * 10**9
ATTEMPT_PARAMETER = "attempt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """What follows from an announcement.

    Attributes:
        tenant_id: of the attempt; "" if the appliance has no such attempt.
        stored: the files that are stored, by path.
        missing: the parts to upload.
        refused: files that are not stored, by path, and why.
        connection_id: of the bucket to upload to; None is the portal's store.
    """

    tenant_id: str = ""
    stored: Sequence[str] = ()
    missing: Sequence[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    connection_id: str | None = None


def record_results(
    session: Session, appliance_id: str, upload: ResultUpload, *, now: datetime
) -> Announced:
    """Store the announced files whose content is there, and remove the deleted ones."""
    attempt = _own_attempt(session, appliance_id, upload.attempt_id)
    if attempt is None:
        return Announced()
    # Attempts on several appliances may announce the same file at the same moment.
    session.execute(select(Job.id).where(Job.id == attempt.job_id).with_for_update())
    connection_id = settings_of(session, attempt.tenant_id).results_connection_id
    stored = _artifacts(session, attempt.job_id, [file.path for file in upload.files])
    refused = _refused(session, attempt, upload.files, stored)
    accepted = [file for file in upload.files if file.path not in refused]
    sizes = {part.sha256: part.size_bytes for file in accepted for part in file.parts}
    if connection_id is not None:
        for sha256 in sizes.keys() & set(upload.uploaded):
            record_part(
                session, attempt.tenant_id, sha256, sizes[sha256], now, connection_id=connection_id
            )
    uses_bucket = connection_id is not None
    missing = missing_parts(session, attempt.tenant_id, sizes, uses_bucket=uses_bucket)
    note_use(session, attempt.tenant_id, sizes.keys() - missing, now)
    complete = [file for file in accepted if missing.isdisjoint(part.sha256 for part in file.parts)]
    for file in complete:
        _store(session, attempt, file, stored.get(file.path), now=now)
    _remove(session, attempt, upload.removed)
    _report(session, attempt, upload, now=now)
    return Announced(
        tenant_id=attempt.tenant_id,
        stored=[file.path for file in complete],
        missing=sorted(missing),
        refused=refused,
        connection_id=connection_id,
    )


def stored_results(
    session: Session, appliance_id: str, attempt_id: str, *, after: str
) -> ResultPage:
    """Return files of an attempt's job, in the order of their paths' hashes.

    Raises:
        NotFoundError: the appliance has no such attempt.
    """
    attempt = _own_attempt(session, appliance_id, attempt_id)
    if attempt is None:
        raise NotFoundError.of("attempt", attempt_id)
    statement = (
        select(Artifact)
        .where(Artifact.job_id == attempt.job_id)
        .order_by(Artifact.path_sha256)
        .limit(PAGE_FILES + 1)
    )
    if after:
        statement = statement.where(Artifact.path_sha256 > path_hash(after))
    artifacts = session.scalars(statement).all()
    shown = artifacts[:PAGE_FILES]
    parts = parts_of(session, [artifact.id for artifact in shown])
    files = [
        ResultFile(
            path=artifact.path,
            size_bytes=artifact.size_bytes,
            modified_at_ns=int(artifact.modified_at.timestamp() * 1e6) * 1000,
            sha256=artifact.sha256,
            parts=[
                ResultPart(sha256=part.sha256, size_bytes=part.size_bytes)
                for part in parts.get(artifact.id, [])
            ],
        )
        for artifact in shown
    ]
    return ResultPage(files=files, has_more=len(artifacts) > PAGE_FILES)


def result_part(session: Session, appliance_id: str, attempt_id: str, sha256: str) -> DataPart:
    """Return a part of a file of an attempt's job.

    Raises:
        NotFoundError: the appliance has no such attempt, or the job no such part.
    """
    attempt = _own_attempt(session, appliance_id, attempt_id)
    if attempt is None:
        raise NotFoundError.of("attempt", attempt_id)
    used = (
        select(ArtifactPart.artifact_id)
        .join(Artifact, Artifact.id == ArtifactPart.artifact_id)
        .where(
            ArtifactPart.tenant_id == attempt.tenant_id,
            ArtifactPart.sha256 == sha256,
            Artifact.job_id == attempt.job_id,
        )
        .limit(1)
    )
    part = session.get(DataPart, (attempt.tenant_id, sha256))
    if part is None or session.scalar(used) is None:
        raise NotFoundError.of("part", sha256)
    return part


def parts_of(session: Session, artifact_ids: Collection[str]) -> dict[str, list[ArtifactPart]]:
    """Return the parts of artifacts in their order, by the artifact's id."""
    parts: dict[str, list[ArtifactPart]] = {}
    for ids in chunked(artifact_ids):
        rows = session.scalars(
            select(ArtifactPart)
            .where(ArtifactPart.artifact_id.in_(ids))
            .order_by(ArtifactPart.artifact_id, ArtifactPart.position)
        )
        for row in rows:
            parts.setdefault(row.artifact_id, []).append(row)
    return parts


def path_hash(path: str) -> str:
    """Return what an artifact is found by."""
    return hashlib.sha256(path.encode()).hexdigest()


def tenant_of_results(session: Session, appliance_id: str, tenant_id: str, attempt_id: str) -> str:
    """Return whose results an appliance uploads: its own tenant's, or those of an attempt.

    Raises:
        NotFoundError: the appliance has no such attempt of a customer.
    """
    if not attempt_id:
        return tenant_id
    attempt = session.get(Attempt, attempt_id)
    if attempt is None or attempt.appliance_id != appliance_id or attempt.contract_id is None:
        raise NotFoundError.of("attempt", attempt_id)
    return attempt.tenant_id


def tenant_of_part(
    session: Session, appliance_id: str, tenant_id: str, sha256: str, attempt_id: str
) -> str:
    """Return whose part an appliance reads; one that is nowhere counts as its own tenant's.

    Raises:
        NotFoundError: the appliance has no such attempt of a customer, or its job no such part.
    """
    if attempt_id:
        from_results = tenant_of_results(session, appliance_id, tenant_id, attempt_id)
        result_part(session, appliance_id, attempt_id, sha256)
        return from_results
    if session.get(DataPart, (tenant_id, sha256)) is not None:
        return tenant_id
    versions = rented_data(session, appliance_id)
    for ids in chunked(sorted(versions)):
        statement = select(VersionPart.version_id).where(
            VersionPart.version_id.in_(ids), VersionPart.sha256 == sha256
        )
        if (version_id := session.scalar(statement.limit(1))) is not None:
            return versions[version_id]
    return tenant_id


def _own_attempt(session: Session, appliance_id: str, attempt_id: str) -> Attempt | None:
    attempt = session.get(Attempt, attempt_id)
    return attempt if attempt is not None and attempt.appliance_id == appliance_id else None


def _artifacts(session: Session, job_id: str, paths: Collection[str]) -> dict[str, Artifact]:
    artifacts: dict[str, Artifact] = {}
    for hashes in chunked({path_hash(path) for path in paths}):
        rows = session.scalars(
            select(Artifact).where(Artifact.job_id == job_id, Artifact.path_sha256.in_(hashes))
        ).unique()
        artifacts.update({artifact.path: artifact for artifact in rows})
    return artifacts


def _refused(
    session: Session,
    attempt: Attempt,
    files: Sequence[ResultFile],
    stored: dict[str, Artifact],
) -> dict[str, str]:
    refused: dict[str, str] = {}
    count = session.scalar(
        select(func.count()).select_from(Artifact).where(Artifact.job_id == attempt.job_id)
    )
    room = MAX_JOB_FILES - (count or 0)
    announced_parts = 0
    for file in files:
        announced_parts += len(file.parts)
        problem = _problem(attempt, file, stored.get(file.path))
        if not problem and file.path not in stored:
            room -= 1
            problem = "" if room >= 0 else f"a job has at most {MAX_JOB_FILES:,} files; pack them"
        if announced_parts > MAX_ANNOUNCED_PARTS:
            problem = f"it is announced with more than {MAX_ANNOUNCED_PARTS:,} parts"
        if problem:
            refused[file.path] = problem
    return refused


def _problem(attempt: Attempt, file: ResultFile, stored: Artifact | None) -> str:
    if not is_result_path(file.path, attempt.job.outputs):
        return "it is in no output folder of the job"
    sizes = [part.size_bytes for part in file.parts]
    is_cut_right = all(size == PART_BYTES for size in sizes[:-1]) and 0 not in sizes
    if sum(sizes) != file.size_bytes or not is_cut_right:
        return "its parts are not those of a file of this size"
    if not 0 <= file.modified_at_ns <= _MAX_TIME_NS:
        return "its time is not between 1970 and 2200"
    if stored is not None and stored.attempt is not None:
        return _LATER if stored.attempt.number > attempt.number else ""
    return ""


def _store(
    session: Session, attempt: Attempt, file: ResultFile, stored: Artifact | None, *, now: datetime
) -> None:
    """Add or change an artifact; the same content again only changes its time."""
    if stored is None:
        stored = Artifact(
            id=new_id(),
            tenant_id=attempt.tenant_id,
            job_id=attempt.job_id,
            path=file.path,
            path_sha256=path_hash(file.path),
            sha256="",
        )
        session.add(stored)
    is_same = stored.sha256 == file.sha256
    stored.attempt_id = attempt.id
    stored.size_bytes = file.size_bytes
    stored.sha256 = file.sha256
    stored.modified_at = from_ns(file.modified_at_ns)
    stored.uploaded_at = now
    session.flush()
    if is_same:
        return
    session.execute(delete(ArtifactPart).where(ArtifactPart.artifact_id == stored.id))
    session.add_all(
        ArtifactPart(
            artifact_id=stored.id,
            position=position,
            sha256=part.sha256,
            size_bytes=part.size_bytes,
            tenant_id=attempt.tenant_id,
        )
        for position, part in enumerate(file.parts)
    )
    session.flush()


def _remove(session: Session, attempt: Attempt, paths: Sequence[str]) -> None:
    """Remove files that the job has deleted, unless a later attempt has written them."""
    for artifact in _artifacts(session, attempt.job_id, paths).values():
        if artifact.attempt is None or artifact.attempt.number <= attempt.number:
            session.delete(artifact)
    session.flush()


def _report(session: Session, attempt: Attempt, upload: ResultUpload, *, now: datetime) -> None:
    report = session.get(ResultReport, attempt.id)
    if report is None:
        report = ResultReport(attempt_id=attempt.id, tenant_id=attempt.tenant_id)
        session.add(report)
    report.pending_files = upload.pending_files
    report.pending_bytes = upload.pending_bytes
    report.message = upload.message
    report.reported_at = now
