"""The parts store: content of uploads, results and manifests' pages, by its SHA-256.

The content is in a folder or a bucket (`data_url`), below a folder of its tenant; the table
`data_parts` says what is there. A part that no version or artifact refers to is deleted a day after
it was last stored or announced, in an order that no upload can get between:

1. `reserve_part` notes the use of a part before its content is written, `record_received` that it
   is there.
2. `unused_parts` marks parts that nobody used for a day; from then on, they count as missing, and
   can't be reserved.
3. Their content is deleted, then `forget_parts` deletes their rows.
"""

import logging
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store
from sqlalchemy import and_, case, column, delete, exists, func, or_, select, table, update
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.orm import Session

from core.atomic_files import sync_folder
from core.db import changed_one, changed_rows
from core.errors import (
    ConfigurationError,
    InvalidInputError,
    NotFoundError,
    TooLargeError,
    UnavailableError,
)
from core.settings import ServerSettings
from datasets.models import DataPart, TenantDataSettings, VersionPart
from protocol.datasets import PART_BYTES
from protocol.manifests import content_hash
from tenants.quotas import lock_limits, reserve_quota

log = logging.getLogger(__name__)

UNUSED_AFTER = timedelta(days=1)
EXPORT_PIECE_BYTES = 1024 * 1024
_TIMEOUT = timedelta(seconds=60)
_RETRY_TIMEOUT = timedelta(seconds=30)
_MAX_RETRIES = 3
_BATCH = 500
# Of a package above this one, which refers to parts as versions do.
_artifact_parts = table("job_artifact_parts", column("tenant_id"), column("sha256"))


class PartStore:
    """The content of parts, in a folder or a bucket.

    Raises:
        ConfigurationError: the address is none of these, or can't be opened.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._place = settings.resolved_data_url
        self._folder = settings.data_folder
        try:
            self._store = self._open()
        except (BaseError, OSError, ValueError) as error:
            problem = f"data_url {self._place!r} can't be opened: {_first_line(error)}"
            raise ConfigurationError([problem], source="The configuration") from error

    def put(self, tenant_id: str, sha256: str, data: bytes) -> None:
        """Store a part's content; it is durable afterwards. Not within a transaction.

        Raises:
            TooLargeError: it is larger than a part.
            InvalidInputError: it has another hash.
            UnavailableError: the store does not answer, or is full.
        """
        if len(data) > PART_BYTES:
            raise TooLargeError(f"A part has at most {PART_BYTES} bytes, this one {len(data)}.")
        if content_hash(data) != sha256:
            raise InvalidInputError(
                f"The content is not the one with the SHA-256 {sha256}: it changed on its way, or "
                "while it was read. Read and send it again.",
                code="wrong_hash",
            )
        key = _key(tenant_id, sha256)
        with self._reporting("written"):
            obstore.put(self._store, key, data, use_multipart=False)
            if self._folder is not None:
                _make_durable(self._folder / key)

    def get(self, tenant_id: str, sha256: str) -> bytes:
        """Return a part's content, of which the hash was checked.

        Raises:
            NotFoundError: it is not there.
            UnavailableError: the store does not answer, or its content is damaged.
        """
        with self._reporting("read"):
            try:
                data = bytes(obstore.get(self._store, _key(tenant_id, sha256)).bytes())
            except FileNotFoundError as error:
                raise NotFoundError.of("part", sha256) from error
        if content_hash(data) != sha256:
            log.error("part %s of tenant %s is damaged in %s", sha256, tenant_id, self._place)
            raise UnavailableError(
                f"The stored part {sha256} is damaged. Ask the portal's operator to restore it "
                "from a backup, or upload the files again."
            )
        return data

    def get_range(self, tenant_id: str, sha256: str, start: int, size_bytes: int) -> bytes:
        """Return what a part has of a range; its reader checks the whole.

        Raises:
            NotFoundError: the part is not there.
            UnavailableError: the store does not answer.
        """
        key = _key(tenant_id, sha256)
        try:
            return bytes(obstore.get_range(self._store, key, start=start, length=size_bytes))
        except (BaseError, OSError):  # stores don't say whether the range is behind the end
            return self.get(tenant_id, sha256)[start : start + size_bytes]

    def delete(self, tenant_id: str, sha256s: Collection[str]) -> None:
        """Delete contents; missing ones are no error.

        Raises:
            UnavailableError: the store does not answer; some may be deleted.
        """
        for sha256 in sha256s:
            with self._reporting("deleted"), _missing_is_fine():
                obstore.delete(self._store, _key(tenant_id, sha256))

    def delete_tenant(self, tenant_id: str) -> None:
        """Delete all contents of a tenant that is removed.

        Raises:
            UnavailableError: the store does not answer; the next call goes on.
        """
        with self._reporting("deleted"):
            for chunk in obstore.list(self._store, prefix=f"{tenant_id}/"):
                for entry in chunk:
                    with _missing_is_fine():
                        obstore.delete(self._store, entry["path"])

    def put_export(self, path: Path) -> None:
        """Move the export of a removed tenant from a file to where all processes find it.

        Raises:
            UnavailableError: the store does not answer, or is full; the file is still there.
        """
        key = _export_key(path.name)
        with self._reporting("written"):
            obstore.put(self._store, key, path)
            if self._folder is not None:
                _make_durable(self._folder / key)
        path.unlink()

    def export(self, name: str) -> Iterator[bytes]:
        """Yield the pieces of an export.

        Raises:
            NotFoundError: it is not there.
            UnavailableError: the store does not answer.
        """
        with self._reporting("read"):
            try:
                content = obstore.get(self._store, _export_key(name))
            except FileNotFoundError as error:
                raise NotFoundError.of("export", name) from error
            for piece in content.stream(min_chunk_size=EXPORT_PIECE_BYTES):
                yield bytes(piece)

    def delete_export(self, name: str) -> None:
        """Delete an export; a missing one is no error.

        Raises:
            UnavailableError: the store does not answer.
        """
        with self._reporting("deleted"), _missing_is_fine():
            obstore.delete(self._store, _export_key(name))

    def _open(self) -> Any:  # noqa: ANN401 - obstore's types are not installed everywhere
        if self._place.startswith("s3://"):
            bucket, _, prefix = self._place.removeprefix("s3://").rstrip("/").partition("/")
            if not bucket:
                raise ValueError("it has no bucket; use s3://bucket/prefix")
            endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
            return S3Store(
                bucket,
                prefix=prefix or None,
                client_options={"timeout": _TIMEOUT, "allow_http": endpoint.startswith("http://")},
                retry_config={"max_retries": _MAX_RETRIES, "retry_timeout": _RETRY_TIMEOUT},
            )
        if self._folder is None:
            raise ValueError("it must be a folder or s3://bucket/prefix")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return LocalStore(self._folder)

    @contextmanager
    def _reporting(self, action: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            log.warning("parts in %s can't be %s: %s", self._place, action, _first_line(error))
            raise UnavailableError(
                f"The portal's store of data can't be {action} now. Try again in a moment; if it "
                "lasts, its operator should check data_url and the server's log."
            ) from error


def reserve_part(
    session: Session, tenant_id: str, sha256: str, size_bytes: int, now: datetime
) -> bool:
    """Note the use of a part before it is put; return whether the portal's store lacks it.

    One in the tenant's bucket is missing here: the portal can't look there, nor serve it.

    Raises:
        ConflictError: the tenant's quota is used up.
        UnavailableError: an unused one is being deleted; try again.
    """
    is_in_bucket = session.scalar(
        _parts(tenant_id, [sha256]).with_only_columns(DataPart.is_in_bucket)
    )
    if is_in_bucket is not None and not _use(session, tenant_id, sha256, now):
        raise UnavailableError(
            "The same content, unused for a day, is being deleted. Send it again in a moment."
        )
    if is_in_bucket is False:
        return False
    reserve_quota(
        session,
        tenant_id,
        "data_bytes",
        lambda: stored_bytes(session, tenant_id),
        adding=size_bytes,
    )
    return True


def record_received(
    session: Session, tenant_id: str, sha256: str, size_bytes: int, now: datetime
) -> bool:
    """Record a part whose content was put; return whether the tenant's quota still has room.

    Of two uploads that were reserved at the same moment, the second may be too much. Its content is
    deleted with the unused parts.
    """
    limit = lock_limits(session, tenant_id).max_data_bytes
    is_new = session.get(DataPart, (tenant_id, sha256)) is None
    record_part(session, tenant_id, sha256, size_bytes, now)
    if limit is None or not is_new or stored_bytes(session, tenant_id) <= limit:
        return True
    refused = update(DataPart).where(DataPart.tenant_id == tenant_id, DataPart.sha256 == sha256)
    session.execute(
        refused.values(is_deleting=True), execution_options={"synchronize_session": False}
    )
    return False


def record_part(
    session: Session,
    tenant_id: str,
    sha256: str,
    size_bytes: int,
    now: datetime,
    *,
    connection_id: str | None = None,
) -> None:
    """Record that a part's content is stored; it was reserved before.

    What the portal's store has is read from there, also if a bucket has it, too. Of two buckets the
    one with the newest copy is read.

    Args:
        session: the session.
        tenant_id: whose it is.
        sha256: of the content.
        size_bytes: of the content.
        now: the time.
        connection_id: of the bucket that has it; None is the portal's store.
    """
    values = {
        "tenant_id": tenant_id,
        "sha256": sha256,
        "size_bytes": size_bytes,
        "is_in_bucket": connection_id is not None,
        "connection_id": connection_id,
        "last_used_at": now,
        "is_deleting": False,
    }
    changes: dict[str, object] = {"last_used_at": now}
    if connection_id is None:
        changes |= {"size_bytes": size_bytes, "is_in_bucket": False, "connection_id": None}
    else:
        changes["connection_id"] = case((DataPart.is_in_bucket, connection_id), else_=None)
    if session.get_bind().dialect.name == "sqlite":
        key = [DataPart.tenant_id, DataPart.sha256]
        session.execute(
            sqlite.insert(DataPart).values(values).on_conflict_do_update(key, set_=changes)
        )
    else:
        session.execute(mysql.insert(DataPart).values(values).on_duplicate_key_update(changes))


def missing_parts(
    session: Session, tenant_id: str, sha256s: Collection[str], *, uses_bucket: bool = False
) -> set[str]:
    """Return which of these contents are not stored, or are being deleted.

    Args:
        session: the session.
        tenant_id: whose they are.
        sha256s: of the contents.
        uses_bucket: whether those in the tenant's buckets count as stored.
    """
    missing = set(sha256s)
    there = [] if uses_bucket else [~DataPart.is_in_bucket]
    for batch in _batches(missing):
        stored = _parts(tenant_id, batch).where(~DataPart.is_deleting, *there)
        missing -= set(session.scalars(stored.with_only_columns(DataPart.sha256)))
    return missing


def note_use(session: Session, tenant_id: str, sha256s: Collection[str], now: datetime) -> None:
    """Note that parts were announced, so that they stay for a day at least."""
    for batch in _batches(set(sha256s)):
        used = update(DataPart).where(
            DataPart.tenant_id == tenant_id, DataPart.sha256.in_(batch), ~DataPart.is_deleting
        )
        changed_rows(session, used.values(last_used_at=now), synchronize_session=False)


def note_buckets(session: Session) -> None:
    """Note the tenant's present bucket for parts in a bucket that is not known.

    During an upgrade, processes of the previous version record such parts.
    """
    present = (
        select(TenantDataSettings.results_connection_id)
        .where(TenantDataSettings.tenant_id == DataPart.tenant_id)
        .scalar_subquery()
    )
    is_unknown = DataPart.is_in_bucket & DataPart.connection_id.is_(None)
    session.execute(
        update(DataPart).where(is_unknown, present.is_not(None)).values(connection_id=present),
        execution_options={"synchronize_session": False},
    )


def unused_parts(
    session: Session, now: datetime, limit: int, *, is_in_bucket: bool | None = None
) -> list[tuple[str, str, str | None]]:
    """Mark parts to which nothing refers; return tenant, SHA-256 and connection of each.

    Those that were marked before, and not forgotten, come first.
    """
    place = [] if is_in_bucket is None else [DataPart.is_in_bucket == is_in_bucket]
    columns = (DataPart.tenant_id, DataPart.sha256, DataPart.connection_id)
    marked = select(*columns).where(DataPart.is_deleting, *place).limit(limit)
    parts = [(tenant_id, sha256, there) for tenant_id, sha256, there in session.execute(marked)]
    unused = and_(
        DataPart.last_used_at < now - UNUSED_AFTER, ~DataPart.is_deleting, _unreferenced()
    )
    candidates = select(*columns).where(unused, *place).order_by(DataPart.last_used_at)
    for tenant_id, sha256, there in session.execute(candidates.limit(limit - len(parts))).all():
        mark = update(DataPart).where(
            DataPart.tenant_id == tenant_id, DataPart.sha256 == sha256, unused
        )
        if changed_one(session, mark.values(is_deleting=True), synchronize_session=False):
            parts.append((tenant_id, sha256, there))
    return parts


def forget_parts(session: Session, parts: Sequence[tuple[str, str]]) -> None:
    """Delete the rows of marked parts (tenant, SHA-256), whose content is deleted."""
    for tenant_id, sha256 in parts:
        session.execute(
            delete(DataPart).where(
                DataPart.tenant_id == tenant_id, DataPart.sha256 == sha256, DataPart.is_deleting
            )
        )


def stored_bytes(session: Session, tenant_id: str) -> int:
    """Return how much a tenant has in the portal's store."""
    counted = select(func.sum(DataPart.size_bytes)).where(
        DataPart.tenant_id == tenant_id, ~DataPart.is_in_bucket
    )
    return int(session.scalar(counted) or 0)


def _parts(tenant_id: str, sha256s: Sequence[str]) -> Any:  # noqa: ANN401 - a SELECT to refine
    return select(DataPart).where(DataPart.tenant_id == tenant_id, DataPart.sha256.in_(sha256s))


def _use(session: Session, tenant_id: str, sha256: str, now: datetime) -> bool:
    used = update(DataPart).where(
        DataPart.tenant_id == tenant_id, DataPart.sha256 == sha256, ~DataPart.is_deleting
    )
    return changed_one(session, used.values(last_used_at=now), synchronize_session=False)


def _unreferenced() -> Any:  # noqa: ANN401 - a condition
    def refers(to: Any) -> Any:  # noqa: ANN401 - the columns of a table
        return exists().where(to.tenant_id == DataPart.tenant_id, to.sha256 == DataPart.sha256)

    return ~or_(refers(VersionPart), refers(_artifact_parts.c))


def _batches(sha256s: Collection[str]) -> Iterator[list[str]]:
    ordered = sorted(sha256s)  # rows are locked in one order
    return (ordered[start : start + _BATCH] for start in range(0, len(ordered), _BATCH))


def _key(tenant_id: str, sha256: str) -> str:
    return f"{tenant_id}/parts/{sha256[:2]}/{sha256}"


def _export_key(name: str) -> str:
    return f"exports/{name}"


def _make_durable(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(path.parent)


@contextmanager
def _missing_is_fine() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        return


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
