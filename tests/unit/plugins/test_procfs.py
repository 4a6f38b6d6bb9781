"""Files of the kernel: opened once, read whole, opened again after an error."""

from pathlib import Path

import pytest

from plugins.base import PluginError, PluginUnavailableError
from plugins.procfs import CHUNK_BYTES, KNOWN_NAMES_LIMIT, NameFilter, ProcFile, kibibytes


def test_a_file_is_read_from_its_start_each_time(tmp_path: Path) -> None:
    path = tmp_path / "stat"
    path.write_bytes(b"one")
    file = ProcFile(path)
    assert file.read() == b"one"
    path.write_bytes(b"three")
    assert file.read() == b"three"
    file.close()


def test_a_file_longer_than_a_piece_comes_whole(tmp_path: Path) -> None:
    path = tmp_path / "mountinfo"
    path.write_bytes(b"x" * (2 * CHUNK_BYTES + 7))
    file = ProcFile(path)
    assert len(file.read()) == 2 * CHUNK_BYTES + 7
    file.close()


def test_a_file_of_many_records_of_this_host_comes_whole() -> None:
    file = ProcFile(Path("/proc/self/smaps"))
    assert file.read().endswith(Path("/proc/self/smaps").read_bytes()[-40:])
    file.close()


def test_a_file_that_is_not_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(PluginUnavailableError, match="diskstats does not exist"):
        ProcFile(tmp_path / "diskstats").read()


def test_an_unreadable_file_is_reported_with_name_and_reason(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"can't be read: Is a directory"):
        ProcFile(tmp_path).read()


def test_a_file_is_opened_again_after_it_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "stat"
    path.write_bytes(b"one")
    file = ProcFile(path)
    file.read()
    file.close()
    file.close()
    assert file.read() == b"one"
    file.close()


def test_a_line_of_meminfo_is_found_by_its_whole_name() -> None:
    meminfo = b"MemTotal:       100 kB\nSwapCached:       7 kB\nCached:          20 kB\n"
    assert kibibytes(meminfo, b"MemTotal:") == 100 * 1024
    assert kibibytes(meminfo, b"Cached:") == 20 * 1024
    assert kibibytes(meminfo, b"Total:") is None


def test_names_are_skipped_by_pattern_even_if_there_are_many() -> None:
    chosen = NameFilter(["veth*"])
    for number in range(2 * KNOWN_NAMES_LIMIT):
        assert chosen.tag(b"veth%d" % number) is None
    assert chosen.tag(b"eth0") == "eth0"
