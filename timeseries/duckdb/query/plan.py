"""Which segments of which resolution answer a range query: samples or roll-ups."""

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
    for one in segments:
        numbers = asked & one.table.fields.keys()
        if not numbers and asked:
            continue
        if Resolution.RAW not in one.sizes:
            numbers &= one.rolled.keys()
        left: tuple[Span, ...] = (span,)
        is_right = Resolution.RAW not in one.sizes or not any(map(one.overlaps, overwritten))
        for resolution in _preferred(query, one, numbers) if is_right else ():
            whole, others = _split(left, WIDTHS_NS[resolution])
            if any(map(one.overlaps, whole)):
                plan.setdefault((resolution, whole), []).append(one)
                left = others
                if resolution is not Resolution.DAY:
                    break
        rest = Resolution.RAW if Resolution.RAW in one.sizes else _finest(query, one, numbers)
        margin_ns = WIDTHS_NS.get(rest, 0) if rest else 0
        if rest and any(one.overlaps(part, margin_ns=margin_ns) for part in left):
            plan.setdefault((rest, left), []).append(one)
    return plan


def rolled_alike(segments: Iterable[Segment], fields: Sequence[str]) -> list[list[str]]:
    """Return fields by how much of them some segments roll up at least.

    What one field lacks must not coarsen the answers for others.
    """
    found: dict[Detail, list[str]] = {}
    shapes = {(id(one.table), id(one.rolled)): one for one in segments}
    for name in fields:
        details = [
            one.rolled.get(name, Detail.NONE) for one in shapes.values() if name in one.table.fields
        ]
        found.setdefault(min(details, default=Detail.NONE), []).append(name)
    return list(found.values())


def _preferred(query: RangeQuery, one: Segment, numbers: frozenset[str]) -> list[Resolution]:
    """Return the roll-ups of a segment that can answer complete windows, the coarsest first."""
    if query.end_ns - query.start_ns < HOUR_NS or query.aggregate in SUCCESSIVE:
        return []
    return [
        resolution
        for resolution in (Resolution.DAY, Resolution.HOUR, Resolution.FIVE_MINUTES)
        if _answers(query, one, resolution, numbers)
        and (query.step_ns is None or query.step_ns % WIDTHS_NS[resolution] == 0)
    ]


def _finest(query: RangeQuery, one: Segment, numbers: frozenset[str]) -> Resolution | None:
    """Return the finest roll-up of a segment that has some fields."""
    if _answers(query, one, Resolution.FIVE_MINUTES, numbers):
        return Resolution.FIVE_MINUTES
    return Resolution.HOUR if Resolution.HOUR in one.sizes else None


def _answers(
    query: RangeQuery, one: Segment, resolution: Resolution, numbers: frozenset[str]
) -> bool:
    """Return whether a roll-up of a segment has what a query asks of some fields."""
    least = least_detail(query.aggregate, resolution)
    return (
        least is not None
        and resolution in one.sizes
        and all(one.has(name, least) for name in numbers)
    )


def _split(spans: Sequence[Span], width_ns: int) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Return the parts of some spans with complete windows only, and the others."""
    whole: list[Span] = []
    others: list[Span] = []
    for start, end in spans:
        first, last = -(-start // width_ns) * width_ns, end // width_ns * width_ns
        if first < last:
            whole.append((first, last))
            others += [part for part in ((start, first), (last, end)) if part[0] < part[1]]
        else:
            others.append((start, end))
    return tuple(whole), tuple(others)
