"""Writers of parts into files of a version, which go on where a killed agent ended."""

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from collector.datasets.errors import ContentError
from collector.datasets.parts import Part, Segment
from protocol.datasets import PART_BYTES, ManifestFile

READ_BYTES = 1024**2
CHECKED = 0xFFFFFFFF
_RECORD = struct.Struct("<I")


class Writer(Protocol):
    """Takes the content of a segment in order, and checks it at the end."""

    written_bytes: int
    """How much of the segment is there already."""

    def write(self, content: memoryview) -> None:
        """Append content."""

    def finish(self) -> None:
        """Check the hash.

        Raises:
            ContentError: it is another; what was written is removed.
        """

    def close(self) -> None:
        """Release the file; what was written stays."""


class SmallWriter:
    """Writes a file that is within one part: the size of its partial file is what was written.

    Args:
        partial: where it is written.
        file: the file.
        place: moves it to its place in the tree.
    """

    def __init__(
        self, partial: Path, file: ManifestFile, place: Callable[[Path, ManifestFile], None]
    ) -> None:
        self._path, self._file, self._place = partial, file, place
        self._descriptor = _open(partial)
        self.written_bytes = os.fstat(self._descriptor).st_size
        if self.written_bytes > file.size_bytes:
            os.ftruncate(self._descriptor, 0)
            self.written_bytes = 0
        self._digest = sha256()
        for content in _read(self._descriptor, 0, self.written_bytes):
            self._digest.update(content)

    def write(self, content: memoryview) -> None:
        """Append content."""
        self._digest.update(content)
        write_all(self._descriptor, content, self.written_bytes)
        self.written_bytes += len(content)

    def finish(self) -> None:
        """Check the hash, then move the file to its place."""
        if (
            self.written_bytes != self._file.size_bytes
            or self._digest.digest() != self._file.sha256
        ):
            self._path.unlink(missing_ok=True)
            raise ContentError(f"{self._file.path} has other content than its version")
        self._place(self._path, self._file)

    def close(self) -> None:
        """Release the file."""
        os.close(self._descriptor)


class LargeWriter:
    """Writes a part of a large file at its place in it; a file beside has how far each part is.

    Args:
        stem: where the file is written.
        part: the part.
        segment: the part's only segment.
        finish: called once it was checked, as the file may be complete.
    """

    def __init__(
        self, stem: Path, part: Part, segment: Segment, finish: Callable[[Path, ManifestFile], None]
    ) -> None:
        self._path, self._part, self._segment, self._finish = stem, part, segment, finish
        self._records = PartRecords(stem)
        self._descriptor = _open(stem)
        written_bytes = self._records.read(segment)
        size_bytes = os.fstat(self._descriptor).st_size
        if (
            written_bytes > part.stored.size_bytes
            or size_bytes < segment.file_offset + written_bytes
        ):
            written_bytes = 0
        self.written_bytes = written_bytes
        self._digest = sha256()
        for content in _read(self._descriptor, segment.file_offset, written_bytes):
            self._digest.update(content)

    def write(self, content: memoryview) -> None:
        """Append content."""
        self._digest.update(content)
        write_all(self._descriptor, content, self._segment.file_offset + self.written_bytes)
        self.written_bytes += len(content)
        self._records.write(self._segment, self.written_bytes)

    def finish(self) -> None:
        """Check the hash."""
        file = self._segment.file
        if self._digest.digest() != self._part.stored.sha256:
            self._records.write(self._segment, 0)
            raise ContentError(f"{file.path} has other content than its version")
        self._records.write(self._segment, CHECKED)
        self._finish(self._path, file)

    def close(self) -> None:
        """Release the file."""
        os.close(self._descriptor)


class PartRecords:
    """How much of each part of a large file was written: four bytes each, in a file beside it."""

    def __init__(self, stem: Path) -> None:
        self.path = stem.with_name(f"{stem.name}.parts")

    def read(self, segment: Segment) -> int:
        """Return the written bytes of a part, `CHECKED` once its hash was right."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        try:
            raw = os.pread(descriptor, _RECORD.size, _position(segment))
        finally:
            os.close(descriptor)
        return int(_RECORD.unpack(raw)[0]) if len(raw) == _RECORD.size else 0

    def write(self, segment: Segment, value: int) -> None:
        """Store it."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, _RECORD.pack(value), _position(segment))
        finally:
            os.close(descriptor)

    def are_all_checked(self, file: ManifestFile) -> bool:
        """Return whether the hash of each part was right."""
        count = -(-file.size_bytes // PART_BYTES)
        with suppress(FileNotFoundError):
            return self.path.read_bytes() == _RECORD.pack(CHECKED) * count
        return False


def _position(segment: Segment) -> int:
    return segment.file_offset // PART_BYTES * _RECORD.size


def _open(path: Path) -> int:
    """Return the descriptor of a file that is being written; it is created if it is missing."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _read(descriptor: int, offset: int, size_bytes: int) -> Iterator[bytes]:
    end = offset + size_bytes
    while offset < end and (content := os.pread(descriptor, min(READ_BYTES, end - offset), offset)):
        offset += len(content)
        yield content


def write_all(descriptor: int, content: memoryview, position: int) -> None:
    """Write content at a position of a file."""
    while content:
        written_bytes = os.pwrite(descriptor, content, position)
        content, position = content[written_bytes:], position + written_bytes
