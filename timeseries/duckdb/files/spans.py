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
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start - merged[-1][1] < HOUR_NS:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    if len(merged) <= MAX_SPANS:
        return tuple(merged)
    gaps = sorted(
        ((after[0] - before[1], before[1], after[0]) for before, after in pairwise(merged))
    )
    edges = sorted((end, start) for _, end, start in gaps[-(MAX_SPANS - 1) :])
    bounds = [merged[0][0], *chain.from_iterable(edges), merged[-1][1]]
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
    parts = []
    for start, end in spans:
        at = start
        for first, last in shared_part([(start, end)], others):
            parts.append((at, first))
            at = last
        parts.append((at, end))
    return [(start, end) for start, end in parts if start < end]
