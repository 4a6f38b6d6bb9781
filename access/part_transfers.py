"""Contents of datasets and results on their way in and out.

They are held in memory while they pass, up to 64 MiB each: only a few do at a time.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import partial

from anyio import to_thread
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from access.database import Database
from access.ingest.body import read_raw_body
from core.clock import Clock
from core.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
    TooLargeError,
    VedetteError,
)
from core.rate_limits import ConcurrencyLimit
from datasets.archives import MAX_ARCHIVE_BYTES, unpack_archive
from datasets.manifests import announce, check_manifest, publish
from datasets.models import DatasetVersion
from datasets.parts import PartStore, record_received, reserve_part
from protocol.datasets import ManifestHead, SourceKind
from tenants.auditing.drafts import Actor
from tenants.quotas import QUOTA_REACHED

MAX_TRANSFERS, MAX_TRANSFERS_PER_TENANT = 8, 4
"""Of parts at a time: they take up to 64 MiB of memory each."""
MAX_RANGES, MAX_RANGES_PER_TENANT, MAX_RANGE_BYTES = 64, 16, 8 * 1024**2
"""Of ranges of parts at a time; a longer range is answered by the whole part."""
RETRY_AFTER_SECONDS = 2
_ALL = "all"
_MAX_DIGITS = 12
_SHA256 = re.compile("[0-9a-f]{64}")
NO_STORE_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_BINARY = "application/octet-stream"
_RANGE = re.compile(r"bytes=(\d{1,9})-(\d{1,9})")


class LengthRequiredError(VedetteError):
    """The request has no `Content-Length`."""

    status = 411
    default_code = "length_required"


class RangeError(VedetteError):
    """The part ends before the range that was asked for."""

    status = 416
    default_code = "range_not_satisfiable"


class PartTransfers:
    """Receives and sends contents, a few at a time. For one event loop."""

    def __init__(self, database: Database, store: PartStore, clock: Clock) -> None:
        self._database = database
        self._store = store
        self._clock = clock
        self._transfers = ConcurrencyLimit(MAX_TRANSFERS)
        self._of_tenant = ConcurrencyLimit(MAX_TRANSFERS_PER_TENANT)
        self._ranges = ConcurrencyLimit(MAX_RANGES)
        self._ranges_of_tenant = ConcurrencyLimit(MAX_RANGES_PER_TENANT)

    async def receive(
        self,
        request: Request,
        tenant_id: str,
        *,
        max_bytes: int,
        before: Callable[[Session, datetime], object] | None = None,
    ) -> Response:
        """Store the body of a request as the content that the path names.

        `before` runs in the transaction before anything is stored, and may refuse it.
        """
        sha256 = digest_of(request)
        size_bytes = _announced_bytes(request, max_bytes)

        def reserve(session: Session) -> bool:
            now = self._clock()
            if before is not None:
                before(session, now)
            return reserve_part(session, tenant_id, sha256, size_bytes, now)

        with self._slot(tenant_id):
            is_missing = await self._database.run(reserve)
            if is_missing:
                data = await read_raw_body(request, max_bytes=max_bytes)
                await self._store_and_record(tenant_id, sha256, data)
        return Response(status_code=204)

    async def _store_and_record(self, tenant_id: str, sha256: str, data: bytes) -> None:
        await to_thread.run_sync(self._store.put, tenant_id, sha256, data)
        has_room = await self._database.run(
            lambda session: record_received(session, tenant_id, sha256, len(data), self._clock())
        )
        if not has_room:
            raise ConflictError(
                "Other uploads have used up the tenant's quota of data bytes meanwhile. Free some, "
                "or ask the portal's operator for a higher quota.",
                code=QUOTA_REACHED,
            )

    async def receive_archive(
        self, request: Request, version: DatasetVersion, actor: Actor
    ) -> DatasetVersion:
        """Make a version ready with the files of a tar archive, the body of a request."""
        with self._slot(version.tenant_id):
            data = await read_raw_body(request, max_bytes=MAX_ARCHIVE_BYTES)
            archive = await to_thread.run_sync(unpack_archive, data)
            for sha256, content in archive.contents.items():
                await self._store_content(version, sha256, content)
        return await self.publish(version, archive.head, actor)

    async def _store_content(self, version: DatasetVersion, sha256: str, content: bytes) -> None:
        tenant_id, size_bytes = version.tenant_id, len(content)

        def reserve(session: Session) -> bool:
            announce(session, version, {sha256}, self._clock())
            return reserve_part(session, tenant_id, sha256, size_bytes, self._clock())

        if await self._database.run(reserve):
            await self._store_and_record(tenant_id, sha256, content)

    async def send(self, request: Request, tenant_id: str) -> Response:
        """Return the content that the path names, or the range of it that is asked for."""
        sha256, wanted = digest_of(request), _RANGE.fullmatch(request.headers.get("Range", ""))
        start, end = (int(wanted[1]), int(wanted[2]) + 1) if wanted else (0, 0)
        if not 0 < end - start <= MAX_RANGE_BYTES:
            with self._slot(tenant_id):
                data = await to_thread.run_sync(self._store.get, tenant_id, sha256)
            return Response(data, media_type=_BINARY, headers=NO_STORE_HEADERS)
        get_range = partial(self._store.get_range, tenant_id, sha256, start, end - start)
        with _slot(self._ranges, self._ranges_of_tenant, tenant_id):
            data = await to_thread.run_sync(get_range)
        if not data:
            raise RangeError(f"The part {sha256} ends before the byte {start}.")
        headers = {**NO_STORE_HEADERS, "Content-Range": f"bytes {start}-{start + len(data) - 1}/*"}
        return Response(data, 206, media_type=_BINARY, headers=headers)

    async def publish(
        self, version: DatasetVersion, head: ManifestHead, actor: Actor
    ) -> DatasetVersion:
        """Check a head with its pages, and make its version ready."""
        has_parts = version.dataset.kind is SourceKind.UPLOAD
        check = partial(check_manifest, self._store, version.tenant_id, head, has_parts=has_parts)
        publication = await to_thread.run_sync(check)

        def finish(session: Session) -> DatasetVersion:
            current = session.get(DatasetVersion, version.id)
            if current is None:
                raise NotFoundError.of("dataset version", version.id)
            return publish(session, current, publication, self._clock())

        return await self._database.run(finish, actor=actor)

    def _slot(self, tenant_id: str) -> AbstractContextManager[None]:
        return _slot(self._transfers, self._of_tenant, tenant_id)


@contextmanager
def _slot(
    limit: ConcurrencyLimit, limit_of_tenant: ConcurrencyLimit, tenant_id: str
) -> Iterator[None]:
    """Take part in the transfers of a kind.

    Raises:
        OverloadedError: there are as many as may be at a time.
    """
    with (
        limit.running(_ALL) as is_admitted,
        limit_of_tenant.running(tenant_id) as is_admitted_too,
    ):
        if not (is_admitted and is_admitted_too):
            raise OverloadedError(
                "Other parts of data are being transferred. Try again in a moment.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        yield


def digest_of(request: Request) -> str:
    """Return the SHA-256 in the path of a request.

    Raises:
        InvalidInputError: it is none.
    """
    sha256: str = request.path_params["sha256"]
    if not _SHA256.fullmatch(sha256):
        raise InvalidInputError(
            f"{sha256[:80]!r} is not a SHA-256: it has 64 digits 0-9 and a-f.",
            errors={"sha256": ["It has 64 digits 0-9 and a-f."]},
        )
    return sha256


def _announced_bytes(request: Request, max_bytes: int) -> int:
    """Return the size of the body, for the quota."""
    text = request.headers.get("Content-Length", "")
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise LengthRequiredError(
            "Send the size of the content as Content-Length: it counts for the tenant's quota."
        )
    if int(text) > max_bytes:
        raise TooLargeError(f"The content has {text} bytes, of at most {max_bytes}.")
    if not int(text):
        raise InvalidInputError("The content is empty. Empty files are in no part.")
    return int(text)
