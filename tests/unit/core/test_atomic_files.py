"""Files are replaced as a whole or not at all."""

import errno
import stat
from pathlib import Path
from typing import BinaryIO, NoReturn

import pytest

from core.atomic_files import replace_file, replacing


def test_a_file_is_created_in_a_missing_folder_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "state" / "cursor.json"
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_old_content_is_there_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "cursor.json"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_can_not_be_completed_leaves_the_old_one_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "cursor.json"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="No space"), replacing(path) as file:
        _fill_disk(file)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_of_a_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "cursor.json"
    with replacing(path) as first, replacing(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def _fill_disk(file: BinaryIO) -> NoReturn:
    file.write(b"half of the")
    raise OSError(errno.ENOSPC, "No space left on device")
