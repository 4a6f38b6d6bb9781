"""Which part of a query is read from which resolution: arithmetic on spans of time alone.

A roll-up answers for whole windows that it has and that are not *late*. An hour is late while it
holds samples that came after it was rolled up; until they are in, it is read from the samples.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from timeseries.duckdb.schema import Table
from timeseries.lineprotocol_grammar import MAX_INT64, MIN_INT64
from timeseries.store import Resolution

MINUTE_NS = 60 * 1_000_000_000
HOUR_NS = 60 * MINUTE_NS
WIDTHS_NS = {Resolution.MINUTE: MINUTE_NS, Resolution.HOUR: HOUR_NS}

Span = tuple[int, int]
Sources = dict[Resolution, list[Span]]

_EVERYTHING: Span = (MIN_INT64, MAX_INT64 + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the roll-ups of one measurement are, in nanoseconds since the epoch.

    Attributes:
        until: the windows before this are rolled up; the hour never runs ahead of the minute.
        since: what is older than this has been deleted by retention; whole hours.
        late: hour to the appliances whose samples came after it was rolled up.
        tables: the tags and fields that each roll-up's table has.
    """

    until: Mapping[Resolution, int] = field(default_factory=dict)
    since: Mapping[Resolution, int] = field(default_factory=dict)
    late: Mapping[int, frozenset[str]] = field(default_factory=dict)
    tables: Mapping[Resolution, Table] = field(default_factory=dict)

    def is_frozen(self, hour_ns: int) -> bool:
        """Whether the samples of an hour are gone, so that it can be added to but not made anew."""
        return hour_ns < self.since.get(Resolution.RAW, MIN_INT64)


def sources(span: Span, *, step_ns: int | None, has_sketch: bool, progress: Progress) -> Sources:
    """Return what to read from each resolution to answer a query over a span.

    The coarsest resolution that divides the step is preferred; what it does not have comes from
    finer ones, and what those have no more from coarser ones, whose windows then begin in the span.

    Args:
        step_ns: the query's step; None for one value over the span.
        has_sketch: whether the answer needs sketches, which hours alone have.
    """
    left = [span]
    found: Sources = {}
    for resolution, is_strict in _order(span, step_ns):
        if has_sketch and resolution is Resolution.MINUTE:
            continue
        has = _has(resolution, progress, is_strict=is_strict)
        taken = [common for one in left for other in has if (common := _common(one, other))]
        if is_strict and resolution in WIDTHS_NS:
            taken = [whole for one in taken if (whole := _whole(one, WIDTHS_NS[resolution]))]
        if taken:
            found.setdefault(resolution, []).extend(taken)
            left = _without(left, taken)
    return {resolution: sorted(spans) for resolution, spans in found.items()}


def _order(span: Span, step_ns: int | None) -> list[tuple[Resolution, bool]]:
    """Return the resolutions to ask in turn, and whether for whole windows alone."""
    order: list[tuple[Resolution, bool]] = []
    if span[1] - span[0] >= HOUR_NS:
        divides = {
            resolution: step_ns is None or step_ns % width == 0
            for resolution, width in WIDTHS_NS.items()
        }
        if divides[Resolution.HOUR]:
            order.append((Resolution.HOUR, True))
        if divides[Resolution.MINUTE]:
            order.append((Resolution.MINUTE, True))
    order.append((Resolution.RAW, True))
    return [*order, (Resolution.MINUTE, False), (Resolution.HOUR, False), (Resolution.RAW, False)]


def _has(resolution: Resolution, progress: Progress, *, is_strict: bool) -> list[Span]:
    if resolution is Resolution.RAW:
        since = progress.since.get(Resolution.RAW, MIN_INT64) if is_strict else MIN_INT64
        return [(since, _EVERYTHING[1])]
    since, until = progress.since.get(resolution, 0), progress.until.get(resolution, 0)
    whole = [(since, until)] if since < until else []
    if not is_strict:
        return whole
    late = [(hour, hour + HOUR_NS) for hour in progress.late if not progress.is_frozen(hour)]
    return _without(whole, late)


def _common(one: Span, other: Span) -> Span | None:
    start, end = max(one[0], other[0]), min(one[1], other[1])
    return (start, end) if start < end else None


def _whole(span: Span, width_ns: int) -> Span | None:
    start = -(-span[0] // width_ns) * width_ns
    end = span[1] // width_ns * width_ns
    return (start, end) if start < end else None


def _without(spans: Iterable[Span], taken: Iterable[Span]) -> list[Span]:
    left = sorted(spans)
    for hole in sorted(taken):
        left = [rest for span in left for rest in _cut(span, hole)]
    return left


def _cut(span: Span, hole: Span) -> list[Span]:
    before = (span[0], min(span[1], hole[0]))
    after = (max(span[0], hole[1]), span[1])
    return [rest for rest in (before, after) if rest[0] < rest[1]]
