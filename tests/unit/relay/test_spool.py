"""The spool: order, bounds, damage, and what a restart finds."""

import random
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from collector.buffering.segments import segment_paths
from protocol.relays import RelayedWrite
from relay import spool as spool_module
from relay.errors import SpoolFullError
from relay.spool import Spool, SpooledWrite
from tests.unit.relay.conftest import number_of, write_of

NOISE = 4000


def opened(folder: Path, *, max_bytes: int = 2**24, min_free_bytes: int = 0) -> Spool:
    return Spool(folder, max_bytes=max_bytes, min_free_bytes=min_free_bytes)


def incompressible(number: int) -> RelayedWrite:
    noise = random.Random(number).randbytes(NOISE)  # noqa: S311 - noise
    write = write_of("a", number)
    return msgspec.structs.replace(write, body=write.body + noise)


def read_all(spool: Spool, **options: object) -> list[SpooledWrite]:
    entries: list[SpooledWrite] = []
    is_end = False
    while not is_end:
        batch, is_end = spool.read(max_writes=7, max_bytes=10_000, **options)  # type: ignore[arg-type]
        entries += batch
    return entries


def numbers(entries: list[SpooledWrite]) -> list[int]:
    return [number_of(entry.write.body) for entry in entries]


def test_writes_are_read_in_their_order_with_all_that_they_have(spool: Spool) -> None:
    writes = [write_of(f"appliance {number % 3}", number) for number in range(50)]
    spool.append(writes[:20])
    spool.append(writes[20:])
    assert [entry.write for entry in read_all(spool)] == writes


def test_what_was_not_acknowledged_is_read_after_a_restart(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.append([write_of("a", number) for number in range(10)])
    entries = read_all(spool)
    spool.acknowledge(entries[:3] + entries[5:6])
    spool.close()
    spool = opened(tmp_path)
    assert numbers(read_all(spool)) == [3, 4, 6, 7, 8, 9]
    assert spool.level().oldest_ns == 1_000_000_003


def test_without_the_cursor_all_is_read_a_second_time(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.append([write_of("a", number) for number in range(4)])
    spool.acknowledge(read_all(spool)[:2])
    assert numbers(read_all(opened(tmp_path))) == [0, 1, 2, 3]


def test_delivered_segments_are_deleted_and_the_rest_counts(tmp_path: Path) -> None:
    spool = opened(tmp_path, max_bytes=2**20)
    for number in range(100):
        spool.append([incompressible(number)])
    assert len(segment_paths(tmp_path)) > 2
    entries = read_all(spool)
    spool.acknowledge(entries[:-1])
    level = spool.level()
    assert len(segment_paths(tmp_path)) == 1
    assert NOISE < level.waiting_bytes < 2 * NOISE
    assert level.oldest_ns == 1_000_000_099
    spool.acknowledge(entries[-1:])
    assert segment_paths(tmp_path) == []
    assert spool.level().waiting_bytes == spool.level().oldest_ns == 0


def test_a_full_spool_refuses_writes_and_accepts_them_when_there_is_room(tmp_path: Path) -> None:
    spool = opened(tmp_path, max_bytes=2**20)
    stored = 0
    while not spool.problem:
        with suppress(SpoolFullError):
            spool.append([incompressible(stored)])
            stored += 1
    assert "spool of 1 MiB is full" in spool.problem
    assert numbers(read_all(spool)) == list(range(stored))
    assert spool.level().disk_bytes <= 2**20
    spool.rewind()
    entries = read_all(spool)
    spool.acknowledge(entries[:100])
    spool.append([incompressible(stored)])
    assert spool.problem == ""


def test_the_spool_leaves_the_disk_its_free_space(tmp_path: Path) -> None:
    spool = opened(tmp_path, min_free_bytes=2**60)
    with pytest.raises(SpoolFullError, match="the disk of the relay has less than"):
        spool.append([write_of("a", 1)])
    assert spool.level().disk_bytes == 0


def test_a_disk_that_fails_refuses_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(tmp_path)
    spool.append([write_of("a", 1)])

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(SpoolFullError, match="No space left"):
            spool.append([write_of("a", 2)])
    assert spool.problem
    spool.append([write_of("a", 3)])
    assert numbers(read_all(opened(tmp_path))) == [1, 3]


def test_a_torn_write_at_the_end_is_cut_off_and_counted(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.append([write_of("a", number) for number in range(3)])
    spool.close()
    (path,) = segment_paths(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    spool = opened(tmp_path)
    assert spool.level().damaged_bytes > 10
    spool.append([write_of("a", 3)])
    assert numbers(read_all(spool)) == [0, 1, 3]


def test_damage_in_an_old_segment_is_set_aside_and_the_rest_read(tmp_path: Path) -> None:
    spool = opened(tmp_path, max_bytes=2**20)
    for number in range(100):
        spool.append([incompressible(number)])
    spool.close()
    oldest = segment_paths(tmp_path)[0]
    content = bytearray(oldest.read_bytes())
    content[NOISE // 2] ^= 0xFF
    oldest.write_bytes(content)
    spool = opened(tmp_path, max_bytes=2**20)
    entries = read_all(spool)
    assert numbers(entries) == list(range(1, 100))
    assert spool.level().damaged_writes == 1
    assert len(list(tmp_path.glob("*.damaged-*"))) == 1
    spool.acknowledge(entries)
    assert spool.level().waiting_bytes == 0


def test_appliances_are_passed_over_and_read_after_a_rewind(spool: Spool) -> None:
    spool.append([write_of("ab"[number % 2], number) for number in range(10)])
    entries = read_all(spool, passed_over={"a"})
    assert numbers(entries) == [1, 3, 5, 7, 9]
    spool.acknowledge(entries)
    spool.append([write_of("b", 11)])
    assert numbers(read_all(spool)) == [11]
    spool.rewind()
    assert numbers(read_all(spool)) == [0, 2, 4, 6, 8, 11]


def test_one_call_reads_a_bounded_part_of_the_disk(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "SCANNED_BYTES", 100)
    spool.append([write_of("a", number) for number in range(50)])
    entries, is_end = spool.read(max_writes=5, max_bytes=1000, passed_over={"a"})
    assert (entries, is_end) == ([], False)
    assert read_all(spool, passed_over={"a"}) == []


def test_a_write_larger_than_the_limit_is_read_alone(spool: Spool) -> None:
    spool.append([incompressible(1), incompressible(2)])
    entries, is_end = spool.read(max_writes=10, max_bytes=10)
    assert numbers(entries) == [1]
    assert not is_end
