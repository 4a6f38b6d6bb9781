"""Manifests of datasets: written while files are read, stored as pages, checked when they arrive.

A page is MessagePack, compressed by zlib. Its parts hold its files one after the other: a file of
up to `PART_BYTES` within a part, a larger one in parts of its own. Where a part or page ends
depends on the files in it, not on their number before: an added file changes the parts and pages
around it, and the others stay the same. Portal, agents and clients share this module.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import pairwise

import msgspec

from protocol.datasets import (
    MAX_FILES,
    MAX_PAGE_BYTES,
    MAX_PAGE_FILES,
    MAX_PATH_LENGTH,
    PART_BYTES,
    ManifestFile,
    ManifestHead,
    ManifestPage,
    ManifestPart,
    PageEntry,
)

MAX_PAGES = 5_000
MAX_FILE_BYTES = 6 * 1024**4
"""The parts of a larger file would not fit into a page."""
MAX_NAME_BYTES = 255
"""Of a file or folder, as file systems have it."""
MAX_DEPTH = 100

_ENTRY_BYTES = 64  # of a file or part in MessagePack, without the path
_PAGE_ROOM_BYTES = MAX_PAGE_BYTES - 64 * 1024  # incompressible pages grow a little
_MIN_PACK_BYTES = 8 * 1024**2
_MEAN_PACK_BYTES = 32 * 1024**2
_MIN_PAGE_FILES = 2_000
_MEAN_PAGE_FILES = 4_000
_CONTROL = frozenset(chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)))

_pages = msgspec.msgpack.Decoder(ManifestPage)


class StoredPage(msgspec.Struct, frozen=True):
    """A finished page: its entry in the head, and its content as it is stored."""

    entry: PageEntry
    data: bytes


def safe_path(path: str) -> bool:
    """Return whether a path stays below the folder of its dataset on every file system."""
    names = path.split("/")
    return (
        0 < len(path) <= MAX_PATH_LENGTH
        and len(names) <= MAX_DEPTH
        and _CONTROL.isdisjoint(path)
        and all(
            name not in {"", ".", ".."} and 0 < _name_bytes(name) <= MAX_NAME_BYTES
            for name in names
        )
    )


def encode_page(page: ManifestPage) -> bytes:
    """Return a page as it is stored."""
    return zlib.compress(msgspec.msgpack.encode(page), 6)


def decode_page(data: bytes, sha256: str) -> ManifestPage:
    """Return a stored page; neither its stored nor its unpacked form has over `MAX_PAGE_BYTES`.

    Raises:
        ValueError: it has another hash, is no page, or describes files that can't be.
    """
    check_page_data(data, sha256)
    page = unpack_page(data)
    _check_page(page, _Order())
    return page


def check_page_data(data: bytes, sha256: str) -> None:
    """Raise ValueError if a page is too large, or not the one with a hash."""
    if len(data) > MAX_PAGE_BYTES:
        raise ValueError(f"The page has {len(data)} bytes, of at most {MAX_PAGE_BYTES}.")
    if content_hash(data) != sha256:
        raise ValueError(f"The page is not the one with the SHA-256 {sha256}. Send it again.")


def unpack_page(data: bytes) -> ManifestPage:
    """Return a page whose files were checked before; `decode_page` checks them.

    Raises:
        ValueError: it is no page.
    """
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(data, MAX_PAGE_BYTES)
        page = _pages.decode(raw) if unpacker.eof and not unpacker.unused_data else None
    except (zlib.error, msgspec.DecodeError) as error:
        raise ValueError(f"The page can't be read: {error}.") from error
    if page is None:
        raise ValueError(f"The page is truncated, or unpacks to over {MAX_PAGE_BYTES} bytes.")
    return page


def content_hash(data: bytes) -> str:
    """Return the SHA-256 of data in hexadecimal digits, the name of a part or page."""
    return sha256(data).hexdigest()


def entry_of(page: ManifestPage, sha256: str) -> PageEntry:
    """Return a page's entry in the head; the page has a file."""
    return PageEntry(
        sha256=sha256,
        first_path=page.files[0].path,
        file_count=len(page.files),
        total_bytes=sum(file.size_bytes for file in page.files),
    )


def head_of(pages: Iterable[PageEntry]) -> ManifestHead:
    """Return the head of a manifest with these pages."""
    entries = list(pages)
    return ManifestHead(
        file_count=sum(entry.file_count for entry in entries),
        total_bytes=sum(entry.total_bytes for entry in entries),
        pages=entries,
    )


def head_digest(head: ManifestHead) -> str:
    """Return the SHA-256 of the head's JSON with sorted keys, which names the version."""
    return content_hash(msgspec.json.encode(head, order="sorted"))


def check_head(head: ManifestHead) -> None:
    """Raise ValueError if the totals or the order of the pages can't be."""
    if not head.pages:
        raise ValueError("The manifest has no files. A version needs one at least.")
    if len(head.pages) > MAX_PAGES:
        raise ValueError(f"The manifest has {len(head.pages)} pages, of at most {MAX_PAGES}.")
    if head.file_count > MAX_FILES:
        raise ValueError(
            f"The manifest has {head.file_count} files, of at most {MAX_FILES}. "
            "Pack small files into archives, or make several datasets."
        )
    if head != head_of(head.pages):
        raise ValueError("The totals of the manifest are not the sums of its pages.")
    paths = [entry.first_path for entry in head.pages]
    if any(not before < after for before, after in pairwise(paths)):
        raise ValueError("The pages of the manifest are not in the order of their paths.")


def checked_pages(head: ManifestHead, pages: Iterable[bytes]) -> Iterator[ManifestPage]:
    """Check the stored pages of a head and yield them, one in memory at a time.

    Raises:
        ValueError: a page is not as its entry says, can't be read, or has a path that is in the
            manifest twice, out of order, or both a file and a folder.
    """
    check_head(head)
    order = _Order()
    for entry, data in zip(head.pages, pages, strict=True):
        check_page_data(data, entry.sha256)
        page = unpack_page(data)
        _check_page(page, order)
        if entry_of(page, entry.sha256) != entry:
            raise ValueError(
                f"The page {entry.sha256} from {entry.first_path!r} on has other files than the "
                "head of the manifest says."
            )
        yield page


class ManifestWriter:
    """Makes the pages and parts of a manifest from files in the order of their paths.

    `take_part` gets each finished part with its content: up to 64 MiB, which are held until then.
    Without it contents are only hashed.
    """

    def __init__(self, take_part: Callable[[ManifestPart, bytes], None] | None = None) -> None:
        self.entries: list[PageEntry] = []
        self._take_part = take_part
        self._order = _Order()
        self._files: list[ManifestFile] = []
        self._parts: list[ManifestPart] = []
        self._page_bytes = 0
        self._part = _Part(keeps=take_part is not None)
        self._file_count = 0

    def add(
        self, path: str, size_bytes: int, chunks: Iterable[bytes], *, is_executable: bool = False
    ) -> list[StoredPage]:
        """Read a file's content, and return the pages that are finished now.

        Raises:
            ValueError: the path, the order or the size can't be; names the file.
        """
        self._check(path, size_bytes)
        pages = self._make_room(path, size_bytes)
        part_index, offset = (len(self._parts), self._part.size_bytes) if size_bytes else (0, 0)
        digest, left_bytes = sha256(), size_bytes
        for chunk in chunks:
            left_bytes -= len(chunk)
            if left_bytes < 0:
                break
            digest.update(chunk)
            self._append(chunk)
        if left_bytes:
            raise ValueError(
                f"{path} has {'more' if left_bytes < 0 else 'less'} than the {size_bytes} bytes "
                "that it had when it was listed: it changes. Try again when nothing writes to it."
            )
        file = ManifestFile(
            path, size_bytes, digest.digest(), part_index, offset, is_executable=is_executable
        )
        self._files.append(file)
        self._page_bytes += _ENTRY_BYTES + len(path.encode())
        self._file_count += 1
        if size_bytes > PART_BYTES or self._ends_pack(file):
            self._end_part()
        if len(self._files) >= MAX_PAGE_FILES or self._ends_page(path):
            pages += self._end_page()
        return pages

    def finish(self) -> list[StoredPage]:
        """Return the last page, if there is a file that is in none."""
        return self._end_page()

    def head(self) -> ManifestHead:
        """Return the head of what was added; after `finish`."""
        return head_of(self.entries)

    def _check(self, path: str, size_bytes: int) -> None:
        if not safe_path(path):
            raise ValueError(f"{path[:200]!r} {_UNSAFE}")
        if not 0 <= size_bytes <= MAX_FILE_BYTES:
            raise ValueError(f"{path} has {size_bytes} bytes, of at most {MAX_FILE_BYTES}.")
        if self._file_count >= MAX_FILES:
            raise ValueError(
                f"The dataset has more than {MAX_FILES} files. Pack small files into archives, or "
                "make several datasets."
            )
        self._order.check(path)

    def _make_room(self, path: str, size_bytes: int) -> list[StoredPage]:
        if self._part.size_bytes + size_bytes > PART_BYTES:
            self._end_part()
        needed = _ENTRY_BYTES * (2 + size_bytes // PART_BYTES) + len(path.encode())
        return self._end_page() if self._page_bytes + needed > _PAGE_ROOM_BYTES else []

    def _append(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            taken = view[: PART_BYTES - self._part.size_bytes]
            self._part.append(taken)
            view = view[len(taken) :]
            if view:  # only a large file goes on in the next part
                self._end_part()

    def _ends_pack(self, file: ManifestFile) -> bool:
        """Return whether a pack ends after a file: by its hash, in proportion to its size."""
        if self._part.size_bytes < _MIN_PACK_BYTES:
            return False
        chance = file.size_bytes * 2**32 // _MEAN_PACK_BYTES
        return int.from_bytes(file.sha256[:4]) < chance

    def _ends_page(self, path: str) -> bool:
        is_long = len(self._files) >= _MIN_PAGE_FILES
        return is_long and zlib.crc32(path.encode()) % _MEAN_PAGE_FILES == 0

    def _end_part(self) -> None:
        if not self._part.size_bytes:
            return
        part = ManifestPart(self._part.digest.digest(), self._part.size_bytes)
        self._parts.append(part)
        self._page_bytes += _ENTRY_BYTES
        if self._take_part is not None:
            self._take_part(part, bytes(self._part.data))
        self._part = _Part(keeps=self._take_part is not None)

    def _end_page(self) -> list[StoredPage]:
        self._end_part()
        if not self._files:
            return []
        page = ManifestPage(self._files, self._parts)
        data = encode_page(page)
        entry = entry_of(page, content_hash(data))
        self.entries.append(entry)
        self._files, self._parts, self._page_bytes = [], [], 0
        return [StoredPage(entry, data)]


class _Part:
    """The part that is being filled."""

    def __init__(self, *, keeps: bool) -> None:
        self.size_bytes = 0
        self.digest = sha256()
        self.data = bytearray()
        self._keeps = keeps

    def append(self, data: memoryview) -> None:
        self.size_bytes += len(data)
        self.digest.update(data)
        if self._keeps:
            self.data += data


class _Order:
    """Checks that paths ascend, and that no file is also the folder of another."""

    def __init__(self) -> None:
        self._last = ""
        # The lengths of files' paths with which the last one begins, as "a" and "a-b" with "a-b".
        self._prefix_lengths: dict[int, None] = {}

    def check(self, path: str) -> None:
        if not self._last < path:
            raise ValueError(
                f"{path!r} comes after {self._last!r}: paths must ascend, and each appear once."
            )
        lengths = self._prefix_lengths
        while lengths and not path.startswith(self._last[: next(reversed(lengths))]):
            lengths.popitem()
        for end in _folder_ends(path) if lengths else ():
            if end in lengths:
                raise ValueError(f"{path[:end]!r} is both a file and a folder. Rename one of them.")
        lengths[len(path)] = None
        self._last = path


def _check_page(page: ManifestPage, order: "_Order") -> None:
    if not page.files:
        raise ValueError("The page has no files.")
    part_index, position = 0, 0
    for file in page.files:
        if not safe_path(file.path):
            raise ValueError(f"{file.path[:200]!r} {_UNSAFE}")
        order.check(file.path)
        part_index, position = _end_of(file, page.parts, part_index, position)
    if (part_index, position) not in _ends(page.parts):
        raise ValueError("The page has parts, or an end of a part, that no file is in.")


def _end_of(
    file: ManifestFile, parts: list[ManifestPart], part_index: int, position: int
) -> tuple[int, int]:
    """Return part and position after a file, which begins where the one before it ended."""
    if not file.size_bytes:
        if file.part or file.offset:
            raise ValueError(f"{file.path!r} is empty, but has a place in a part.")
        return part_index, position
    if part_index < len(parts) and position == parts[part_index].size_bytes:
        part_index, position = part_index + 1, 0
    if (file.part, file.offset) != (part_index, position):
        raise ValueError(
            f"{file.path!r} begins at {file.offset} of part {file.part}, not where the file before "
            "it ends."
        )
    if file.size_bytes > PART_BYTES:
        last_index = part_index + (file.size_bytes - 1) // PART_BYTES
        last_bytes = file.size_bytes - (last_index - part_index) * PART_BYTES
        whole = parts[part_index:last_index]
        if (
            position
            or last_index >= len(parts)
            or any(part.size_bytes != PART_BYTES for part in whole)
            or parts[last_index].size_bytes != last_bytes
        ):
            raise ValueError(f"{file.path!r} does not fill parts of its own.")
        return last_index, last_bytes
    if part_index >= len(parts) or position + file.size_bytes > parts[part_index].size_bytes:
        raise ValueError(f"{file.path!r} does not fit into its part.")
    return part_index, position + file.size_bytes


def _ends(parts: list[ManifestPart]) -> set[tuple[int, int]]:
    return {(len(parts) - 1, parts[-1].size_bytes)} if parts else {(0, 0)}


def _folder_ends(path: str) -> Iterator[int]:
    end = path.find("/")
    while end >= 0:
        yield end
        end = path.find("/", end + 1)


def _name_bytes(name: str) -> int:
    try:
        return len(name.encode())
    except UnicodeEncodeError:  # a half of a character, as file systems can have it
        return 0


_UNSAFE = (
    "is not a path for a dataset: it must be relative and UTF-8, without '.', '..', empty names, "
    f"names above {MAX_NAME_BYTES} bytes and control characters, and have up to {MAX_PATH_LENGTH} "
    "characters. Rename the file."
)
