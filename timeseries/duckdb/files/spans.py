"""Sets of time spans: which parts two of them share, and few spans that cover many."""

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

from timeseries.duckdb.schema import Span
from timeseries.store import HOUR_NS

MAX_SPANS = 32
"""How many spans cover many: the nearest are joined, and a query of them reads more rows."""
Spans = tuple[Span, ...]


def joined(spans: Iterable[Span]) -> Spans:
    """Return spans in order, those joined that are within an hour, and the nearest if many."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] < HOUR_NS:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    if len(found) <= MAX_SPANS:
        return tuple(found)
    gaps = sorted(
        ((after[0] - before[1], before[1], after[0]) for before, after in pairwise(found))
    )
    edges = sorted((end, start) for _, end, start in gaps[-(MAX_SPANS - 1) :])
    bounds = [found[0][0], *chain.from_iterable(edges), found[-1][1]]
    return tuple(zip(bounds[::2], bounds[1::2], strict=True))


def shared_part(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Return the parts of some spans that are in others too."""
    return [
        (max(start, first), min(end, last))
        for start, end in spans
        for first, last in others
        if max(start, first) < min(end, last)
    ]


def other_part(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Return the parts of some spans that are in none of others, which are in order."""
    found = []
    for start, end in spans:
        at = start
        for first, last in shared_part([(start, end)], others):
            found.append((at, first))
            at = last
        found.append((at, end))
    return [(start, end) for start, end in found if start < end]
