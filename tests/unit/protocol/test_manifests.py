"""Manifests: what a writer makes can be read, and what can't be is refused."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.datasets import (
    MAX_PAGE_BYTES,
    PART_BYTES,
    ManifestFile,
    ManifestHead,
    ManifestPage,
    ManifestPart,
)
from protocol.manifests import (
    ManifestWriter,
    StoredPage,
    check_head,
    checked_pages,
    content_hash,
    decode_page,
    encode_page,
    entry_of,
    head_digest,
    head_of,
    safe_path,
)

MIB = 2**20
HASH = b"h" * 32
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1)
PATHS = st.lists(NAMES.filter(lambda name: name not in {".", ".."}), min_size=1, max_size=3)
CONTENTS = st.dictionaries(PATHS.map("/".join).filter(safe_path), st.binary(max_size=300))


@dataclass
class Written:
    """What a writer made."""

    pages: list[StoredPage] = field(default_factory=list)
    parts: dict[bytes, bytes] = field(default_factory=dict)
    head: ManifestHead = field(default_factory=lambda: head_of([]))

    def contents(self) -> dict[str, bytes]:
        """Return the files by what pages and parts say."""
        files = {}
        for page in checked_pages(self.head, (stored.data for stored in self.pages)):
            for file in page.files:
                first = self.parts[page.parts[file.part].sha256] if file.size_bytes else b""
                data = first[file.offset : file.offset + file.size_bytes]
                position = file.part + 1
                while len(data) < file.size_bytes:
                    data += self.parts[page.parts[position].sha256][: file.size_bytes - len(data)]
                    position += 1
                assert content_hash(data) == file.sha256.hex()
                files[file.path] = data
        return files


def written(files: dict[str, bytes]) -> Written:
    """Return the manifest of files."""
    made = Written()
    writer = ManifestWriter(lambda part, data: made.parts.update({part.sha256: data}))
    for path, data in sorted(files.items()):
        made.pages += writer.add(path, len(data), [data[:7], data[7:]])
    made.pages += writer.finish()
    made.head = writer.head()
    return made


def without_conflicts(files: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out files that are also folders."""
    folders = {path[:place] for path in files for place in range(len(path)) if path[place] == "/"}
    return {path: data for path, data in files.items() if path not in folders}


@given(CONTENTS.map(without_conflicts))
def test_any_files_are_read_as_they_were_written(files: dict[str, bytes]) -> None:
    if files:
        assert written(files).contents() == files


def test_large_and_small_files_share_a_manifest() -> None:
    data = Random(7).randbytes(PART_BYTES + MIB)  # noqa: S311 - the same in each run
    files = {"a": b"1", "b/large": data, "b/whole": data[:PART_BYTES], "c": b"2", "d": b""}
    made = written(files)
    assert made.contents() == files
    assert sorted(map(len, made.parts.values())) == [1, 1, MIB, PART_BYTES]


def test_an_added_file_changes_few_parts_and_pages() -> None:
    random = Random(3)  # noqa: S311 - the same in each run
    files = {f"{number:06}": random.randbytes(40 * 1024) for number in range(1_500)}
    before, after = written(files), written({**files, "000000-new": b"new"})
    assert len(before.parts.keys() - after.parts.keys()) == 1
    assert len(before.parts) > 1
    small = {f"{number:06}": bytes([number % 256]) for number in range(30_000)}
    pages = [
        {page.entry.sha256 for page in written(content).pages}
        for content in (small, {**small, "000000-new": b"new"})
    ]
    assert len(pages[0] - pages[1]) <= 2 < len(pages[0])


def test_the_same_files_have_the_same_digest() -> None:
    files = {"a": b"1", "b": b"2"}
    assert head_digest(written(files).head) == head_digest(written(files).head)
    assert head_digest(written(files).head) != head_digest(written({"a": b"1"}).head)


@pytest.mark.parametrize(
    "path",
    [
        *("", "/etc/passwd", "a/../b", "..", "a//b", "./a", "a/", "a\0b", "a\nb", "a\x85b"),
        *("\ud800", "a" * 256, "/".join("ab" * 60), "x/" * 600 + "x"),
    ],
)
def test_a_path_that_leaves_its_folder_or_does_not_fit_is_refused(path: str) -> None:
    assert not safe_path(path)
    with pytest.raises(ValueError, match="Rename the file"):
        ManifestWriter().add(path, 0, [])


@pytest.mark.parametrize("path", ["a", "a/b", "ä/ö.jpg", "a b", ".hidden", "...", "a..b/c", "👩‍🚀"])
def test_usual_paths_are_fine(path: str) -> None:
    assert safe_path(path)


def test_a_file_that_changes_while_it_is_read_is_refused() -> None:
    with pytest.raises(ValueError, match="has less than the 3 bytes"):
        ManifestWriter().add("a", 3, [b"12"])
    with pytest.raises(ValueError, match="has more than the 1 bytes"):
        ManifestWriter().add("a", 1, [b"12"])


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        (["b", "a"], "paths must ascend"),
        (["a", "a"], "paths must ascend"),
        (["a", "a-b", "a/b"], "both a file and a folder"),
        (["a/b", "a/b/c"], "both a file and a folder"),
    ],
)
def test_paths_that_can_not_be_together_are_refused(paths: list[str], problem: str) -> None:
    writer = ManifestWriter()
    for path in paths[:-1]:
        writer.add(path, 0, [])
    with pytest.raises(ValueError, match=problem):
        writer.add(paths[-1], 0, [])


def decode(page: ManifestPage) -> ManifestPage:
    """Return a page as it arrives."""
    data = encode_page(page)
    return decode_page(data, content_hash(data))


def page_of(*files: ManifestFile, sizes: tuple[int, ...] = (10,)) -> ManifestPage:
    """Return a page with parts of these sizes."""
    return ManifestPage(list(files), [ManifestPart(HASH, size) for size in sizes])


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (page_of(), "no files"),
        (page_of(ManifestFile("../a", 10, HASH, 0)), "not a path"),
        (page_of(ManifestFile("a", 9, HASH, 0)), "no file is in"),
        (page_of(ManifestFile("a", 11, HASH, 0)), "does not fit"),
        (page_of(ManifestFile("a", 10, HASH, 0, 1)), "begins at 1"),
        (page_of(ManifestFile("a", 10, HASH, -1)), "begins at 0 of part -1"),
        (page_of(ManifestFile("a", 5, HASH, 0), ManifestFile("b", 6, HASH, 0, 4)), "begins at 4"),
        (page_of(ManifestFile("a", 0, HASH, 0, 3), sizes=()), "is empty"),
        (page_of(ManifestFile("a", 0, HASH, 0)), "no file is in"),
        (page_of(ManifestFile("b", 5, HASH, 0), ManifestFile("a", 5, HASH, 0, 5)), "ascend"),
        (page_of(ManifestFile("a", 2**62, HASH, 0)), "parts of its own"),
        (page_of(ManifestFile("a", PART_BYTES + 1, HASH, 0), sizes=(PART_BYTES, 2)), "of its own"),
        (page_of(ManifestFile("a", 10, HASH, 0), sizes=(10, 5)), "no file is in"),
        (page_of(ManifestFile("a", 10, b"short", 0)), "can't be read"),
        (page_of(ManifestFile("a", 10, HASH, 0), sizes=(PART_BYTES + 1,)), "can't be read"),
    ],
)
def test_a_page_that_can_not_be_is_refused(page: ManifestPage, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        decode(page)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no zlib",
        zlib.compress(b"\xc1"),
        zlib.compress(bytes(MAX_PAGE_BYTES * 4)),
        zlib.compress(msgspec.msgpack.encode([[], []]))[:-3],
        zlib.compress(msgspec.msgpack.encode([[], []])) + b"more",
        zlib.compress(b"\xdd\xff\xff\xff\xff"),
        bytes(MAX_PAGE_BYTES + 1),
    ],
    ids=["empty", "noise", "no page", "bomb", "truncated", "longer", "many", "large"],
)
def test_what_is_no_page_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="page"):
        decode_page(data, content_hash(data))


@given(st.binary(max_size=200))
def test_noise_never_fails_in_another_way(noise: bytes) -> None:
    data = zlib.compress(noise)
    with pytest.raises(ValueError, match="page"):
        decode_page(data, content_hash(data))


def test_a_page_with_another_hash_is_refused() -> None:
    data = encode_page(page_of(ManifestFile("a", 10, HASH, 0)))
    with pytest.raises(ValueError, match="is not the one"):
        decode_page(data, "0" * 64)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda _head: {"file_count": 1}, "sums of its pages"),
        (lambda _head: {"total_bytes": 1}, "sums of its pages"),
        (lambda _head: {"pages": []}, "no files"),
        (lambda head: vars_of(head_of([*head.pages, *head.pages])), "order of their paths"),
    ],
)
def test_a_head_that_can_not_be_is_refused(
    change: Callable[[ManifestHead], dict[str, Any]], problem: str
) -> None:
    head = written({"a": b"1", "b": b"2"}).head
    with pytest.raises(ValueError, match=problem):
        check_head(msgspec.structs.replace(head, **change(head)))


def vars_of(head: ManifestHead) -> dict[str, Any]:
    """Return the fields of a head."""
    return msgspec.structs.asdict(head)


def test_pages_that_are_not_as_the_head_says_are_refused() -> None:
    first = page_of(ManifestFile("a", 10, HASH, 0))
    second = page_of(ManifestFile("a/b", 10, HASH, 0))
    stored = [encode_page(first), encode_page(second)]
    entries = [
        entry_of(page, content_hash(data))
        for page, data in zip((first, second), stored, strict=True)
    ]
    with pytest.raises(ValueError, match="both a file and a folder"):
        list(checked_pages(head_of(entries), stored))
    wrong = msgspec.structs.replace(entries[0], file_count=2)
    with pytest.raises(ValueError, match="other files than the head"):
        list(checked_pages(head_of([wrong]), stored[:1]))


@given(st.randoms(use_true_random=False))
def test_a_changed_byte_is_never_read_as_another_page(random: Random) -> None:
    made = written({"a": b"1", "b/c": b"22"})
    data = bytearray(made.pages[0].data)
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    with pytest.raises(ValueError, match="is not the one"):
        decode_page(bytes(data), made.pages[0].entry.sha256)
