"""Plotly figures, as plain dicts, from charts.

Backgrounds are transparent and no text or grid color is set: `assets/plotly.css` sets them from the
theme's variables, so switching between light and dark needs no round trip.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from textwrap import wrap

from core.quantities import format_value
from dash_app.axes import (
    EVENT_AXIS,
    MAX_EVENT_LINES,
    NS_PER_MS,
    Figure,
    axis_scale,
    band_shape,
    base_layout,
    event_line,
    event_trace,
    limited_axis,
    threshold_keys,
    threshold_shapes,
    value_axis,
)
from dash_app.charts import Bar, Chart, Line, Summary, split_at_gaps, with_gaps
from dash_app.queries.fleet_charts import Heat, Metric
from dash_app.timerange import Span
from timeseries.store import Aggregate

NO_SAMPLES = "No data in this time range"
LOADING = "Loading…"
# `undrawn.js` doesn't draw it: drawing an empty chart takes as long as drawing its data.
UNDRAWN: Figure = {"data": [], "layout": {"meta": {"is_loading": True}}}
# Readable on light and dark backgrounds; neighbors differ in hue and lightness.
PALETTE = (
    "#3b82f6",
    "#f59e0b",
    "#10b981",
    "#ef4444",
    "#8b5cf6",
    "#06b6d4",
    "#ec4899",
    "#84a316",
    "#f97316",
    "#6366f1",
    "#14b8a6",
    "#a855f7",
    "#eab308",
    "#0ea5e9",
    "#f43f5e",
    "#22c55e",
)
HEAT_RGB = "51, 106, 226"
_TONES = {
    "info": "rgba(59, 130, 246, 0.65)",
    "warning": "rgba(217, 163, 0, 0.65)",
    "critical": "rgba(220, 53, 69, 0.65)",
}
# The name of a shorter bar would not fit into it.
_NAMED_SHARE = 0.12
_MANY_BANDS = 3
_MESSAGE_WIDTH = 44
# In pixels: every row of a heat map and every bar has room for its name, above the time axis.
HEIGHT_OF_ROW, HEIGHT_OF_AXIS = 13, 44
_HEIGHT_OF_BAR = 22


def time_figure(chart: Chart, span: Span, *, revision: str) -> Figure:
    """Return the figure of a chart over a span, or a message where there is no data."""
    lines = [line for line in chart.lines if line.times_ns]
    if chart.problem or not lines:
        return message_figure(chart.problem or NO_SAMPLES)
    # Rounded shares may add up to a bit over 100; their axis still ends there.
    is_sum = chart.is_stacked and not chart.field.endswith("_percent")
    peak = _stacked_peak(lines) if is_sum else max(map(_peak, lines))
    peak = max(peak, chart.least_peak)
    divisor, label = axis_scale(chart.field, peak if chart.limits[1] is None else chart.limits[1])
    layout = base_layout(span, revision)
    axis = value_axis(chart.field, label, peak=peak / divisor)
    layout["yaxis"] = limited_axis(axis, chart.limits, divisor=divisor)
    # The script writes a legend with these figures below the chart.
    layout["showlegend"] = False
    thresholds = threshold_shapes(chart.thresholds, divisor=divisor, axis=layout["yaxis"])
    layout["meta"] = {
        "legend": [_legend(line, chart.field) for line in lines],
        "headings": _headings(chart),
        "thresholds": threshold_keys(thresholds),
        "unit": label,
    }
    layout["shapes"] = [band_shape(band, span, number) for number, band in enumerate(chart.bands)]
    layout["shapes"] += thresholds
    scale = (divisor, label)
    if chart.bar_ns:
        layout |= {"barmode": "stack"}
        # The values are of whole days in UTC.
        layout["meta"]["is_utc"] = True
        layout["xaxis"]["hoverformat"] = "%b %d UTC"
        traces = [_bars(line, chart, scale=scale) for line in lines]
    else:
        traces = [
            trace
            for line in lines
            for trace in _traces(line, chart, step_ns=span.step_ns, scale=scale)
        ]
    if chart.events:
        traces.append(event_trace(chart.events, span))
        layout["yaxis2"] = EVENT_AXIS
        layout["margin"] = layout["margin"] | {"t": 22}
        layout["shapes"] += [event_line(event) for event in chart.events[-MAX_EVENT_LINES:]]
    return {"data": traces, "layout": layout}


def time_figures(charts: Mapping[str, Chart], span: Span, *, revision: str) -> dict[str, Figure]:
    """Return the figures of several charts over the same span."""
    return {key: time_figure(chart, span, revision=revision) for key, chart in charts.items()}


def heat_figure(heat: Heat, span: Span, *, metric: Metric, search: str, revision: str) -> Figure:
    """Return lines as rows of a heat map, transparent at the metric's low end, opaque at its high.

    A click on a row leads to its address; `search` is the query string of these.
    """
    rows = [row for row in heat.chart.lines if row.times_ns]
    if heat.chart.problem or not rows:
        return message_figure(heat.chart.problem or NO_SAMPLES)
    times_ns = sorted({time_ns for row in rows for time_ns in row.times_ns})
    columns = [dict(zip(row.times_ns, row.values, strict=True)) for row in rows]
    layout = base_layout(span, revision)
    layout["hovermode"] = "closest"
    divisor, label = axis_scale(metric.field, max(abs(metric.low), abs(metric.high)))
    layout["yaxis"] = {
        "autorange": "reversed",
        "showgrid": False,
        "automargin": True,
        "ticklabelstandoff": 4,
        "fixedrange": True,
        "tickfont": {"size": 10},
    }
    layout["meta"] = {
        "links": {name: f"{path}{search}" for name, path in heat.links.items()},
        "min_height": HEIGHT_OF_AXIS + HEIGHT_OF_ROW * len(rows),
        "scale": [format_value(metric.field, value) for value in (metric.low, metric.high)],
        "unit": label,
    }
    layout["xaxis"]["showgrid"] = False
    trace = {
        "type": "heatmap",
        "x": [time_ns // NS_PER_MS for time_ns in times_ns],
        "y": [row.name for row in rows],
        "z": [
            [_rounded(column.get(time_ns), divisor) for time_ns in times_ns] for column in columns
        ],
        "zmin": metric.low / divisor,
        "zmax": metric.high / divisor,
        "ygap": 1,
        "colorscale": [[0, f"rgba({HEAT_RGB}, 0.06)"], [1, f"rgba({HEAT_RGB}, 1)"]],
        "showscale": False,
        "hovertemplate": "%{y}<br>%{x|%b %d %H:%M} UTC<br>"
        f"<b>%{{z:.{_hover_digits(metric.field, divisor)}f}} {label}</b><extra></extra>",
        "hoverongaps": False,
    }
    return {"data": [trace], "layout": layout}


def timeline_figure(bars: Sequence[Bar], span: Span, *, revision: str) -> Figure:
    """Return bars in rows over a span; a click on one leads to its address."""
    if not bars:
        return message_figure("No jobs and no alerts in this time range")
    layout = base_layout(span, revision)
    layout |= {"hovermode": "closest", "barmode": "overlay", "bargap": 0.25, "showlegend": False}
    rows = sorted({bar.row for bar in bars}, key=natural_order)
    layout["yaxis"] = {
        "autorange": "reversed",
        "automargin": True,
        "fixedrange": True,
        "showgrid": False,
        "ticklabelstandoff": 4,
        "categoryorder": "array",
        "categoryarray": rows,
    }
    layout["meta"] = {"min_height": HEIGHT_OF_AXIS + _HEIGHT_OF_BAR * len(rows)}
    colors = {label: at for at, label in enumerate(sorted({bar.label for bar in bars}))}
    width_ns = span.end_ns - span.start_ns
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": [bar.row for bar in bars],
        "base": [bar.start_ns // NS_PER_MS for bar in bars],
        "x": [(bar.end_ns - bar.start_ns) // NS_PER_MS for bar in bars],
        "text": [
            bar.label if bar.end_ns - bar.start_ns > _NAMED_SHARE * width_ns else "" for bar in bars
        ],
        "textposition": "inside",
        "insidetextanchor": "start",
        "constraintext": "none",
        # Plotly would turn names of narrow bars on their side.
        "textangle": 0,
        "hovertext": [bar.text for bar in bars],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "customdata": [bar.href for bar in bars],
        "marker": {
            "color": [
                _TONES.get(bar.tone) or _faded(PALETTE[colors[bar.label] % len(PALETTE)], 0.45)
                for bar in bars
            ]
        },
    }
    return {"data": [trace], "layout": layout}


def natural_order(text: str) -> list[tuple[int, str]]:
    """Return a sort key by which GPU 10 follows GPU 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in text.split()]


def message_figure(text: str) -> Figure:
    """Return an empty panel with a message."""
    hidden = {"visible": False, "fixedrange": True, "range": [0, 1]}
    # Plotly does not wrap text, and a panel on a phone is as wide.
    note = {
        "text": "<br>".join(wrap(text, _MESSAGE_WIDTH)),
        "showarrow": False,
        "xref": "paper",
        "yref": "paper",
        "x": 0.5,
        "y": 0.5,
        "font": {"size": 13},
        "align": "center",
    }
    return {
        "data": [],
        "layout": {
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "xaxis": hidden,
            "yaxis": hidden,
            "annotations": [note],
        },
    }


def _bars(line: Line, chart: Chart, *, scale: tuple[float, str]) -> Figure:
    trace = _trace(line, chart.field, line.times_ns, line.values, scale=scale)
    width_ms = chart.bar_ns // NS_PER_MS
    del trace["mode"], trace["line"]
    return trace | {
        "type": "bar",
        "offset": 0,
        "width": width_ms * 0.9,
        "marker": {"color": _faded(PALETTE[line.color % len(PALETTE)], 0.75)},
    }


def _band(line: Line, *, alpha: float, step_ns: int, divisor: float) -> Iterator[Figure]:
    """Draw the extremes of a line as an area behind it, part by part."""
    color = _faded(PALETTE[line.color % len(PALETTE)], alpha)
    for part in split_at_gaps(line.times_ns, step_ns=step_ns):
        times = [time_ns // NS_PER_MS for time_ns in line.times_ns[part]]
        low, high = zip(*line.extremes[part], strict=True)
        yield {
            "type": "scatter",
            "mode": "lines",
            "x": [*times, *reversed(times)],
            "y": [_rounded(value, divisor) for value in (*high, *reversed(low))],
            "fill": "toself",
            "fillcolor": color,
            "line": {"width": 0},
            "legendgroup": line.name,
            "showlegend": False,
            "hoverinfo": "skip",
        }


def _traces(line: Line, chart: Chart, *, step_ns: int, scale: tuple[float, str]) -> list[Figure]:
    """Draw a line; a filled one part by part, because Plotly fills across a None."""
    if line.extremes:
        times_ns, values = with_gaps(line.times_ns, line.values, step_ns=step_ns)
        trace = _trace(line, chart.field, times_ns, values, scale=scale)
        behind = dict(zip(line.times_ns, line.extremes, strict=True))
        pairs = [behind.get(at, (None, None)) for at in times_ns]
        trace["customdata"] = [[_rounded(value, scale[0]) for value in pair] for pair in pairs]
        digits = _hover_digits(chart.field, scale[0])
        low, high = (f"%{{customdata[{at}]:.{digits}f}}" for at in (0, 1))
        trace["hovertemplate"] += f" ({low} to {high})"
        trace["legendgroup"] = line.name
        # Areas of several lines overlap.
        alpha = 0.18 if len(chart.lines) < _MANY_BANDS else 0.08
        return [*_band(line, alpha=alpha, step_ns=step_ns, divisor=scale[0]), trace]
    if not (chart.is_stacked or line.is_filled or len(chart.lines) == 1):
        times_ns, values = with_gaps(line.times_ns, line.values, step_ns=step_ns)
        trace = _trace(line, chart.field, times_ns, values, scale=scale)
        noted = dict(zip(line.times_ns, line.notes, strict=False))
        _add_notes(trace, [noted.get(at, "") for at in times_ns] if noted else ())
        return [trace]
    traces = []
    for number, part in enumerate(split_at_gaps(line.times_ns, step_ns=step_ns)):
        trace = _trace(line, chart.field, line.times_ns[part], line.values[part], scale=scale)
        _add_notes(trace, line.notes[part])
        color = trace["line"]["color"]
        trace |= {"legendgroup": line.name, "showlegend": number == 0 and len(chart.lines) > 1}
        if chart.is_stacked:
            trace |= {"stackgroup": f"part {number}", "fillcolor": _faded(color, 0.35)}
        else:
            trace |= {"fill": "tozeroy", "fillcolor": _faded(color, 0.12)}
        traces.append(trace)
    return traces


def _add_notes(trace: Figure, notes: Sequence[str]) -> None:
    if notes:
        trace["text"] = list(notes)
        trace["hovertemplate"] += " %{text}"


def _trace(
    line: Line,
    field: str,
    times_ns: Sequence[int],
    values: Sequence[float | None],
    *,
    scale: tuple[float, str],
) -> Figure:
    divisor, label = scale
    color = PALETTE[line.color % len(PALETTE)]
    return {
        "type": "scatter",
        "mode": "lines" if len(times_ns) > 1 else "markers",
        "name": line.name,
        "x": [time_ns // NS_PER_MS for time_ns in times_ns],
        "y": [_rounded(value, divisor) for value in values],
        "line": {"color": color, "width": 1.5, "dash": "dot" if line.is_dotted else "solid"},
        "marker": {"color": color, "size": 5},
        "hovertemplate": f"%{{y:.{_hover_digits(field, divisor)}f}} {label}",
    }


def _headings(chart: Chart) -> list[str]:
    """Return what the figures of a legend are, and of what."""
    if chart.aggregate is not Aggregate.AVG:
        return ["", "min step", f"{chart.aggregate} of range", "max step", "last step"]
    is_of_samples = any(line.summary for line in chart.lines)
    return ["of samples" if is_of_samples else "of steps", "min", "mean", "max", "last step"]


def _legend(line: Line, field: str) -> Figure:
    """Return the name and color of a line, with the figures that `_headings` names."""
    summary = line.summary or Summary(min(line.values), fmean(line.values), max(line.values))
    values = (summary.least, summary.whole, summary.greatest, line.values[-1])
    return {
        "name": line.name,
        "color": PALETTE[line.color % len(PALETTE)],
        "is_dotted": line.is_dotted,
        "stats": [format_value(field, value) for value in values],
    }


def _peak(line: Line) -> float:
    extremes = (abs(value) for pair in line.extremes for value in pair)
    return max([*map(abs, line.values), *extremes])


def _stacked_peak(lines: Sequence[Line]) -> float:
    totals: dict[int, float] = defaultdict(float)
    for line in lines:
        for time_ns, value in zip(line.times_ns, line.values, strict=True):
            totals[time_ns] += value
    return max(totals.values(), default=0.0)


def _rounded(value: float | None, divisor: float = 1.0) -> float | None:
    return None if value is None else round(value / divisor, 3)


def _hover_digits(field: str, divisor: float) -> int:
    """Return how many decimals to show: a watt needs none, a kilowatt does."""
    is_whole = field.endswith(("_percent", "_celsius", "_watts")) and divisor == 1.0
    return 0 if is_whole else 1 if divisor == 1.0 else 2


def _faded(color: str, alpha: float) -> str:
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {alpha})"
