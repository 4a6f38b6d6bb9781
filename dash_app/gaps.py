"""Gaps in a series: where no line should be drawn, because nothing was read for a while."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

# Two windows and a half without a value is a gap, not a slow line.
GAP_STEPS = 2.5
_PACE_NEIGHBOURS = 5


def pieces(times_ns: Sequence[int], *, step_ns: int) -> list[slice]:
    """Return the stretches of a series that no gap interrupts.

    A gap is wider than 2.5 steps and than 2.5 times the pace of the points before and after it:
    a series that is sampled more rarely than the step is whole.
    """
    cuts = [index for index in range(1, len(times_ns)) if _is_gap(times_ns, index, step_ns)]
    return [slice(*ends) for ends in pairwise([0, *cuts, len(times_ns)])]


def with_gaps(
    times_ns: Sequence[int], values: Sequence[float], *, step_ns: int
) -> tuple[list[int], list[float | None]]:
    """Return the points with a None in the middle of every gap, so that no line crosses it."""
    out_times: list[int] = []
    out_values: list[float | None] = []
    for piece in pieces(times_ns, step_ns=step_ns):
        if piece.start:
            out_times.append((times_ns[piece.start - 1] + times_ns[piece.start]) // 2)
            out_values.append(None)
        out_times.extend(times_ns[piece])
        out_values.extend(values[piece])
    return out_times, out_values


def _is_gap(times_ns: Sequence[int], index: int, step_ns: int) -> bool:
    width = times_ns[index] - times_ns[index - 1]
    if width <= GAP_STEPS * step_ns:
        return False
    before = _pace(times_ns[max(0, index - 1 - _PACE_NEIGHBOURS) : index])
    after = _pace(times_ns[index : index + 1 + _PACE_NEIGHBOURS])
    return width > GAP_STEPS * max(before, after, step_ns)


def _pace(times_ns: Sequence[int]) -> float:
    widths = [later - earlier for earlier, later in pairwise(times_ns)]
    return median(widths) if widths else 0.0
