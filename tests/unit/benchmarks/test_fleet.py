"""The made-up fleet sends what it says it sends, and every store can take it."""

import gzip
from pathlib import Path

from benchmarks.bodies import Ticks, large_batches, opened, small_batches, write_bodies
from benchmarks.fleet import GPUS, LINES_OF_A_TICK, VALUES_OF_A_TICK, Fleet, field_text
from benchmarks.queries_data import FIELDS, MINUTE_NS, History, batches
from timeseries.lineprotocol import parse

NOW_NS = 1_700_000_000_000_000_000
SPAN = Ticks(appliances=4, ticks=3, start_ns=NOW_NS)


def test_a_tick_has_as_many_lines_and_values_as_promised() -> None:
    lines = Fleet(seed=1).lines(7, tick=2, time_ns=NOW_NS)
    points = parse("\n".join(lines).encode(), default_time_ns=0).points
    assert len(lines) == len(points) == LINES_OF_A_TICK
    assert sum(len(point.fields) for point in points) == VALUES_OF_A_TICK
    assert {point.time_ns for point in points} == {NOW_NS}


def test_the_series_of_two_appliances_differ_in_their_tags() -> None:
    fleet = Fleet(seed=1)
    keys = [
        {line.rsplit(" ", 2)[0] for line in fleet.lines(number, tick=0, time_ns=NOW_NS)}
        for number in (0, 1)
    ]
    assert len(keys[0]) == len(keys[1]) == LINES_OF_A_TICK
    assert not keys[0] & keys[1]


def test_integers_are_written_as_such() -> None:
    assert field_text({"used_bytes": 85_899_345_920, "power_watts": 351.936, "load1": 0.0}) == (
        "used_bytes=85899345920i,power_watts=351.936,load1=0"
    )


def test_a_body_is_what_its_sender_says_gzipped(tmp_path: Path) -> None:
    made = write_bodies(tmp_path / "small.bodies", small_batches(SPAN))
    assert (made.count, made.lines) == (12, 12 * LINES_OF_A_TICK)
    assert made.values == 12 * VALUES_OF_A_TICK
    with opened(made.path) as (view, rows):
        assert [sender for _, _, sender in rows] == [0, 1, 2, 3] * 3
        offset, length, _ = rows[5]
        lines = gzip.decompress(view[offset : offset + length]).decode().splitlines()
    assert lines == next(lines for n, (_, lines) in enumerate(small_batches(SPAN)) if n == 5)


def test_relays_send_full_batches_and_leave_no_line_out() -> None:
    found = list(large_batches(SPAN, lines_of_a_batch=50, senders=2))
    sizes = [len(lines) for _, lines in found]
    assert sum(sizes) == 12 * LINES_OF_A_TICK
    assert sorted(set(sizes)) == [8, 50]
    assert {sender for sender, _ in found} == {0, 1}


def test_a_relay_sends_for_its_own_share_of_the_fleet() -> None:
    for sender, lines in large_batches(SPAN, lines_of_a_batch=50, senders=2):
        hosts = {line.partition("host=")[2][:9] for line in lines}
        assert hosts <= {"gpu-00000", "gpu-00001"} if sender == 0 else {"gpu-00002", "gpu-00003"}


def test_a_history_is_told_in_order_and_ends_before_its_end() -> None:
    history = History(
        appliances=60, minutes=2, tenant_hours=1, end_ns=NOW_NS // MINUTE_NS * MINUTE_NS
    )
    firsts, count = [], 0
    for identity, batch in batches(history):
        (block,) = batch.blocks
        assert block.fields == FIELDS
        assert max(block.times_ns) < history.end_ns
        firsts.append(min(block.times_ns))
        count += len(block)
        assert identity.keys() == {"tenant", "appliance"}
    assert firsts == sorted(firsts)
    assert count == GPUS * (60 * 2 * 6 + 50 * 58)
