"""Writes that the portal rejects or always fails on don't hold up others, and are not lost."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from protocol.relays import RelayedOutcome, RelayedWrite
from relay.drain import Drain
from relay.sender import Sender
from relay.spool import Spool
from tests.fixtures.relay_center import Center
from tests.unit.collector.hand_clock import HandClock
from tests.unit.relay.conftest import aside_of, lines_aside, reaching, salvage_of, write_of

POISON = b"poison v=1 1"


def with_lines(appliance_id: str, number: int, *lines: bytes) -> RelayedWrite:
    write = write_of(appliance_id, number)
    return msgspec.structs.replace(write, body=b"\n".join(lines))


def played(center: Center, spool: Spool, *, seconds: int) -> Drain:
    """Let the drain work until the spool is empty, or for so many seconds."""

    async def play() -> Drain:
        clock = HandClock()
        spool.rewind()  # as after a start
        async with reaching(center) as upstream:
            upstream._monotonic = clock.seconds  # noqa: SLF001
            drain = Drain(
                upstream,
                spool,
                Sender(upstream, spool),
                salvage_of(upstream, spool),
                max_bytes_per_second=1e9,
                monotonic=clock.seconds,
            )
            for _ in range(seconds * 5):
                await drain.step()
                if not spool.waiting_bytes:
                    break
                clock.advance(0.2)
            return drain

    return asyncio.run(play())


def lines_of(center: Center, appliance_id: str) -> list[bytes]:
    return [line for body in center.bodies(appliance_id) for line in body.splitlines()]


@pytest.mark.parametrize("is_failing_whole", [False, True])
def test_one_poisoned_line_holds_up_nothing_and_is_set_aside(
    served: Center, spool: Spool, *, is_failing_whole: bool
) -> None:
    served.fails_on, served.is_failing_whole = POISON, is_failing_whole
    good = [b"m v=%d 1" % number for number in range(60)]
    spool.append(
        [
            *(with_lines(name, n, good[n]) for n in range(10) for name in "abc"),
            with_lines("b", 10, good[10], POISON, good[11]),
            *(with_lines(name, n, good[n]) for n in range(12, 60) for name in "abc"),
        ]
    )
    drain = played(served, spool, seconds=60)
    assert not spool.waiting_bytes
    assert list(dict.fromkeys(lines_of(served, "b"))) == good
    assert lines_of(served, "a") == lines_of(served, "c") == good[:10] + good[12:]
    assert lines_aside(spool) == [POISON.decode()]
    assert "appliance b, precision ns: status 500" in aside_of(spool).read_text()
    assert drain.delivered == 3 * 58


@pytest.mark.parametrize("is_failing_whole", [False, True])
def test_later_writes_of_the_only_appliance_show_that_the_portal_is_well(
    served: Center, spool: Spool, *, is_failing_whole: bool
) -> None:
    served.fails_on, served.is_failing_whole = POISON, is_failing_whole
    spool.append([with_lines("a", 0, POISON), with_lines("a", 1, POISON), write_of("a", 2)])
    played(served, spool, seconds=60)
    assert (len(served.bodies("a")), lines_aside(spool)) == (1, [POISON.decode()])
    # Nothing waits behind the second one; what comes next shows it again.
    spool.append([write_of("a", 3)])
    played(served, spool, seconds=60)
    assert not spool.waiting_bytes
    assert len(served.bodies("a")) == 2
    assert lines_aside(spool) == [POISON.decode()] * 2


@pytest.mark.parametrize("is_failing_whole", [False, True])
def test_a_broken_portal_gets_everything_in_order_when_it_is_mended(
    served: Center, spool: Spool, *, is_failing_whole: bool
) -> None:
    served.fails_on, served.is_failing_whole = b"m", is_failing_whole
    spool.append([write_of("abc"[number % 3], number) for number in range(150)])
    played(served, spool, seconds=60)
    assert served.writes == []
    served.fails_on = None
    drain = played(served, spool, seconds=120)
    assert not spool.waiting_bytes
    for name in "abc":
        writes = [write for write in served.writes if write.appliance_id == name]
        assert len(writes) == 50
        assert writes == sorted(writes, key=lambda write: write.received_at_ns)
    assert lines_aside(spool) == []
    assert drain.delivered == 150


def test_a_poisoned_line_in_each_write_costs_one_wait_only(served: Center, spool: Spool) -> None:
    served.fails_on = POISON
    spool.append([with_lines("a", n, b"m v=%d 1" % n, POISON) for n in range(30)])
    played(served, spool, seconds=60)
    assert not spool.waiting_bytes
    assert lines_of(served, "a") == [b"m v=%d 1" % n for n in range(30)]
    assert len(lines_aside(spool)) == 30


def test_a_write_that_is_too_large_for_a_proxy_arrives_in_parts(
    served: Center, spool: Spool
) -> None:
    served.max_bytes = 4_000
    lines = [b"many v=%d 1" % number for number in range(2_000)]
    spool.append([with_lines("a", 0, *lines), write_of("a", 1), write_of("b", 2)])
    drain = played(served, spool, seconds=1)
    assert not spool.waiting_bytes
    assert [line for line in lines_of(served, "a") if line.startswith(b"many")] == lines
    assert (drain.delivered, lines_aside(spool)) == (3, [])


def test_a_line_that_is_too_large_is_set_aside(served: Center, spool: Spool) -> None:
    served.max_bytes = 4_000
    large = b"m s=" + b"x" * 5_000
    spool.append([with_lines("a", 0, b"m v=1 1", large, b"m v=2 1")])
    drain = played(served, spool, seconds=1)
    assert lines_of(served, "a") == [b"m v=1 1", b"m v=2 1"]
    assert lines_aside(spool) == [large.decode()]
    assert (drain.delivered, spool.waiting_bytes) == (0, 0)


@pytest.mark.parametrize(("named", "aside"), [(1, 1), (100, 150)])
def test_lines_that_the_portal_rejects_are_set_aside(
    served: Center, spool: Spool, named: int, aside: int
) -> None:
    errors = [{"line": number, "reason": "no field"} for number in range(2, 2 + named)]
    rejection = RelayedOutcome(status=400, body=msgspec.json.encode({"errors": errors}))
    served.outcomes = {"a": [rejection]}
    lines = [b"line %d" % number for number in range(1, 151)]
    spool.append([with_lines("a", 0, *lines)])
    played(served, spool, seconds=1)
    assert len(lines_aside(spool)) == aside
    assert "line 2" in lines_aside(spool)
    assert not spool.waiting_bytes


def test_lines_stay_in_the_spool_while_they_can_t_be_set_aside(
    served: Center, spool: Spool, tmp_path: Path
) -> None:
    (tmp_path / "undeliverable.log").mkdir()
    served.outcomes = {"a": [RelayedOutcome(status=400, body=b"bad")] * 3}
    spool.append([write_of("a", 1), write_of("b", 2), write_of("a", 3)])
    drain = played(served, spool, seconds=1)
    assert (drain.delivered, len(served.bodies("b"))) == (1, 1)
    assert spool.waiting_bytes
    (tmp_path / "undeliverable.log").rmdir()
    played(served, spool, seconds=10)
    assert not spool.waiting_bytes
    assert len(lines_aside(spool)) == 1
