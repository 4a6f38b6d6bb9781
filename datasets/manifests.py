"""Manifests of versions: their pages in the parts store, their check at the end, their files.

A version gets its manifest in this order: its pages (and, of an upload, the parts of its content)
are stored, then its head is sent. Only then is all of it checked, once, and the version is ready.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

import msgspec
from sqlalchemy import delete, select, update
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.orm import Session

from core.db import SessionFactory, changed_one, chunked, transaction
from core.errors import ConflictError, InvalidInputError
from datasets.models import DatasetVersion, VersionPart, VersionState
from datasets.parts import PartStore, missing_parts, note_use
from datasets.targets import notify_targets
from protocol.datasets import ManifestFile, ManifestHead
from protocol.manifests import checked_pages, head_digest, unpack_page
from tenants.fleet.appliances import bump_generations

MAX_VERSION_PARTS = 400_000
"""Of an upload: 25 TiB in large files."""
MAX_ANNOUNCED = 1_000
_OPEN = (VersionState.INDEXING, VersionState.UPLOADING)


@dataclass(frozen=True, slots=True)
class FilePage:
    """Files of a version in the order of their paths; `next_path` is None behind the last."""

    files: list[ManifestFile]
    next_path: str | None


@dataclass(frozen=True, slots=True)
class Publication:
    """A head whose pages were checked: its digest, and the parts that it needs stored."""

    head: ManifestHead
    digest: str
    sha256s: frozenset[str]


class MissingPartsError(ConflictError):
    """Parts of an upload are not stored; `missing` names some of them."""

    default_code = "parts_missing"

    def __init__(self, missing: Collection[str]) -> None:
        listed = sorted(missing)[:MAX_ANNOUNCED]
        super().__init__(
            f"{len(missing)} parts of the version are not stored. Upload them, then send the head "
            "again.",
            errors={"missing": listed},
        )


def announce(
    session: Session, version: DatasetVersion, sha256s: Collection[str], now: datetime
) -> set[str]:
    """Let a version need parts, so that they stay; return which are not stored yet.

    Raises:
        ConflictError: the version is not open any more.
    """
    touch(session, version, now)
    note_use(session, version.tenant_id, sha256s, now)
    for chunk in chunked(sorted(sha256s)):
        rows = [
            {"version_id": version.id, "sha256": sha256, "tenant_id": version.tenant_id}
            for sha256 in chunk
        ]
        if session.get_bind().dialect.name == "sqlite":
            session.execute(sqlite.insert(VersionPart).values(rows).on_conflict_do_nothing())
        else:
            made = mysql.insert(VersionPart).values(rows)
            session.execute(made.on_duplicate_key_update(sha256=VersionPart.sha256))
    return missing_parts(session, version.tenant_id, sha256s)


def touch(session: Session, version: DatasetVersion, now: datetime) -> None:
    """Note progress of an open version.

    Raises:
        ConflictError: it is ready, has failed or is deleted.
    """
    touched = update(DatasetVersion).where(
        DatasetVersion.id == version.id, DatasetVersion.state.in_(_OPEN)
    )
    if not changed_one(session, touched.values(active_at=now), synchronize_session=False):
        raise ConflictError(
            f"Version {version.number} is not open any more. Make a new version.",
            code="version_closed",
        )


def check_manifest(
    store: PartStore, tenant_id: str, head: ManifestHead, *, has_parts: bool
) -> Publication:
    """Read all pages of a head from the store, and check them. Not within a transaction.

    Args:
        store: has the pages.
        tenant_id: whose they are.
        head: of the manifest.
        has_parts: whether the parts of the content must be stored, too.

    Raises:
        InvalidInputError: the manifest can't be; says where.
        NotFoundError: a page is not stored.
        UnavailableError: the store does not answer.
    """
    sha256s = {entry.sha256 for entry in head.pages}
    pages = (store.get(tenant_id, entry.sha256) for entry in head.pages)
    try:
        for page in checked_pages(head, pages):
            if has_parts:
                sha256s.update(part.sha256.hex() for part in page.parts)
            _require_few(sha256s)
    except ValueError as error:
        raise InvalidInputError(
            f"The manifest was refused. {error}", code="bad_manifest"
        ) from error
    return Publication(head, head_digest(head), frozenset(sha256s))


def publish(
    session: Session, version: DatasetVersion, publication: Publication, now: datetime
) -> DatasetVersion:
    """Make a version ready with a checked manifest; again with the same one, nothing happens.

    Raises:
        ConflictError: it is not open, or became ready with other files.
        MissingPartsError: parts are not stored.
    """
    session.refresh(version)
    if version.state is VersionState.READY and version.digest == publication.digest:
        return version
    unchanged = _unchanged(session, version, publication)
    if unchanged is not None:
        return unchanged
    missing = announce(session, version, publication.sha256s, now)
    if missing:
        raise MissingPartsError(missing)
    _forget_others(session, version, publication.sha256s)
    head, appliance_id = publication.head, version.indexing_appliance_id
    ready = (
        update(DatasetVersion)
        .where(DatasetVersion.id == version.id, DatasetVersion.state.in_(_OPEN))
        .values(
            state=VersionState.READY,
            message="",
            digest=publication.digest,
            head=msgspec.to_builtins(head),
            file_count=head.file_count,
            total_bytes=head.total_bytes,
            indexed_bytes=head.total_bytes,
            parts_stored=version.state is VersionState.UPLOADING,
            ready_at=now,
        )
    )
    if not changed_one(session, ready):
        raise ConflictError("The version was closed meanwhile. Make a new one.")
    if appliance_id is not None:
        bump_generations(session, {appliance_id})
    notify_targets(session, version.dataset_id)
    session.refresh(version)
    return version


def _unchanged(
    session: Session, version: DatasetVersion, publication: Publication
) -> DatasetVersion | None:
    """Delete a version of a schedule with the files of the one before, and return that one."""
    if not version.is_scheduled or version.state not in _OPEN:
        return None
    newest = session.scalars(
        select(DatasetVersion)
        .where(
            DatasetVersion.dataset_id == version.dataset_id,
            DatasetVersion.state == VersionState.READY,
        )
        .order_by(DatasetVersion.number.desc())
        .limit(1)
    ).first()
    if newest is None or newest.digest != publication.digest:
        return None
    if version.indexing_appliance_id is not None:
        bump_generations(session, {version.indexing_appliance_id})
    session.delete(version)
    session.flush()
    return newest


def read_head(session: Session, version: DatasetVersion) -> ManifestHead:
    """Return the head of a version that is ready.

    Raises:
        ConflictError: it is not.
    """
    stored = session.scalar(select(DatasetVersion.head).where(DatasetVersion.id == version.id))
    if version.state is not VersionState.READY or stored is None:
        raise ConflictError(
            f"Version {version.number} is {version.state.value}: it has no list of files yet.",
            code="version_not_ready",
        )
    return msgspec.convert(stored, ManifestHead)


def read_files(
    sessions: SessionFactory,
    store: PartStore,
    version: DatasetVersion,
    *,
    after: str = "",
    prefix: str = "",
    limit: int = 100,
) -> FilePage:
    """Return files of a version behind a path; those that begin with `prefix`.

    Raises:
        ConflictError: the version is not ready.
        UnavailableError: the store does not answer.
    """
    with transaction(sessions) as session:
        head = read_head(session, version)
    files: list[ManifestFile] = []
    for file in _files_from(store, version.tenant_id, head, max(after, prefix)):
        if file.path <= after or file.path < prefix:
            continue
        if not file.path.startswith(prefix):
            break
        if len(files) == limit:
            return FilePage(files, files[-1].path)
        files.append(file)
    return FilePage(files, None)


def _require_few(sha256s: Collection[str]) -> None:
    if len(sha256s) > MAX_VERSION_PARTS:
        raise ValueError(
            f"The version has more than {MAX_VERSION_PARTS} parts. Make several datasets, or add "
            "it from a bucket."
        )


def _files_from(
    store: PartStore, tenant_id: str, head: ManifestHead, path: str
) -> Iterator[ManifestFile]:
    first = max(0, bisect_right([entry.first_path for entry in head.pages], path) - 1)
    for entry in head.pages[first:]:
        yield from unpack_page(store.get(tenant_id, entry.sha256)).files


def _forget_others(session: Session, version: DatasetVersion, sha256s: Collection[str]) -> None:
    """Delete references to parts that were announced, but are not in the manifest."""
    announced = set(
        session.scalars(select(VersionPart.sha256).where(VersionPart.version_id == version.id))
    )
    for chunk in chunked(sorted(announced - set(sha256s))):
        session.execute(
            delete(VersionPart).where(
                VersionPart.version_id == version.id, VersionPart.sha256.in_(chunk)
            )
        )
