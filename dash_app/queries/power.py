"""The total GPU power of a fleet over time, whose appliances report at different times.

A large fleet has hundreds of thousands of values in it: a live chart computes those of settled
steps once a minute, and the newest ones for each refresh.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from core.clock import NS_PER_SECOND
from core.errors import UnavailableError
from dash_app.charts import Chart, Line
from dash_app.context import SharedCache
from dash_app.queries.telemetry import Result, Telemetry
from dash_app.timerange import Span
from timeseries.store import APPLIANCE_TAG

# Fill the gaps of single appliances up to this long, so that the total has no dips.
_MAX_GAP_NS = 90 * NS_PER_SECOND
# Newer samples may still be on their way.
_SETTLED_NS = 60 * NS_PER_SECOND
_FIELD = "power_watts"


def power_over_time(
    telemetry: Telemetry, cache: SharedCache, gpu_counts: Mapping[str, int]
) -> Chart:
    """Return the total power of appliances over the telemetry's span.

    Args:
        telemetry: of these appliances, or of more.
        cache: shared with the refreshes of the last minute.
        gpu_counts: how many GPUs each appliance has, by its id.
    """
    span = telemetry.span
    key = ("power", telemetry.scope.tenants, span.step_ns, frozenset(gpu_counts.items()))
    try:
        cached_span, cached = cache.get(key, lambda: (span, _power(telemetry, gpu_counts)))
        if cached_span == span:
            return cached
        settled_ns = cached_span.end_ns - _SETTLED_NS
        settled_ns -= settled_ns % span.step_ns
        is_aligned = span.start_ns % span.step_ns == 0
        is_later = cached_span.start_ns <= span.start_ns < settled_ns < span.end_ns
        # The past of a new appliance may still be on its way.
        has_past = any(
            line.times_ns[0] < (span.start_ns + span.end_ns) // 2 for line in cached.lines
        )
        if not (is_aligned and is_later and has_past):
            return _power(telemetry, gpu_counts)
        # Steps before the newest ones fill their gaps.
        gaps_ns = -(-_MAX_GAP_NS // span.step_ns) * span.step_ns
        newest = replace(span, start_ns=max(span.start_ns, settled_ns - gaps_ns))
        after = _power(replace(telemetry, span=newest), gpu_counts)
    except UnavailableError as error:
        return Chart(field=_FIELD, problem=error.message)
    return _joined(cached.lines[0], after, start_ns=span.start_ns, settled_ns=settled_ns)


def _power(telemetry: Telemetry, gpu_counts: Mapping[str, int]) -> Chart:
    usage = telemetry.over_time("gpu", (_FIELD,), group_by=(APPLIANCE_TAG,))
    if usage.problem:
        raise UnavailableError(usage.problem)
    return total_power(usage, gpu_counts, span=telemetry.span)


def _joined(cached: Line, after: Chart, *, start_ns: int, settled_ns: int) -> Chart:
    old = slice(bisect_left(cached.times_ns, start_ns), bisect_left(cached.times_ns, settled_ns))
    times_ns, values = [*cached.times_ns[old]], [*cached.values[old]]
    for line in after.lines:
        new = slice(bisect_left(line.times_ns, settled_ns), None)
        times_ns += line.times_ns[new]
        values += line.values[new]
    return replace(after, lines=(replace(cached, times_ns=times_ns, values=values),))


def total_power(usage: Result, gpu_counts: Mapping[str, int], *, span: Span) -> Chart:
    """Return the GPU power of the given appliances: each one's mean per GPU times its GPUs."""
    counted_series = [
        (series, count)
        for series in usage.of("power_watts")
        if series.times_ns and (count := gpu_counts.get(series.tags.get(APPLIANCE_TAG, "")))
    ]
    if not counted_series:
        return Chart(field="power_watts", problem=usage.problem)
    lengths = np.array([len(series.times_ns) for series, _ in counted_series])
    times = np.concatenate([np.asarray(series.times_ns, np.int64) for series, _ in counted_series])
    watts = np.concatenate([np.asarray(series.values) for series, _ in counted_series])
    watts *= np.repeat([count for _, count in counted_series], lengths)
    ends = np.append(times[1:], span.end_ns)
    ends[np.cumsum(lengths) - 1] = span.end_ns
    max_steps = max(1, _MAX_GAP_NS // span.step_ns)
    until = np.minimum(ends, times + (max_steps + 1) * span.step_ns)
    # A value stands for its step and the next ones without a value.
    steps = np.maximum(0, -((times - until) // span.step_ns))
    turn = np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps)
    first_ns = times.min()
    places = (times - first_ns) // span.step_ns
    totals = np.bincount(np.repeat(places, steps) + turn, np.repeat(watts, steps))
    seen = np.unique(places)
    line = Line(
        name="GPU power",
        times_ns=(first_ns + seen * span.step_ns).tolist(),
        values=totals[seen].tolist(),
        color=1,
    )
    return Chart(field="power_watts", lines=(line,), problem=usage.problem)
