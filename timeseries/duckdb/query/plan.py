"""Choose the segments and the resolutions that answer a range query."""

from collections.abc import Iterable, Mapping, Sequence

from timeseries.duckdb.files.segments import Segment
from timeseries.duckdb.query.rollup_sql import least_detail
from timeseries.duckdb.query.sql import clamp_time
from timeseries.duckdb.schema import WIDTHS_NS, Span
from timeseries.store import HOUR_NS, Detail, RangeQuery, Resolution
from timeseries.successive import SUCCESSIVE

Plan = Mapping[tuple[Resolution, tuple[Span, ...]], Sequence[Segment]]


def plan_sources(
    query: RangeQuery,
    segments: Iterable[Segment],
    fields: Iterable[str],
    *,
    overwritten: Sequence[Span] = (),
) -> Plan:
    """Return what to read: the segments for each resolution and its time spans.

    The coarsest resolution that divides the step is preferred, for complete windows; beside days,
    hours. The rest of the span comes from samples and, where these have expired, from the roll-ups,
    by the windows that begin in it. A segment of which samples were overwritten, in a table or
    another segment, has wrong roll-ups until these are sealed.

    Args:
        query: the query.
        segments: the segments that may have samples in it.
        fields: the fields that it reads.
        overwritten: when samples were overwritten.
    """
    span = (clamp_time(query.start_ns), clamp_time(query.end_ns))
    asked = frozenset(fields)
    plan: dict[tuple[Resolution, tuple[Span, ...]], list[Segment]] = {}
    for segment in segments:
        numbers = asked & segment.table.fields.keys()
        if not numbers and asked:
            continue
        if Resolution.RAW not in segment.sizes:
            numbers &= segment.rolled.keys()
        remaining: tuple[Span, ...] = (span,)
        is_right = Resolution.RAW not in segment.sizes or not any(
            map(segment.overlaps, overwritten)
        )
        for resolution in _preferred(query, segment, numbers) if is_right else ():
            complete, others = _split(remaining, WIDTHS_NS[resolution])
            if any(map(segment.overlaps, complete)):
                plan.setdefault((resolution, complete), []).append(segment)
                remaining = others
                if resolution is not Resolution.DAY:
                    break
        fallback = (
            Resolution.RAW if Resolution.RAW in segment.sizes else _finest(query, segment, numbers)
        )
        margin_ns = WIDTHS_NS.get(fallback, 0) if fallback else 0
        if fallback and any(segment.overlaps(part, margin_ns=margin_ns) for part in remaining):
            plan.setdefault((fallback, remaining), []).append(segment)
    return plan


def rolled_alike(segments: Iterable[Segment], fields: Sequence[str]) -> list[list[str]]:
    """Return fields by how much of them some segments roll up at least.

    What one field lacks must not coarsen the answers for others.
    """
    fields_of: dict[Detail, list[str]] = {}
    shapes = {(id(segment.table), id(segment.rolled)): segment for segment in segments}
    for name in fields:
        details = [
            segment.rolled.get(name, Detail.NONE)
            for segment in shapes.values()
            if name in segment.table.fields
        ]
        fields_of.setdefault(min(details, default=Detail.NONE), []).append(name)
    return list(fields_of.values())


def _preferred(query: RangeQuery, segment: Segment, numbers: frozenset[str]) -> list[Resolution]:
    """Return the roll-ups of a segment that can answer complete windows, the coarsest first."""
    if query.end_ns - query.start_ns < HOUR_NS or query.aggregate in SUCCESSIVE:
        return []
    return [
        resolution
        for resolution in (Resolution.DAY, Resolution.HOUR, Resolution.FIVE_MINUTES)
        if _answers(query, segment, resolution, numbers)
        and (query.step_ns is None or query.step_ns % WIDTHS_NS[resolution] == 0)
    ]


def _finest(query: RangeQuery, segment: Segment, numbers: frozenset[str]) -> Resolution | None:
    """Return the finest roll-up of a segment that has some fields."""
    if _answers(query, segment, Resolution.FIVE_MINUTES, numbers):
        return Resolution.FIVE_MINUTES
    return Resolution.HOUR if Resolution.HOUR in segment.sizes else None


def _answers(
    query: RangeQuery, segment: Segment, resolution: Resolution, numbers: frozenset[str]
) -> bool:
    """Return whether a roll-up of a segment has what a query asks of some fields."""
    least = least_detail(query.aggregate, resolution)
    return (
        least is not None
        and resolution in segment.sizes
        and all(segment.has(name, least) for name in numbers)
    )


def _split(spans: Sequence[Span], width_ns: int) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Return the parts of some spans with complete windows only, and the others."""
    complete: list[Span] = []
    others: list[Span] = []
    for start, end in spans:
        first, last = -(-start // width_ns) * width_ns, end // width_ns * width_ns
        if first < last:
            complete.append((first, last))
            others += [part for part in ((start, first), (last, end)) if part[0] < part[1]]
        else:
            others.append((start, end))
    return tuple(complete), tuple(others)
