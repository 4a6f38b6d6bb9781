"""The files of what VictoriaMetrics may not have on its disk yet."""

from pathlib import Path

import pytest

from timeseries.victoriametrics.recent_writes import RECENT_SECONDS, SUFFIX, RecentWrites

WRITTEN = [("multitenant", b"cpu x=1 1\n"), ("7:9", b"cpu x=2 2\ncpu x=3 3\n")]


def left_by(folder: Path) -> Path:
    """Return the only file of a process that has ended after writing."""
    recent = RecentWrites(folder)
    for account, lines in WRITTEN:
        recent.add(account, lines)
    recent.close()
    (path,) = folder.glob(f"*{SUFFIX}")
    return path


def test_the_next_process_finds_what_one_that_was_killed_has_written(tmp_path: Path) -> None:
    left_by(tmp_path)
    recent = RecentWrites(tmp_path)
    assert list(recent.records()) == WRITTEN
    recent.close()


def test_the_file_of_a_process_that_runs_is_its_own(tmp_path: Path) -> None:
    running = RecentWrites(tmp_path)
    running.add(*WRITTEN[0])
    other = RecentWrites(tmp_path)
    assert list(other.records()) == []
    assert list(running.records()) == WRITTEN[:1]
    running.close()
    other.close()


@pytest.mark.parametrize("damage", [b"", b"7:9 20 1\ncpu x=2 2\ncpu x=3 3\n", b"\0" * 50])
def test_a_record_that_is_not_whole_is_left_out(tmp_path: Path, damage: bytes) -> None:
    path = left_by(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"7:9")] + damage)
    recent = RecentWrites(tmp_path)
    assert list(recent.records()) == WRITTEN[:1]
    recent.close()


def test_what_is_old_is_forgotten_while_the_server_runs(tmp_path: Path) -> None:
    left_by(tmp_path)
    now = 0.0
    recent = RecentWrites(tmp_path, monotonic=lambda: now)
    for account, lines in WRITTEN:
        now += RECENT_SECONDS / 2
        recent.add(account, lines)
        recent.forget_old()
    assert list(recent.records()) == WRITTEN
    now += RECENT_SECONDS
    recent.forget_old()
    assert list(recent.records()) == []
    assert len(list(tmp_path.iterdir())) == 2
    recent.close()
