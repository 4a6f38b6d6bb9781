"""Uploads the changed files of an attempt's output folders.

A file is hashed as it is read, in parts; the portal says which parts it lacks. A file that changes
meanwhile is left for the next time, as is one that was just written: it may be half a checkpoint.
A renamed file is whole.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from threading import Event

from collector.errors import PortalRefusedError
from collector.results.client import ChangedError, PartClient
from collector.results.folders import Folder, StoredFile
from collector.results.scanning import UNREADABLE, FoundFile, Scan, found_file, opened
from collector.results.settings import ResultSettings
from core.quantities import format_size
from protocol.datasets import PART_BYTES
from protocol.results import (
    MAX_ANNOUNCED_PARTS,
    MAX_FILE_PARTS,
    MAX_FILES,
    MAX_MESSAGE_LENGTH,
    ResultFile,
    ResultPart,
    ResultUpload,
)

log = logging.getLogger(__name__)

# The tenant's quota is used up, or the part is not what the portal takes.
_FINAL_REFUSALS = frozenset({409, 413, 422})
_REFUSAL_LENGTH = 300
_READ_BYTES = 1024**2
# The portal stores those of an announcement in one transaction.
_BATCH_FILES = 200
_SHOWN_PATHS = 3


class UnknownAttemptError(Exception):
    """The portal has no such attempt: nothing more of it is sent."""


class StoppedError(Exception):
    """The agent stops."""


class Uploads:
    """Uploads of one attempt. For one thread."""

    def __init__(
        self,
        folder: Folder,
        client: PartClient,
        settings: ResultSettings,
        *,
        stop: Event,
        now_ns: Callable[[], int],
    ) -> None:
        self._folder = folder
        self._client = client
        self._settings = settings
        self._stop = stop
        self._now_ns = now_ns
        self._missing_before: set[str] = set()
        self._unreadable: set[str] = set()
        self._reported = ResultUpload(attempt_id="")
        self.pending_files = 0
        self.pending_bytes = 0

    def sync(self, content: Scan, *, is_final: bool) -> bool:
        """Upload what has changed; return whether the portal has all there is.

        Args:
            content: what is in the folders now.
            is_final: whether nothing writes to them any more.

        Raises:
            UnknownAttemptError: the portal has no such attempt.
            StoppedError: the agent stops.
            PortalUnreachableError, PortalRefusedError: try again later.
        """
        wanted, too_large = self._within_limits(content)
        self._unreadable = set()  # its rights may have changed
        changed = [file for file in wanted if not self._is_known(file)]
        self._count(changed)
        for file in changed:
            if is_final or self._is_settled(file):
                self._hash(file)
        self._announce(changed)
        self._remove(content, is_final=is_final)
        waiting = [file for file in wanted if not self._is_known(file)]
        self._count(waiting)
        if self._unreadable:
            content.left_out[UNREADABLE] += len(self._unreadable)
        self._report(_message(content, too_large, self._folder.files))
        self._folder.save_files()
        return not waiting

    def _within_limits(self, content: Scan) -> tuple[list[FoundFile], list[FoundFile]]:
        """Return the files that may be uploaded, and those above the limit, small ones first."""
        total, wanted, too_large = 0, [], []
        limit = min(self._settings.max_bytes, MAX_FILE_PARTS * PART_BYTES)
        for file in sorted(content.files.values(), key=lambda file: (file.size_bytes, file.path)):
            if total + file.size_bytes > limit:
                too_large.append(file)
                continue
            total += file.size_bytes
            wanted.append(file)
        return wanted, too_large

    def _is_known(self, file: FoundFile) -> bool:
        """Return whether the portal has stored the file, or refused it, as it is now."""
        if file.path in self._unreadable:
            return True
        stored = self._hashed(file)
        return stored is not None and (stored.is_stored or bool(stored.refusal))

    def _hashed(self, file: FoundFile) -> StoredFile | None:
        stored = self._folder.files.get(file.path)
        if stored is None or (stored.size_bytes, stored.modified_at_ns, stored.inode) != (
            file.size_bytes,
            file.modified_at_ns,
            file.inode,
        ):
            return None
        return stored

    def _is_settled(self, file: FoundFile) -> bool:
        # Writing sets both times; only what came after it, such as a rename, sets one.
        is_renamed = file.changed_at_ns > file.modified_at_ns
        age_seconds = (self._now_ns() - file.changed_at_ns) / 1e9
        return is_renamed or age_seconds >= self._settings.settle_seconds or age_seconds < 0

    def _count(self, files: Sequence[FoundFile]) -> None:
        self.pending_files = len(files)
        self.pending_bytes = sum(file.size_bytes for file in files)

    def _hash(self, file: FoundFile) -> None:
        """Hash a file, unless that was done before."""
        if self._hashed(file) is not None:
            return
        root, relative = self._folder.place(file.path)
        whole, parts, left = hashlib.sha256(), [], file.size_bytes
        try:
            with opened(root, relative) as descriptor:
                while left:
                    part, size = hashlib.sha256(), 0
                    while size < min(PART_BYTES, left):
                        self._check_stop()
                        data = os.read(descriptor, min(_READ_BYTES, min(PART_BYTES, left) - size))
                        if not data:
                            return  # it was shortened
                        size += len(data)
                        part.update(data)
                        whole.update(data)
                    left -= size
                    parts.append(ResultPart(sha256=part.hexdigest(), size_bytes=size))
                is_same = found_file(file.path, os.fstat(descriptor)) == file
        except FileNotFoundError:
            return
        except OSError as error:
            log.debug("can't read %s: %s", file.path, error)
            self._unreadable.add(file.path)
            return
        if is_same:
            self._folder.files[file.path] = StoredFile(
                file.size_bytes, file.modified_at_ns, file.inode, whole.hexdigest(), parts
            )

    def _announce(self, changed: Sequence[FoundFile]) -> None:
        ready = [
            (file.path, stored)
            for file in changed
            if (stored := self._hashed(file)) is not None and not self._is_known(file)
        ]
        for batch in _batches(ready):
            self._upload_batch(batch)

    def _upload_batch(self, batch: Sequence[tuple[str, StoredFile]]) -> None:
        """Announce files and upload the parts that are missing, until all are stored."""
        files = [_result_file(path, stored) for path, stored in batch]
        places = _places(batch)
        uploaded: list[str] = []
        while True:
            reply = self._client.portal.announce_results(
                ResultUpload(
                    attempt_id=self._folder.attempt_id,
                    files=files,
                    uploaded=uploaded,
                    pending_files=self.pending_files,
                    pending_bytes=self.pending_bytes,
                    message=self._reported.message,
                )
            )
            if reply.is_unknown:
                raise UnknownAttemptError
            stored_paths = set(reply.stored)
            for path, stored in batch:
                stored.is_stored = path in stored_paths
                stored.refusal = reply.refused.get(path, stored.refusal)
            self._folder.save_files()
            uploaded = []
            for target in reply.missing:
                if target.sha256 in places and self._put(target.url, *places[target.sha256]):
                    uploaded.append(target.sha256)
            if not uploaded:
                return

    def _put(self, url: str, path: str, part: ResultPart, offset: int) -> bool:
        """Upload a part; return False if its file has changed since it was hashed."""
        root, relative = self._folder.place(path)
        try:
            with opened(root, relative) as descriptor:

                def read(start: int, length: int) -> bytes:
                    self._check_stop()
                    return os.pread(descriptor, length, offset + start)

                self._client.put(url, read, part.sha256, part.size_bytes)
        except (ChangedError, FileNotFoundError):
            self._folder.files.pop(path, None)
            return False
        except PortalRefusedError as error:
            if error.http_status not in _FINAL_REFUSALS or path not in self._folder.files:
                raise
            self._folder.files[path].refusal = error.message[:_REFUSAL_LENGTH]
            return False
        return True

    def _remove(self, content: Scan, *, is_final: bool) -> None:
        """Announce files that were deleted, the second time that they are missing."""
        if not content.is_whole:
            return
        gone = self._folder.files.keys() - content.files.keys()
        certain = gone if is_final else gone & self._missing_before
        self._missing_before = gone
        paths = sorted(path for path in certain if self._folder.files[path].is_stored)
        for begin in range(0, len(paths), MAX_FILES):
            upload = ResultUpload(
                attempt_id=self._folder.attempt_id,
                removed=paths[begin : begin + MAX_FILES],
                pending_files=self.pending_files,
                pending_bytes=self.pending_bytes,
                message=self._reported.message,
            )
            if self._client.portal.announce_results(upload).is_unknown:
                raise UnknownAttemptError
        for path in certain:
            del self._folder.files[path]

    def _report(self, message: str) -> None:
        """Report what waits and what is left out, if that has changed."""
        report = ResultUpload(
            attempt_id=self._folder.attempt_id,
            pending_files=self.pending_files,
            pending_bytes=self.pending_bytes,
            message=message,
        )
        if report == self._reported:
            return
        if self._client.portal.announce_results(report).is_unknown:
            raise UnknownAttemptError
        self._reported = report

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise StoppedError


def _batches(
    files: Sequence[tuple[str, StoredFile]],
) -> Iterator[list[tuple[str, StoredFile]]]:
    """Yield files as far as one announcement may have them."""
    batch: list[tuple[str, StoredFile]] = []
    parts = 0
    for path, stored in files:
        too_many = parts + len(stored.parts) > MAX_ANNOUNCED_PARTS
        if batch and (too_many or len(batch) >= _BATCH_FILES):
            yield batch
            batch, parts = [], 0
        batch.append((path, stored))
        parts += len(stored.parts)
    if batch:
        yield batch


def _result_file(path: str, stored: StoredFile) -> ResultFile:
    return ResultFile(
        path=path,
        size_bytes=stored.size_bytes,
        modified_at_ns=stored.modified_at_ns,
        sha256=stored.sha256,
        parts=stored.parts,
    )


def _places(
    batch: Sequence[tuple[str, StoredFile]],
) -> dict[str, tuple[str, ResultPart, int]]:
    """Return where the content of each part is: its file and the offset there."""
    places = {}
    for path, stored in batch:
        offset = 0
        for part in stored.parts:
            places[part.sha256] = path, part, offset
            offset += part.size_bytes
    return places


def _message(content: Scan, too_large: Sequence[FoundFile], files: dict[str, StoredFile]) -> str:
    """Return what is left out, and what to do about it."""
    parts = [f"{count:,} {reason}" for reason, count in sorted(content.left_out.items())]
    if too_large:
        first = too_large[0]
        parts.append(
            f"{len(too_large):,} files above the limit of this appliance ([results] max_bytes), "
            f"such as {first.path} with {format_size(first.size_bytes)}"
        )
    refused = [(path, stored.refusal) for path, stored in files.items() if stored.refusal]
    parts += [f"{path}: {reason}" for path, reason in refused[:_SHOWN_PATHS]]
    if len(refused) > _SHOWN_PATHS:
        parts.append(f"{len(refused) - _SHOWN_PATHS:,} more files that were refused")
    return f"Left out: {'; '.join(parts)}."[:MAX_MESSAGE_LENGTH] if parts else ""
