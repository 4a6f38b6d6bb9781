"""The check that the fuzz target and its corpus share."""

from timeseries.lineprotocol.grammar import InvalidLineError, logical_lines, parse_line
from timeseries.lineprotocol.parser import parse
from timeseries.points import Batch, Point

NOW_NS = 1_700_000_000_000_000_000


def check(data: bytes) -> None:
    """Raise AssertionError where the fast path and the exact grammar disagree about a body."""
    fast = parse(data, default_time_ns=NOW_NS)
    for block in fast.batch.blocks:
        columns = (*block.values, block.times_ns, block.positions, block.tag_set_of)
        assert {len(column) for column in columns} == {len(block)}
        assert len(set(block.tag_sets)) == len(block.tag_sets)
        for kind, column in zip(block.kinds, block.values, strict=True):
            assert {type(value) for value in column} == {kind}
    exact, bad_lines = read_exactly(data)
    # As text, because -0.0 and 0.0, and 1 and 1.0, are equal.
    assert repr(fast.points) == repr(exact.points())
    assert [error.line_number for error in fast.errors] == bad_lines


def read_exactly(data: bytes) -> tuple[Batch, list[int]]:
    """Return the points and the numbers of invalid lines, by the exact grammar alone."""
    positioned: list[tuple[int, Point]] = []
    bad_lines = []
    for number, line in logical_lines(data.decode(errors="surrogateescape")):
        try:
            line.encode()
            point = parse_line(line, multiplier=1, default_time_ns=NOW_NS)
        except (UnicodeEncodeError, InvalidLineError):
            bad_lines.append(number)
        else:
            positioned.extend([(number - 1, point)] if point else [])
    return Batch.from_positioned(positioned), bad_lines
