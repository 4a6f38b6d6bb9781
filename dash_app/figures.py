"""Plotly figures, as plain dicts, from charts.

Paper and plot are transparent and no text or grid colour is set: `assets/dashboards.css` paints
them from the theme's variables, so switching light and dark needs no round trip. `uirevision`
stays the same over refreshes, so that a zoom or a hidden line survives them.
"""

from collections import defaultdict
from collections.abc import Sequence

from dash_app.axes import NS_PER_MS, Figure, axis_scale, layout_of, value_axis
from dash_app.charts import Chart, HeatMap, Line
from dash_app.gaps import pieces, with_gaps
from dash_app.overlays import (
    EVENT_AXIS,
    MOST_EVENT_LINES,
    band,
    event_line,
    event_trace,
    level_shapes,
)
from dash_app.timerange import Span

NO_SAMPLES = "No samples in this range"
LOADING = "Loading…"
# Readable on white and on near black alike, neighbours apart in hue and in lightness.
PALETTE = (
    "#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#06b6d4", "#ec4899", "#84a316",
    "#f97316", "#6366f1", "#14b8a6", "#a855f7", "#eab308", "#0ea5e9", "#f43f5e", "#22c55e",
)  # fmt: skip
HEAT_RGB = "51, 106, 226"


def time_figure(chart: Chart, span: Span, *, revision: str) -> Figure:
    """Return the figure of a chart over a span, or its message when there is nothing to draw."""
    lines = [line for line in chart.lines if line.times_ns]
    if chart.problem or not lines:
        return message_figure(chart.problem or NO_SAMPLES)
    # Shares of a whole add up to a bit more than it, and still end at 100.
    is_sum = chart.is_stacked and not chart.field.endswith("_percent")
    peak = _stacked_peak(lines) if is_sum else _peak(lines)
    divisor, label = axis_scale(chart.field, peak)
    layout = layout_of(span, revision)
    layout["yaxis"] = value_axis(chart.field, label, peak=peak / divisor)
    layout["showlegend"] = len(lines) > 1
    layout["shapes"] = [band(mark, span, number) for number, mark in enumerate(chart.marks)]
    layout["shapes"] += level_shapes(chart.levels, divisor=divisor, axis=layout["yaxis"])
    scale = (divisor, label)
    traces = [
        trace for line in lines for trace in _traces(line, chart, step_ns=span.step_ns, scale=scale)
    ]
    if chart.events:
        traces.append(event_trace(chart.events, span))
        layout["yaxis2"] = EVENT_AXIS
        layout["margin"] = layout["margin"] | {"t": 22}
        layout["shapes"] += [event_line(event) for event in chart.events[-MOST_EVENT_LINES:]]
    return {"data": traces, "layout": layout}


def heat_figure(heat: HeatMap, span: Span, *, revision: str) -> Figure:
    """Return rows of percentages as a heat map that is transparent at 0 and full at 100."""
    rows = [row for row in heat.rows if row.times_ns]
    if heat.problem or not rows:
        return message_figure(heat.problem or NO_SAMPLES)
    times_ns = sorted({time_ns for row in rows for time_ns in row.times_ns})
    columns = [dict(zip(row.times_ns, row.values, strict=True)) for row in rows]
    layout = layout_of(span, revision)
    layout["hovermode"] = "closest"
    layout["yaxis"] = {"autorange": "reversed", "showgrid": False, "automargin": True,
                       "ticklabelstandoff": 4, "fixedrange": True}  # fmt: skip
    layout["xaxis"]["showgrid"] = False
    trace = {
        "type": "heatmap",
        "x": [time_ns // NS_PER_MS for time_ns in times_ns],
        "y": [row.name for row in rows],
        "z": [[_rounded(column.get(time_ns)) for time_ns in times_ns] for column in columns],
        "zmin": 0,
        "zmax": 100,
        "ygap": 2,
        "colorscale": [[0, f"rgba({HEAT_RGB}, 0.06)"], [1, f"rgba({HEAT_RGB}, 1)"]],
        "showscale": False,
        "hovertemplate": "%{y}<br>%{x|%b %d %H:%M} UTC<br><b>%{z:.0f} %</b><extra></extra>",
        "hoverongaps": False,
    }
    return {"data": [trace], "layout": layout}


def message_figure(text: str) -> Figure:
    """Return an empty panel that says why it is empty."""
    hidden = {"visible": False, "fixedrange": True, "range": [0, 1]}
    note = {
        "text": text, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5,
        "font": {"size": 13}, "align": "center",
    }  # fmt: skip
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


def _traces(line: Line, chart: Chart, *, step_ns: int, scale: tuple[float, str]) -> list[Figure]:
    """Draw a line; a filled one piece by piece, because Plotly fills across a None."""
    if not (chart.is_stacked or line.is_filled or len(chart.lines) == 1):
        times_ns, values = with_gaps(line.times_ns, line.values, step_ns=step_ns)
        return [_trace(line, chart.field, times_ns, values, scale=scale)]
    traces = []
    for number, piece in enumerate(pieces(line.times_ns, step_ns=step_ns)):
        trace = _trace(line, chart.field, line.times_ns[piece], line.values[piece], scale=scale)
        color = trace["line"]["color"]
        trace |= {"legendgroup": line.name, "showlegend": number == 0 and len(chart.lines) > 1}
        if chart.is_stacked:
            trace |= {"stackgroup": f"piece {number}", "fillcolor": _faded(color, 0.35)}
        else:
            trace |= {"fill": "tozeroy", "fillcolor": _faded(color, 0.12)}
        traces.append(trace)
    return traces


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
        "line": {"color": color, "width": 1.5, "dash": line.stroke.value},
        "marker": {"color": color, "size": 5},
        "hovertemplate": f"%{{y:.{_hover_digits(field, divisor)}f}} {label}",
    }


def _peak(lines: Sequence[Line]) -> float:
    return max((abs(value) for line in lines for value in line.values), default=0.0)


def _stacked_peak(lines: Sequence[Line]) -> float:
    totals: dict[int, float] = defaultdict(float)
    for line in lines:
        for time_ns, value in zip(line.times_ns, line.values, strict=True):
            totals[time_ns] += value
    return max(totals.values(), default=0.0)


def _rounded(value: float | None, divisor: float = 1.0) -> float | None:
    return None if value is None else round(value / divisor, 3)


def _hover_digits(field: str, divisor: float) -> int:
    """Return how many decimals say something: a watt needs none, a kilowatt does."""
    is_whole = field.endswith(("_percent", "_celsius", "_watts")) and divisor == 1.0
    return 0 if is_whole else 1 if divisor == 1.0 else 2


def _faded(color: str, alpha: float) -> str:
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {alpha})"
