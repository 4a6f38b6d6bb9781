"""Indexes a source: reads it once, in the order of paths, into the cache and a manifest.

What was read before the agent was killed is read from the disk again, as long as size and time of a
file in the source are the same; after a crash of the host all is read anew.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar

from collector.datasets.cache import Cache
from collector.datasets.errors import DataError, StoppedError, TemporaryDataError
from collector.datasets.fetching import FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS
from collector.datasets.origins import PortalPages
from collector.datasets.part_writers import write_all
from collector.datasets.parts import PIECE_BYTES, PIECES_UNDER_WAY
from collector.datasets.progress import Progress
from collector.datasets.reading import ReadAhead
from collector.datasets.sources import Source, SourceFile
from collector.datasets.version_folder import (
    EXECUTABLE_MODE,
    FILE_MODE,
    VersionRecord,
)
from collector.errors import PortalRefusedError, PortalUnreachableError
from protocol.datasets import MAX_FILES, IndexOrder, IndexResult
from protocol.manifests import ManifestWriter, StoredPage, head_digest, safe_path

T = TypeVar("T")

# The portal is slow or away, not the request wrong.
PASSING = frozenset({401, 403, 408, 429})


@dataclass(frozen=True, slots=True)
class _Read:
    """A range of a file, from the source or from what was stored of it."""

    file: SourceFile
    offset: int
    size_bytes: int
    stored: Path | None


class SourceIndexer:
    """Indexes a source; `run` belongs to one thread.

    Args:
        order: what to index.
        cache: where its files go.
        portal: where the manifest goes.
        source: opens the source, with the newest credentials.
        reads: the threads that read.
        progress: its total grows as the source is listed.
        stop: set when the portal wants it no more.
        retry_seconds: how long a source that does not answer is tried.
    """

    def __init__(
        self,
        order: IndexOrder,
        *,
        cache: Cache,
        portal: PortalPages,
        source: Callable[[], Source],
        reads: ReadAhead,
        progress: Progress,
        stop: Event,
        retry_seconds: float,
    ) -> None:
        self._order = order
        self._cache = cache
        self._portal = portal
        self._source = source
        self._reads = reads
        self._progress = progress
        self._stop = stop
        self._retry_seconds = retry_seconds
        self._folder = cache.open(order.version_id)
        self._writer = ManifestWriter()

    def run(self) -> None:
        """Read the source, send its manifest, and mark the version as complete.

        Raises:
            DataError: it can't be indexed.
        """
        try:
            self._run()
        except ValueError as error:
            raise DataError(str(error)) from error
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise DataError(
                    f"The disk of the cache {self._cache.folder} is full. Free space there, or "
                    "index the source on an appliance with more room."
                ) from error
            raise DataError(f"The cache can't be written: {error}. Check its disk.") from error
        finally:
            self._cache.release(self._order.version_id)

    def _run(self) -> None:
        if not self._folder.is_of_this_boot:
            self._cache.remove(self._order.version_id)
            self._folder = self._cache.open(self._order.version_id)
            self._folder.set_boot()
        self._progress.note = "Listing the source."
        files = self._retrying(self._listed)
        if not files:
            raise DataError(
                f"{self._order.source.url} has no files. Check the dataset's address, and that its "
                "credentials may list it."
            )
        self._progress.note = ""
        self._progress.total_bytes = sum(file.size_bytes for file in files)
        self._progress.begin(0)
        self._retrying(
            lambda: self._cache.reserve(
                self._order.version_id, self._progress.total_bytes, name=self._order.name
            )
        )
        self._remove_others(files)
        content = self._reads.in_order(self._read, self._reading(files), ahead=PIECES_UNDER_WAY)
        for file in files:
            self._check_stop()
            chunks = self._stored(file, content)
            pages = self._writer.add(
                file.path, file.size_bytes, chunks, is_executable=file.is_executable
            )
            self._place(file)
            self._send(pages)
        self._send(self._writer.finish())
        self._finish()

    def _listed(self) -> list[SourceFile]:
        files = []
        for file in self._source().files():
            self._check_stop()
            if not safe_path(file.path):
                raise DataError(
                    f"{file.path[:200]!r} in {self._order.source.url} is not a name that a "
                    "dataset can have. Rename it."
                )
            files.append(file)
            if len(files) > MAX_FILES:
                raise DataError(
                    f"{self._order.source.url} has more than {MAX_FILES} files. Pack small files "
                    "into archives, or make several datasets."
                )
        files.sort(key=lambda file: file.path)
        return files

    def _reading(self, files: list[SourceFile]) -> Iterator[_Read]:
        for file in files:
            place = self._folder.files / file.path
            is_stored = _is_stored(place, file)
            for offset in range(0, file.size_bytes, PIECE_BYTES):
                size_bytes = min(PIECE_BYTES, file.size_bytes - offset)
                yield _Read(file, offset, size_bytes, place if is_stored else None)

    def _read(self, piece: _Read) -> memoryview:
        if piece.stored is not None:
            descriptor = os.open(piece.stored, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return memoryview(os.pread(descriptor, piece.size_bytes, piece.offset))
            finally:
                os.close(descriptor)
        content = self._retrying(
            lambda: self._source().read(piece.file.path, piece.offset, piece.size_bytes)
        )
        self._progress.add_fetched(len(content), is_from_peer=False)
        return content

    def _stored(
        self, file: SourceFile, content: Iterator[tuple[_Read, memoryview]]
    ) -> Iterator[bytes]:
        """Yield the content of a file, which is written to a draft beside."""
        descriptor = -1
        left_bytes = file.size_bytes
        try:
            while left_bytes:
                piece, chunk = next(content)
                if piece.stored is None:
                    if descriptor < 0:
                        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                        descriptor = os.open(self._draft, flags, 0o600)
                    write_all(descriptor, chunk, file.size_bytes - left_bytes)
                    self._cache.add_written(self._order.version_id, len(chunk))
                self._progress.add(len(chunk))
                left_bytes -= len(chunk)
                yield bytes(chunk)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    @property
    def _draft(self) -> Path:
        return self._folder.path / "partial" / "draft"

    def _place(self, file: SourceFile) -> None:
        """Move a file to its place; its time there is that in the source."""
        place = self._folder.files / file.path
        if _is_stored(place, file):
            return
        self._folder.make_folders(file.path.rpartition("/")[0])
        if not file.size_bytes:
            self._draft.write_bytes(b"")
        self._draft.chmod(EXECUTABLE_MODE if file.is_executable else FILE_MODE)
        os.utime(self._draft, ns=(file.modified_ns, file.modified_ns))
        self._draft.replace(place)

    def _send(self, pages: list[StoredPage]) -> None:
        for page in pages:
            sha256 = page.entry.sha256
            self._folder.store_page(sha256, page.data)
            self._to_portal(partial(self._send_page, sha256, page.data))

    def _send_page(self, sha256: str, data: bytes) -> None:
        self._portal.send_page(self._order.version_id, sha256, data)

    def _finish(self) -> None:
        head = self._writer.head()
        self._folder.store_head(head)
        self._to_portal(lambda: self._portal.finish(self._order.version_id, IndexResult(head=head)))
        record = VersionRecord(
            digest=head_digest(head),
            name=self._order.name,
            number=self._order.number,
            file_count=head.file_count,
            total_bytes=head.total_bytes,
        )
        self._cache.set_complete(self._order.version_id, record)

    def _remove_others(self, files: list[SourceFile]) -> None:
        """Remove what an earlier try stored and the source no longer has."""
        listed = {file.path for file in files}
        for parent, _, names in os.walk(self._folder.files):
            for name in names:
                place = Path(parent) / name
                if str(place.relative_to(self._folder.files)) not in listed:
                    place.unlink()

    def _to_portal(self, call: Callable[[], None]) -> None:
        def send() -> None:
            try:
                call()
            except PortalUnreachableError as error:
                raise TemporaryDataError(error.message) from error
            except PortalRefusedError as error:
                if error.http_status in PASSING:
                    raise TemporaryDataError(error.message) from error
                raise DataError(f"The portal refused the manifest: {error.message}") from error

        self._retrying(send)

    def _retrying(self, action: Callable[[], T]) -> T:
        wait_seconds, began = FIRST_RETRY_SECONDS, time.monotonic()
        while True:
            self._check_stop()
            try:
                result = action()
            except TemporaryDataError as error:
                if time.monotonic() - began > self._retry_seconds:
                    raise DataError(
                        f"{str(error).rstrip('.')}, for {self._retry_seconds:.0f} s. Check the "
                        "network between the appliance and the source, then index it again."
                    ) from error
                self._progress.note = f"{str(error).rstrip('.')}. Trying again."
                self._stop.wait(wait_seconds)
                wait_seconds = min(2 * wait_seconds, MAX_RETRY_SECONDS)
            else:
                if wait_seconds > FIRST_RETRY_SECONDS:
                    self._progress.note = ""
                return result

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise StoppedError(f"The index of {self._order.name} is not wanted any more.")


def _is_stored(place: Path, file: SourceFile) -> bool:
    """Return whether an earlier try has stored a file, as it is in the source now."""
    try:
        state = os.stat(place)  # noqa: PTH116 - often
    except OSError:
        return False
    return (state.st_size, state.st_mtime_ns) == (file.size_bytes, file.modified_ns) and bool(
        state.st_mode & 0o100
    ) == file.is_executable
