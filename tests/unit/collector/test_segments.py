"""Segment files: what is read within which limits, set aside, cut off and synced."""

import errno
import os
import stat
from pathlib import Path
from random import Random

import pytest

from collector.buffering.frames import Extent, Frame, encode_frame
from collector.buffering.segments import (
    READ_BYTES,
    Segment,
    SegmentWriter,
    add_range,
    clip_ranges,
    open_segment,
    read_range,
    remove,
    segment_path,
    segment_paths,
    set_aside,
)
from tests.unit.collector.frames import refusing

NO_LIMIT = 10**9


def small(number: int) -> Frame:
    return Frame(b"m v=%06d" % number, 2, 1000 + number)  # ten bytes


def large(number: int) -> Frame:
    """Return a frame that compression does not make smaller than one read."""
    return Frame(Random(number).randbytes(READ_BYTES + 1000), 5, 2000 + number)  # noqa: S311


def written(folder: Path, frames: list[Frame]) -> tuple[Segment, list[int]]:
    """Write a segment; return it with the offset of each frame, and the end."""
    contents = [encode_frame(written_frame) for written_frame in frames]
    offsets = [sum(map(len, contents[:count])) for count in range(len(contents) + 1)]
    segment = Segment(segment_path(folder, 1), 1, size_bytes=offsets[-1])
    segment.path.write_bytes(b"".join(contents))
    return segment, offsets


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the path of each synced file is appended."""
    paths: list[str] = []
    monkeypatch.setattr(
        "collector.buffering.segments.os.fsync",
        lambda descriptor: paths.append(str(Path(f"/proc/self/fd/{descriptor}").readlink())),
    )
    return paths


def read(segment: Segment, start: int, end: int, **limits: int) -> list[Frame]:
    all_limits = {"max_points": NO_LIMIT, "max_bytes": NO_LIMIT, **limits}
    frames, damage = read_range(segment, start, end, **all_limits)
    assert damage is None
    return [frame for _, frame in frames]


def test_frames_are_read_with_their_extents(tmp_path: Path) -> None:
    segment, at = written(tmp_path, [small(0), small(1), small(2)])
    frames, damage = read_range(segment, at[1], at[3], max_points=NO_LIMIT, max_bytes=NO_LIMIT)
    assert damage is None
    assert frames == [
        (Extent(at[1], at[2], 2, 1001), small(1)),
        (Extent(at[2], at[3], 2, 1002), small(2)),
    ]


def test_nothing_after_the_end_of_the_range_is_read(tmp_path: Path) -> None:
    segment, at = written(tmp_path, [small(0), small(1), small(2)])
    assert read(segment, 0, at[2]) == [small(0), small(1)]


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"max_points": 1}, 1),  # the first frame is read in any case
        ({"max_points": 3}, 1),
        ({"max_points": 4}, 2),
        ({"max_points": 5}, 2),
        ({"max_bytes": 1}, 1),
        ({"max_bytes": 29}, 2),
        ({"max_bytes": 30}, 3),
        ({"max_points": 6, "max_bytes": 20}, 2),
        ({"max_points": 2, "max_bytes": 30}, 1),
    ],
)
def test_a_batch_ends_at_the_limit_of_points_or_bytes(
    tmp_path: Path, limits: dict[str, int], count: int
) -> None:
    segment, at = written(tmp_path, [small(number) for number in range(5)])
    assert read(segment, 0, at[5], **limits) == [small(number) for number in range(count)]


def test_one_read_returns_the_frames_that_are_complete_in_it(tmp_path: Path) -> None:
    segment, at = written(tmp_path, [small(0), large(1), small(2)])
    assert read(segment, 0, at[3]) == [small(0)]


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({}, 2),
        ({"max_points": 7}, 2),
        ({"max_points": 6}, 1),
        ({"max_bytes": READ_BYTES + 1010}, 2),
        ({"max_bytes": READ_BYTES + 1009}, 1),
    ],
)
def test_a_frame_larger_than_one_read_is_returned_whole(
    tmp_path: Path, limits: dict[str, int], count: int
) -> None:
    segment, at = written(tmp_path, [small(0), large(1), small(2)])
    frames = [large(1), small(2)][:count]
    assert read(segment, at[1], at[3], **limits) == frames


def test_damage_ends_at_the_next_valid_frame(tmp_path: Path) -> None:
    segment, at = written(tmp_path, [small(0), small(1), small(2)])
    content = bytearray(segment.path.read_bytes())
    content[at[2] - 1] ^= 1
    segment.path.write_bytes(content)
    result = read_range(segment, at[1], at[3], max_points=NO_LIMIT, max_bytes=NO_LIMIT)
    assert result == ([], Extent(at[1], at[2], 2, is_damaged=True))


def test_damage_longer_than_one_read_ends_at_the_next_valid_frame(tmp_path: Path) -> None:
    segment, at = written(tmp_path, [small(0), large(1), small(2)])
    content = bytearray(segment.path.read_bytes())
    content[at[1] + 100] ^= 1
    segment.path.write_bytes(content)
    [], damage = read_range(segment, at[1], at[3], max_points=NO_LIMIT, max_bytes=NO_LIMIT)
    assert damage == Extent(at[1], at[2], 5, is_damaged=True)


@pytest.mark.parametrize("left_bytes", [0, 1, 30])
def test_damage_reaches_the_end_of_the_range_where_the_file_is_cut(
    tmp_path: Path, left_bytes: int
) -> None:
    segment, at = written(tmp_path, [small(0), small(1), small(2)])
    os.truncate(segment.path, at[1] + left_bytes)
    result = read_range(segment, at[1], at[3], max_points=NO_LIMIT, max_bytes=NO_LIMIT)
    assert result == ([], Extent(at[1], at[3], 0, is_damaged=True))


def test_reading_closes_the_file(tmp_path: Path) -> None:
    segment, at = written(tmp_path, [small(0)])
    before = open_descriptors()
    read(segment, 0, at[1])
    assert open_descriptors() == before


def test_a_missing_segment_can_not_be_read(tmp_path: Path) -> None:
    segment = Segment(segment_path(tmp_path, 1), 1, size_bytes=10)
    with pytest.raises(FileNotFoundError):
        read_range(segment, 0, 10, max_points=1, max_bytes=1)


def test_damaged_bytes_are_copied_to_a_private_file_named_by_offset(tmp_path: Path) -> None:
    segment, _ = written(tmp_path, [small(0)])
    segment.path.write_bytes(b"0123456789")
    assert set_aside(segment, Extent(3, 7, 0, is_damaged=True))
    copy = tmp_path / "000000000001.damaged-3"
    assert copy.read_bytes() == b"3456"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert not set_aside(segment, Extent(3, 9, 0, is_damaged=True))
    assert copy.read_bytes() == b"3456"


def test_only_the_newest_eight_copies_are_retained(tmp_path: Path) -> None:
    segment, _ = written(tmp_path, [small(0)])
    oldest_first = [7, 2, 9, 4, 1, 8, 3, 6, 5]
    for second, number in enumerate(oldest_first):
        copy = tmp_path / f"000000000000.damaged-{number}"
        copy.touch()
        os.utime(copy, (1000 + second, 1000 + second))
    assert set_aside(segment, Extent(0, 5, 0, is_damaged=True))
    remaining = {path.name for path in tmp_path.glob("*.damaged-*")}
    newest_seven = {f"000000000000.damaged-{number}" for number in oldest_first[2:]}
    assert remaining == {*newest_seven, "000000000001.damaged-0"}
    assert segment.path.exists()


def test_a_copy_that_can_not_be_deleted_does_not_prevent_deleting_others(tmp_path: Path) -> None:
    segment, _ = written(tmp_path, [small(0)])
    folder = tmp_path / "000000000000.damaged-0"
    folder.mkdir()
    os.utime(folder, (1, 1))
    for number in range(1, 10):
        copy = tmp_path / f"000000000000.damaged-{number}"
        copy.touch()
        os.utime(copy, (1 + number, 1 + number))
    assert set_aside(segment, Extent(0, 5, 0, is_damaged=True))
    remaining = {path.name.rpartition("-")[2] for path in tmp_path.glob("000000000000.damaged-*")}
    assert remaining == {"0", "3", "4", "5", "6", "7", "8", "9"}


def test_damage_counts_also_if_it_can_not_be_copied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    segment, _ = written(tmp_path, [small(0)])
    segment.path.unlink()
    assert set_aside(segment, Extent(0, 5, 0, is_damaged=True))
    assert "000000000001.damaged-0" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_partial_frame_at_the_end_is_cut_off(tmp_path: Path) -> None:
    segment, at = written(tmp_path, [small(0), small(1)])
    os.truncate(segment.path, at[1] + 10)
    opened, extents = open_segment(segment.path, [])
    assert extents == [Extent(0, at[1], 2, 1000), Extent(at[1], at[1] + 10, 0, is_damaged=True)]
    assert (opened.number, opened.size_bytes, opened.newest_ns) == (1, at[1], 1000)
    assert (opened.acknowledged, opened.is_sealed) == ([], False)
    assert segment.path.stat().st_size == at[1]


def test_a_segment_that_can_not_be_cut_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, at = written(tmp_path, [small(0), small(1)])
    os.truncate(segment.path, at[1] + 10)
    monkeypatch.setattr("collector.buffering.segments.os.truncate", refusing(errno.EROFS))
    opened, _ = open_segment(segment.path, [])
    assert (opened.size_bytes, opened.is_sealed) == (at[1] + 10, True)
    assert opened.acknowledged == [(at[1], at[1] + 10)]


def test_damage_between_frames_is_acknowledged_and_the_file_unchanged(tmp_path: Path) -> None:
    segment, at = written(tmp_path, [small(0), small(1), small(2)])
    content = bytearray(segment.path.read_bytes())
    content[at[2] - 1] ^= 1
    segment.path.write_bytes(content)
    opened, extents = open_segment(segment.path, [])
    assert [(extent.start, extent.is_damaged) for extent in extents] == [
        (0, False),
        (at[1], True),
        (at[2], False),
    ]
    assert (opened.acknowledged, opened.size_bytes) == ([(at[1], at[2])], at[3])
    assert [extent.start for extent in open_segment(segment.path, [])[1]] == [0, at[2]]
    assert segment.path.read_bytes() == content


def test_acknowledged_frames_are_not_sent_again_but_count_as_newest(tmp_path: Path) -> None:
    segment, at = written(tmp_path, [small(0), small(9)])
    opened, extents = open_segment(segment.path, [(at[1], at[2])])
    assert [extent.start for extent in extents] == [0]
    assert (opened.newest_ns, opened.is_acknowledged, opened.is_sealed) == (1009, False, False)
    assert open_segment(segment.path, [(0, at[2])])[0].is_acknowledged


def test_a_segment_shorter_than_what_was_acknowledged_is_sealed(tmp_path: Path) -> None:
    segment, at = written(tmp_path, [small(0)])
    opened, _ = open_segment(segment.path, [(0, at[1] + 50), (at[1] + 60, at[1] + 70)])
    assert (opened.acknowledged, opened.is_sealed) == ([(0, at[1])], True)


def test_a_new_segment_is_private_and_its_folder_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = synced(monkeypatch)
    before = open_descriptors()
    segment = Segment(segment_path(tmp_path, 1), 1)
    writer = SegmentWriter(segment)
    assert paths == [str(tmp_path)]
    assert stat.S_IMODE(segment.path.stat().st_mode) == 0o600
    writer.close()
    assert open_descriptors() == before


def test_frames_are_appended_to_an_existing_segment_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, at = written(tmp_path, [small(0)])
    paths = synced(monkeypatch)
    writer = SegmentWriter(segment)
    assert paths == []
    writer.append([encode_frame(small(1)), encode_frame(small(2))])
    writer.close()
    assert paths == [str(segment.path)]
    assert segment.size_bytes == segment.path.stat().st_size == 3 * at[1]
    assert read(segment, 0, segment.size_bytes) == [small(0), small(1), small(2)]


def test_a_folder_that_can_not_be_synced_fails_and_closes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_descriptors()
    monkeypatch.setattr("collector.buffering.segments.os.fsync", refusing(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        SegmentWriter(Segment(segment_path(tmp_path, 1), 1))
    assert open_descriptors() == before


@pytest.mark.parametrize("can_truncate", [True, False])
def test_a_failed_write_leaves_no_part_or_seals_the_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, can_truncate: bool
) -> None:
    segment, at = written(tmp_path, [small(0)])
    writer = SegmentWriter(segment)
    monkeypatch.setattr("collector.buffering.segments.os.fsync", refusing(errno.EIO))
    if not can_truncate:
        monkeypatch.setattr("collector.buffering.segments.os.ftruncate", refusing(errno.EROFS))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        writer.append([encode_frame(small(1))])
    writer.close()
    assert (segment.size_bytes, segment.is_sealed) == (at[1], not can_truncate)
    assert (segment.path.stat().st_size == at[1]) == can_truncate


def test_segments_are_listed_by_age_without_other_files(tmp_path: Path) -> None:
    names = [
        "000000000010.seg",
        "000000000009.seg",
        "x.seg",
        "cursor.json",
        "000000000001.damaged-0",
    ]
    for name in names:
        (tmp_path / name).touch()
    assert segment_paths(tmp_path) == [segment_path(tmp_path, 9), segment_path(tmp_path, 10)]


def test_a_file_that_can_not_be_deleted_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remove(tmp_path / "missing.seg")
    assert caplog.text == ""
    (tmp_path / "folder.seg").mkdir()
    remove(tmp_path / "folder.seg")
    assert "folder.seg" in caplog.text


@pytest.mark.parametrize(
    ("ranges", "start", "end", "expected"),
    [
        ([], 3, 5, [(3, 5)]),
        ([(0, 3)], 5, 5, [(0, 3)]),
        ([(0, 3)], 3, 5, [(0, 5)]),
        ([(0, 9)], 3, 5, [(0, 9)]),
        ([(4, 9)], 0, 3, [(0, 3), (4, 9)]),
        ([(3, 9)], 0, 3, [(0, 9)]),
        ([(0, 2), (4, 6), (8, 9)], 2, 7, [(0, 7), (8, 9)]),
        ([(0, 2), (4, 6), (8, 9)], 2, 8, [(0, 9)]),
        ([(1, 2), (4, 6)], 0, 9, [(0, 9)]),
    ],
)
def test_touching_ranges_are_merged(
    ranges: list[tuple[int, int]], start: int, end: int, expected: list[tuple[int, int]]
) -> None:
    assert add_range(ranges, start, end) == expected


def test_ranges_are_clipped_at_the_size() -> None:
    assert clip_ranges([(0, 2), (4, 9), (9, 12)], 9) == [(0, 2), (4, 9)]
    assert clip_ranges([(0, 2), (4, 9)], 5) == [(0, 2), (4, 5)]
