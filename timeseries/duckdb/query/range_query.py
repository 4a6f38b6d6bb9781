"""Range queries: which samples and roll-ups answer them, and the statements over these.

Without roll-ups the samples answer alone and exactly. Otherwise each source gives its partial
aggregates by group and window, and these are merged; percentiles then come from sketches and are
within 1 %.

A query in steps of up to a minute over one appliance has almost nothing to aggregate: planning and
running the grouping costs the database more than reading some thousand raw rows and grouping them
in Python.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from timeseries.duckdb.files.segments import Segment
from timeseries.duckdb.query.percentiles import quantiles_read
from timeseries.duckdb.query.relation import Relation, Statement
from timeseries.duckdb.query.rollup_sql import (
    MERGES,
    QUANTILES,
    StoredAggregate,
    aggregate_column,
    last_at_sql,
    least_detail,
    numeric_column,
    rollup_partials,
    sample_partials,
)
from timeseries.duckdb.query.row_groups import (
    REDUCERS,
    Read,
    Source,
    read_windows,
    single_windows,
    sort_groups,
)
from timeseries.duckdb.query.sql import (
    aggregate_sql,
    clamp_time,
    group_columns,
    grouped_lists_sql,
    has_appliance_filter,
    select,
    separate_windows,
    successive_sql,
    window_start_sql,
)
from timeseries.duckdb.schema import (
    MINUTE_NS,
    TIME_COLUMN,
    WIDTHS_NS,
    Span,
    Table,
    field_column,
    quoted,
    tag_column,
)
from timeseries.store import APPLIANCE_TAG, HOUR_NS, Detail, RangeQuery, Resolution
from timeseries.successive import SUCCESSIVE
from timeseries.validation import check_aggregate

MAX_WINDOWS = 1_000
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


def range_reads(
    query: RangeQuery, relation: Relation, fields: Sequence[str], *, is_ordered: bool = True
) -> list[Read]:
    """Return the reads that answer a range query over `fields` of the relation.

    Unless `is_ordered`, groups and windows may have any order, which takes half the time.
    """
    span = (clamp_time(query.start_ns), clamp_time(query.end_ns))
    if not fields or span[0] >= span[1]:
        return []
    for name in fields:
        check_aggregate(name, relation.table.fields[name], query.aggregate)
    segments = relation.visible(span, margin_ns=HOUR_NS)
    plans = [
        (names, plan_sources(query, segments, names, overwritten=relation.overwritten))
        for names in rolled_alike(segments, fields)
    ]
    if query.aggregate in SUCCESSIVE:
        successive = partial(_successive, is_ordered=is_ordered)
        return list(_by_field(successive, query, relation, plans))
    rolled = [
        entry for entry in plans if any(resolution in WIDTHS_NS for resolution, _ in entry[1])
    ]
    of_samples = sorted({*fields}.difference(*(names for names, _ in rolled)))
    reads = (
        [_from_samples(query, relation, of_samples, is_ordered=is_ordered)] if of_samples else []
    )
    if query.aggregate in QUANTILES:
        return [*reads, *_by_field(quantiles_read, query, relation, rolled)]
    merged = [
        _merged(query, relation, names, sources, is_ordered=is_ordered)
        for names, plan in rolled
        if (sources := list(_sources(query, relation, names, plan)))
    ]
    return [*reads, *merged]


def _by_field(
    read: Callable[[RangeQuery, Relation, str, Sequence[Source]], Read],
    query: RangeQuery,
    relation: Relation,
    plans: Iterable[tuple[Sequence[str], Plan]],
) -> Iterator[Read]:
    for names, plan in plans:
        for name in names:
            sources = list(_sources(query, relation, [name], plan))
            if sources:
                yield read(query, relation, name, sources)


def _from_samples(
    query: RangeQuery, relation: Relation, fields: Sequence[str], *, is_ordered: bool
) -> Read:
    """Return the read for a query that needs no roll-ups."""
    groups = len(query.group_by)
    if query.step_ns is None:
        return Read(
            fields,
            *_single_window_sql(query, relation, fields),
            partial(single_windows, groups=groups, start_ns=clamp_time(query.start_ns)),
        )
    is_few = has_appliance_filter(query.filters)
    read = Read(fields, *range_sql(query, relation, fields, is_ordered=is_ordered and not is_few))
    if not is_ordered:
        return read
    if is_few:
        # Sorting the few rows of one appliance is faster in Python.
        read = replace(read, finish=partial(sort_groups, groups=groups))
    if not read.text or not reads_raw_rows(query):
        return read
    text, values = raw_rows_sql(query, relation, fields)
    shortcut = partial(
        read_windows, text=text, values=values, groups=groups, aggregate=query.aggregate
    )
    return replace(read, shortcut=shortcut)


def range_sql(
    query: RangeQuery, relation: Relation, fields: Sequence[str], *, is_ordered: bool
) -> Statement:
    """Return the statement of a range query over the samples.

    Each row is one group: its tags, then for each field the list of window starts and the list of
    values, without gaps.
    """
    groups = group_columns(query.group_by, relation.table)
    aggregates = [
        f"CAST({aggregate_sql(name, query.aggregate, relation.table)} AS DOUBLE) AS v{index}"
        for index, name in enumerate(fields)
    ]
    parts, values = [], list[object]()
    for span in separate_windows(query):
        source, source_values = _samples(query, relation, fields, [span])
        if source:
            columns = [*groups, f"{window_start_sql(query, span)} AS w", *aggregates]
            parts.append(f"{select(columns, source)} GROUP BY ALL")
            values += source_values
    if not parts:
        return "", []
    names = [f"g{index}" for index in range(len(groups))]
    text = grouped_lists_sql(" UNION ALL ".join(parts), names, len(fields), is_ordered=is_ordered)
    return text, values


def _single_window_sql(query: RangeQuery, relation: Relation, fields: Sequence[str]) -> Statement:
    """Return the statement of a query without steps over the samples, sorted by group.

    Each row is one group: its tags, then the value of each field. Lists of one value each would
    take most of the time.
    """
    span = (clamp_time(query.start_ns), clamp_time(query.end_ns))
    source, values = _samples(query, relation, fields, [span])
    if not source:
        return "", []
    groups = group_columns(query.group_by, relation.table)
    aggregates = [
        f"CAST({aggregate_sql(name, query.aggregate, relation.table)} AS DOUBLE) AS v{index}"
        for index, name in enumerate(fields)
    ]
    text = select([*groups, *aggregates], source)
    text, wanted_values = _wanted(query, text + " GROUP BY ALL" if groups else text, fields)
    values = [*values, *wanted_values]
    order = ", ".join(f"g{index}" for index in range(len(groups)))
    return f"{text} ORDER BY {order}" if groups else text, values


def _wanted(query: RangeQuery, text: str, fields: Sequence[str]) -> Statement:
    """Return a statement with the values of one field that the query's levels leave."""
    levels = [
        f"v0 {operator} {float(level)!r}"
        for operator, level in ((">", query.above), ("<", query.below))
        if level is not None
    ]
    if not levels or len(fields) != 1:
        return text, []
    condition, appliances = " AND ".join(levels), query.whole_appliances
    if appliances:
        column = f"g{query.group_by.index(APPLIANCE_TAG)}"
        condition = f"({condition}) OR {column} IN ({', '.join('?' * len(appliances))})"
    return f"{select(['*'], f'({text})')} WHERE {condition}", list(appliances)


def _samples(
    query: RangeQuery,
    relation: Relation,
    fields: Sequence[str],
    spans: Sequence[Span],
    *,
    segments: Sequence[Segment] | None = None,
) -> Statement:
    """Return the samples to aggregate."""
    return relation.samples(fields, spans, segments=segments, tags=_tags_of(query))


def _tags_of(query: RangeQuery) -> Sequence[str] | None:
    """Return the tags to read: those to group by, or None for all if each series counts."""
    return None if query.aggregate in SUCCESSIVE else query.group_by


def _sources(
    query: RangeQuery, relation: Relation, fields: Sequence[str], plan: Plan
) -> Iterator[Source]:
    span = (clamp_time(query.start_ns), clamp_time(query.end_ns))
    # The table is read over the whole span, whatever the files are read for.
    all_samples = (Resolution.RAW, (span,))
    for (resolution, spans), segments in {all_samples: list[Segment](), **plan}.items():
        if resolution is Resolution.RAW and spans != all_samples[1]:
            text, values = relation.samples_of_files(fields, spans, segments, tags=_tags_of(query))
        elif resolution is Resolution.RAW:
            text, values = _samples(query, relation, fields, spans, segments=segments)
        else:
            text, values = relation.rolled_up(resolution, fields, spans, segments=segments)
        if text:
            window = window_start_sql(query, (spans[0][0], spans[-1][1]))
            yield Source(resolution, window, text, values)


def _merged(
    query: RangeQuery,
    relation: Relation,
    fields: Sequence[str],
    sources: Sequence[Source],
    *,
    is_ordered: bool,
) -> Read:
    """Return the read that merges the partials `a` and `b` of each field."""
    groups = group_columns(query.group_by, relation.table)
    united = " UNION ALL ".join(
        select(
            [*groups, f"{source.window} AS w", *_partials(query, relation.table, fields, source)],
            source.text,
        )
        + " GROUP BY ALL"
        for source in sources
    )
    names = [f"g{index}" for index in range(len(query.group_by))]
    values = [
        "CAST("
        + MERGES[query.aggregate].format(a=f"a{index}", b=f"b{index}")
        + f" AS DOUBLE) AS v{index}"
        for index in range(len(fields))
    ]
    windows = select([*names, "w", *values], f"({united})") + " GROUP BY ALL"
    return Read(
        fields,
        grouped_lists_sql(windows, names, len(fields), is_ordered=is_ordered),
        [value for source in sources for value in source.values],
    )


def _partials(
    query: RangeQuery, table: Table, fields: Sequence[str], source: Source
) -> Iterator[str]:
    for index, name in enumerate(fields):
        if source.resolution is Resolution.RAW:
            pair = sample_partials(query.aggregate, numeric_column(name, table.fields[name]))
        else:
            pair = rollup_partials(query.aggregate, name)
        yield from (f"{pair[0]} AS a{index}", f"{pair[1]} AS b{index}")


def _successive(
    query: RangeQuery,
    relation: Relation,
    name: str,
    sources: Sequence[Source],
    *,
    is_ordered: bool,
) -> Read:
    """Return the read of an aggregate of `timeseries.successive`.

    Where samples have expired, the last value of each window of a roll-up counts as one.
    """
    groups = [f"g{index}" for index in range(len(query.group_by))]
    series = [f"s{index}" for index in range(len(relation.table.tags))]
    tags = [
        f"{quoted(tag_column(tag))} AS {column}"
        for tag, column in zip(sorted(relation.table.tags), series, strict=True)
    ]
    parts = []
    for source in sources:
        if source.resolution is Resolution.RAW:
            pair = quoted(TIME_COLUMN), numeric_column(name, relation.table.fields[name])
        else:
            pair = last_at_sql(name), aggregate_column(StoredAggregate.LAST, name)
        columns = [
            *group_columns(query.group_by, relation.table),
            *tags,
            f"{source.window} AS w",
            f"{pair[0]} AS t",
            f"CAST({pair[1]} AS DOUBLE) AS x",
        ]
        parts.append(f"{select(columns, source.text)} WHERE {pair[1]} IS NOT NULL")
    text = successive_sql(f"({' UNION ALL '.join(parts)})", query.aggregate, groups, series)
    text, wanted_values = _wanted(query, text, [name])
    return Read(
        [name],
        grouped_lists_sql(text, groups, 1, is_ordered=is_ordered),
        [*(value for source in sources for value in source.values), *wanted_values],
    )


def reads_raw_rows(query: RangeQuery) -> bool:
    """Return whether a query reads about as many samples as it has windows, of one appliance."""
    step_ns = query.step_ns
    return (
        query.aggregate in REDUCERS
        and has_appliance_filter(query.filters)
        and len(query.filters[APPLIANCE_TAG]) == 1
        and query.start_ns >= 0
        and step_ns is not None
        and 0 < step_ns <= MINUTE_NS
        and query.end_ns - query.start_ns <= MAX_WINDOWS * step_ns
    )


def raw_rows_sql(query: RangeQuery, relation: Relation, fields: Sequence[str]) -> Statement:
    """Return the statement that reads raw samples.

    Each row is one sample: the tags of its group, the start of its window, and the fields.
    """
    span = (query.start_ns, clamp_time(query.end_ns))
    source, values = relation.samples(fields, [span], tags=query.group_by)
    columns = [
        *group_columns(query.group_by, relation.table),
        f"{window_start_sql(query, span)} AS w",
    ]
    columns += [
        f"CAST({quoted(field_column(name))} AS DOUBLE) AS v{index}"
        for index, name in enumerate(fields)
    ]
    return select(columns, source) if source else "", values
