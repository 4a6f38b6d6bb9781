"""Ranges of bytes in a segment: which were acknowledged, and so which still wait.

Ranges are half open, sorted, and never touch one another.
"""

Range = tuple[int, int]


def merged(ranges: list[Range], start: int, end: int) -> list[Range]:
    """Return the ranges with `start` to `end` added."""
    if start >= end:
        return ranges
    if ranges and ranges[-1][0] <= start <= ranges[-1][1]:  # what almost always happens
        return [*ranges[:-1], (ranges[-1][0], max(end, ranges[-1][1]))]
    apart = [one for one in ranges if one[1] < start or one[0] > end]
    touching = [one for one in ranges if not (one[1] < start or one[0] > end)]
    first = min([start, *(one[0] for one in touching)])
    last = max([end, *(one[1] for one in touching)])
    return sorted([*apart, (first, last)])


def covers(ranges: list[Range], start: int, end: int) -> bool:
    """Return whether one of the ranges holds all of `start` to `end`."""
    return any(first <= start and end <= last for first, last in ranges)


def clipped(ranges: list[Range], size: int) -> list[Range]:
    """Return the parts of the ranges that lie below `size`."""
    return [(first, min(last, size)) for first, last in ranges if first < size]
