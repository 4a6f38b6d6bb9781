"""The folder of one version in the cache: its manifest, and its files as they are written.

    versions/VERSION_ID/
        head.json, pages/SHA256     the manifest
        files/                      the tree that jobs mount; a file is here once it was checked
        partial/PAGE-FILE           files that are being written
        partial/PAGE-FILE.parts     of a large one: how much of each part was written, or checked
        boot                        the boot of the host in which `files` was written
        complete.json               there once all files are on the disk; its time is the last use
        pinned                      there if it must not be evicted

What a killed agent wrote is in the kernel's memory, so it counts; what was written before a crash
of the host counts once its hash was checked again, as `boot` says. A file moves to `files` by one
rename, after its hash was checked.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import file_digest, sha256
from pathlib import Path
from threading import Lock

import msgspec

from collector.datasets.errors import ContentError, DataError
from collector.datasets.part_writers import (
    CHECKED,
    READ_BYTES,
    LargeWriter,
    PartRecords,
    SmallWriter,
    Writer,
    write_all,
)
from collector.datasets.parts import Part, Segment
from core.atomic_files import replace_file, sync_folder
from protocol.datasets import ManifestFile, ManifestHead, ManifestPage
from protocol.manifests import check_page_data, head_digest, unpack_page

STATUS = Path("/proc/self/status")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
FILE_MODE, EXECUTABLE_MODE, FOLDER_MODE = 0o444, 0o555, 0o755


class VersionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`complete.json`."""

    digest: str
    name: str
    number: int
    file_count: int
    total_bytes: int


class VersionFolder:
    """Reads and writes the folder of a version. Thread-safe for different parts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = path / "files"
        self._files = str(self.files)
        self._partial = path / "partial"
        self._folders: set[str] = set()
        self._umask = _umask()
        self._lock = Lock()

    @property
    def version_id(self) -> str:
        """The version."""
        return self.path.name

    def create(self) -> None:
        """Create the folders that are missing."""
        for folder in (self.path, self.files, self._partial, self.path / "pages"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.files.chmod(FOLDER_MODE)

    # The manifest

    def store_head(self, head: ManifestHead) -> None:
        """Store the head of the manifest."""
        replace_file(self.path / "head.json", msgspec.json.encode(head), is_durable=False)

    def head(self, digest: str) -> ManifestHead | None:
        """Return the stored head; None if there is none with this digest."""
        try:
            raw = (self.path / "head.json").read_bytes()
            head = msgspec.json.decode(raw, type=ManifestHead)
        except (OSError, msgspec.MsgspecError):
            return None
        return head if head_digest(head) == digest else None

    def store_page(self, sha256_hex: str, data: bytes) -> None:
        """Store a page of the manifest."""
        replace_file(self.path / "pages" / sha256_hex, data, is_durable=False)

    def page(self, sha256_hex: str) -> ManifestPage | None:
        """Return a stored page, which was checked before; None if it is missing or damaged."""
        with suppress(OSError, ValueError):
            data = (self.path / "pages" / sha256_hex).read_bytes()
            check_page_data(data, sha256_hex)
            return unpack_page(data)
        return None

    # Files

    def is_empty(self) -> bool:
        """Return whether nothing is there yet, and nothing was begun."""
        return not any(self.files.iterdir()) and not any(self._partial.iterdir())

    def has(self, file: ManifestFile) -> bool:
        """Return whether a file is there, as its size proves: it was moved there once checked."""
        try:
            return os.stat(f"{self._files}/{file.path}").st_size == file.size_bytes  # noqa: PTH116 - often
        except OSError:
            return False

    def create_empty(self, file: ManifestFile) -> None:
        """Create an empty file."""
        path = self._place(file.path)
        path.unlink(missing_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        path.chmod(_mode(file))

    def store(self, file: ManifestFile, content: memoryview) -> None:
        """Write a small file at once: its mode comes first, so that its size proves all of it.

        Raises:
            ContentError: it has another hash.
        """
        if sha256(content).digest() != file.sha256:
            raise ContentError(f"{file.path} has other content than its version")
        folder = file.path.rpartition("/")[0]
        if folder not in self._folders:
            self.make_folders(folder)
        mode, flags = _mode(file), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        path = f"{self._files}/{file.path}"
        try:
            descriptor = os.open(path, flags, mode)
        except FileExistsError:  # of another size, by an agent that was killed
            os.unlink(path)  # noqa: PTH108 - often
            descriptor = os.open(path, flags, mode)
        try:
            if self._umask & mode:
                os.fchmod(descriptor, mode)
            write_all(descriptor, content, 0)
        finally:
            os.close(descriptor)

    def link(self, file: ManifestFile, other: Path) -> bool:
        """Link an equal file that is cached; return False if that isn't there, or can't be."""
        draft = self._partial / f"link-{os.urandom(8).hex()}"
        try:
            state = other.stat()
            if state.st_size != file.size_bytes or state.st_mode & 0o777 != _mode(file):
                return False
            os.link(other, draft)
            draft.replace(self._place(file.path))
        except OSError:  # it was just evicted, or has as many links as the file system allows
            return False
        finally:
            # A rename onto the same file leaves both.
            draft.unlink(missing_ok=True)
        return True

    def done_bytes(self, part: Part) -> int:
        """Return how much of a part is there and checked."""
        if part.is_of_large_file:
            segment = part.segments[0]
            if self.has(segment.file):
                return part.stored.size_bytes
            if self._records(part).read(segment) != CHECKED:
                return 0
            stem = self._stem(part, segment)
            # A kill may have come between the last check and the rename.
            self._finish_large(stem, segment.file)
            return part.stored.size_bytes
        return sum(segment.size_bytes for segment in part.segments if self.has(segment.file))

    def started_bytes(self, part: Part, segment: Segment) -> int:
        """Return how much of a segment was written, and not checked yet."""
        if part.is_of_large_file:
            written_bytes = self._records(part).read(segment)
            return written_bytes if written_bytes != CHECKED else 0
        try:
            partial = f"{self._partial}/{part.page_index}-{segment.file_index}"
            return os.stat(partial).st_size  # noqa: PTH116 - often
        except FileNotFoundError:
            return 0

    def writer(self, part: Part, segment: Segment) -> Writer:
        """Return what writes a segment, from where an earlier one ended."""
        stem = self._stem(part, segment)
        if part.is_of_large_file:
            return LargeWriter(stem, part, segment, self._finish_large)
        return SmallWriter(stem, segment.file, self.place)

    def place(self, partial: Path, file: ManifestFile) -> None:
        """Move a checked file to its place in the tree."""
        partial.chmod(_mode(file))
        partial.replace(self._place(file.path))

    def _place(self, path: str) -> Path:
        """Return the path of a file, with its folder created."""
        self.make_folders(path.rpartition("/")[0])
        return self.files / path

    def make_folders(self, folder: str) -> None:
        """Create a folder of the tree, with those above it."""
        if folder in self._folders:
            return
        if folder:
            self.make_folders(folder.rpartition("/")[0])
            new = self.files / folder
            new.mkdir(mode=FOLDER_MODE, exist_ok=True)
            new.chmod(FOLDER_MODE)
        self._folders.add(folder)

    def _finish_large(self, stem: Path, file: ManifestFile) -> None:
        """Move a large file to its place once all of its parts were checked."""
        with self._lock:
            records = PartRecords(stem)
            if stem.exists() and records.are_all_checked(file):
                self.place(stem, file)
                records.path.unlink(missing_ok=True)

    def _records(self, part: Part) -> PartRecords:
        return PartRecords(self._stem(part, part.segments[0]))

    def _stem(self, part: Part, segment: Segment) -> Path:
        return self._partial / f"{part.page_index}-{segment.file_index}"

    # Reading, for peers and checks

    def read(self, part: Part, offset: int, size_bytes: int) -> Iterator[bytes]:
        """Yield a range of a part, from the files that have it.

        Raises:
            OSError: a file is not there.
        """
        end = offset + size_bytes
        for segment in part.segments:
            segment_end = segment.part_offset + segment.size_bytes
            if segment.part_offset >= end or segment_end <= offset:
                continue
            begin = max(offset, segment.part_offset)
            path = self.files / segment.file.path
            if part.is_of_large_file and not path.exists():
                path = self._stem(part, segment)
            with path.open("rb", buffering=0) as file:
                file.seek(segment.file_offset + begin - segment.part_offset)
                left_bytes = min(end, segment_end) - begin
                while left_bytes:
                    content = file.read(min(READ_BYTES, left_bytes))
                    if not content:
                        raise FileNotFoundError(str(path))
                    left_bytes -= len(content)
                    yield content

    # After a crash of the host, and at the end

    @property
    def is_of_this_boot(self) -> bool:
        """Whether what is in the folder was written since the host booted."""
        with suppress(OSError):
            return (self.path / "boot").read_text(encoding="ascii") == boot_id()
        return False

    def set_boot(self) -> None:
        """Record that what is in the folder was written, or checked, in this boot."""
        replace_file(self.path / "boot", boot_id().encode(), is_durable=False)

    def recheck(self, parts: Iterable[Part]) -> Iterator[int]:
        """Remove what has another hash than it should; yield the checked bytes of each part."""
        for part in parts:
            if part.is_of_large_file:
                self._recheck_large(part)
            else:
                for segment in part.segments:
                    place = self.files / segment.file.path
                    if self.has(segment.file) and _digest(place) != segment.file.sha256:
                        place.unlink()
            yield self.done_bytes(part)

    def _recheck_large(self, part: Part) -> None:
        segment, records = part.segments[0], self._records(part)
        is_whole = self.has(segment.file)
        if not is_whole and records.read(segment) != CHECKED:
            return
        digest = sha256()
        try:
            for content in self.read(part, 0, part.stored.size_bytes):
                digest.update(content)
        except OSError:
            digest = sha256()
        if digest.digest() == part.stored.sha256:
            return
        if is_whole:  # all of its parts are fetched again: it is not known which are good
            (self.files / segment.file.path).unlink()
        else:
            records.write(segment, 0)

    def complete(self, record: VersionRecord) -> None:
        """Write all to the disk, then mark the version as complete."""
        sync_file_system(self.path)
        for left in self._partial.iterdir():
            left.unlink()
        replace_file(self.path / "complete.json", msgspec.json.encode(record))
        sync_folder(self.path)

    def record(self) -> VersionRecord | None:
        """Return what is known of a complete version; None if it isn't."""
        with suppress(OSError, msgspec.MsgspecError):
            raw = (self.path / "complete.json").read_bytes()
            return msgspec.json.decode(raw, type=VersionRecord)
        return None

    def set_incomplete(self) -> None:
        """Let the next stage look for what is missing."""
        (self.path / "complete.json").unlink(missing_ok=True)
        (self.path / "boot").unlink(missing_ok=True)


def _umask() -> int:
    """Return the bits that the process takes from the modes of new files; all if unknown."""
    with suppress(OSError, ValueError):
        for line in STATUS.read_text(encoding="utf-8").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o777


def boot_id() -> str:
    """Return the name of the host's current boot."""
    return BOOT_ID.read_text(encoding="ascii").strip()


def sync_file_system(folder: Path) -> None:
    """Write all of a folder's file system to the disk.

    Raises:
        DataError: the disk failed.
    """
    # Not in the `os` module; a sync of each of a million files would take minutes.
    import ctypes  # noqa: PLC0415 - only where it is used

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if library.syncfs(descriptor):
            reason = os.strerror(ctypes.get_errno())
            raise DataError(f"The disk of the cache {folder} failed: {reason}. Check the disk.")
    finally:
        os.close(descriptor)


def _mode(file: ManifestFile) -> int:
    return EXECUTABLE_MODE if file.is_executable else FILE_MODE


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return file_digest(file, "sha256").digest()
