"""Archives that browsers upload: files are stored, and everything else is refused."""

import tarfile
from io import BytesIO

import pytest

from core.errors import InvalidInputError
from datasets.archives import MAX_ARCHIVE_BYTES, unpack_archive
from protocol.manifests import decode_page


def archive(*members: tarfile.TarInfo) -> bytes:
    """Return a tar archive whose files consist of zeros."""
    stream = BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as made:
        for member in members:
            made.addfile(member, BytesIO(bytes(member.size)) if member.isreg() else None)
    return stream.getvalue()


def member(name: str, *, size: int = 3, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, "/etc/passwd"
    return info


def test_files_are_unpacked_in_the_order_of_their_paths() -> None:
    folder = member("b", size=0, kind=tarfile.DIRTYPE)
    unpacked = unpack_archive(archive(member("./b/ü.txt"), folder, member("a" * 120)))
    assert (unpacked.head.file_count, unpacked.head.total_bytes) == (2, 6)
    sha256 = unpacked.head.pages[0].sha256
    page = decode_page(unpacked.contents[sha256], sha256)
    assert [file.path for file in page.files] == ["a" * 120, "b/ü.txt"]
    assert unpacked.contents[page.parts[0].sha256.hex()] == bytes(6)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "refused"),
        (b"no archive" * 100, "refused"),
        (archive(), "no files"),
        (archive(member("../a")), "not a path"),
        (archive(member("/etc/passwd")), "not a path"),
        (archive(member("a"), member("a")), "twice"),
        (archive(member("a"), member("a/b")), "both a file and a folder"),
        (archive(member("a", size=0, kind=tarfile.SYMTYPE)), "no plain file"),
        (archive(member("a", size=0, kind=tarfile.LNKTYPE)), "no plain file"),
        (archive(member("a", size=0, kind=tarfile.FIFOTYPE)), "no plain file"),
        (archive(member("a", size=5000))[:2000], "refused"),
        (archive(*(member(f"{number}", size=0) for number in range(2001))), "more than 2000"),
    ],
    ids=[
        *("empty", "noise", "none", "above", "absolute", "twice", "folder", "link", "hard link"),
        *("pipe", "truncated", "many"),
    ],
)
def test_what_could_do_harm_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        unpack_archive(data)


def test_a_size_that_is_only_claimed_is_refused() -> None:
    claimed = member("a", size=MAX_ARCHIVE_BYTES + 1)
    with pytest.raises(InvalidInputError, match="more than"):
        unpack_archive(claimed.tobuf() + bytes(1024))
