"""Plotly figures, as plain dicts, from charts.

Paper and plot are transparent and no text or grid colour is set: `assets/dashboards.css` paints
them from the theme's variables, so switching light and dark needs no round trip. `uirevision`
stays the same over refreshes, so that a zoom or a hidden line survives them.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from math import ceil, log2
from statistics import median
from typing import Any

from core.units import unit_of
from dash_app.charts import Chart, Event, HeatMap, Line, Mark
from dash_app.timerange import Span

Figure = dict[str, Any]

NO_SAMPLES = "No samples in this range"
LOADING = "Loading…"
# Readable on white and on near black alike, neighbours apart in hue and in lightness.
PALETTE = (
    "#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#06b6d4", "#ec4899", "#84a316",
    "#f97316", "#6366f1", "#14b8a6", "#a855f7", "#eab308", "#0ea5e9", "#f43f5e", "#22c55e",
)  # fmt: skip
HEAT_RGB = "51, 106, 226"

# Two windows and a half without a value is a gap, not a slow line.
GAP_STEPS = 2.5
_PACE_NEIGHBOURS = 5
_NS_PER_MS = 1_000_000
# A narrower band's name would run over its neighbour's.
_LABELLED_SHARE = 0.15
# Events beyond these have a mark and no line: a chart of lines says nothing.
_MOST_EVENT_LINES = 8
_BAD_COLOR, _WARN_COLOR = "#dc3545", "#d9a300"
_EVENT_AXIS: Figure = {
    "overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True,
}  # fmt: skip
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
_DECIMAL = ("", "k", "M", "G", "T")


def time_figure(chart: Chart, span: Span, *, revision: str) -> Figure:
    """Return the figure of a chart over a span, or its message when there is nothing to draw."""
    lines = [line for line in chart.lines if line.times_ns]
    if chart.problem or not lines:
        return message_figure(chart.problem or NO_SAMPLES)
    # Shares of a whole add up to a bit more than it, and still end at 100.
    is_sum = chart.is_stacked and not chart.field.endswith("_percent")
    peak = _stacked_peak(lines) if is_sum else _peak(lines)
    divisor, label = axis_scale(chart.field, peak)
    layout = _layout(span, revision)
    layout["yaxis"] = _value_axis(chart.field, label, peak=peak / divisor)
    layout["showlegend"] = len(lines) > 1
    layout["shapes"] = [_band(mark, span, number) for number, mark in enumerate(chart.marks)]
    scale = (divisor, label)
    traces = [
        trace for line in lines for trace in _traces(line, chart, step_ns=span.step_ns, scale=scale)
    ]
    if chart.events:
        traces.append(_event_trace(chart.events, span))
        layout["yaxis2"] = _EVENT_AXIS
        layout["margin"] = layout["margin"] | {"t": 22}
        layout["shapes"] += [_event_line(event) for event in chart.events[-_MOST_EVENT_LINES:]]
    return {"data": traces, "layout": layout}


def heat_figure(heat: HeatMap, span: Span, *, revision: str) -> Figure:
    """Return rows of percentages as a heat map that is transparent at 0 and full at 100."""
    rows = [row for row in heat.rows if row.times_ns]
    if heat.problem or not rows:
        return message_figure(heat.problem or NO_SAMPLES)
    times_ns = sorted({time_ns for row in rows for time_ns in row.times_ns})
    columns = [dict(zip(row.times_ns, row.values, strict=True)) for row in rows]
    layout = _layout(span, revision)
    layout["hovermode"] = "closest"
    layout["yaxis"] = {"autorange": "reversed", "showgrid": False, "automargin": True,
                       "ticklabelstandoff": 4}  # fmt: skip
    layout["xaxis"]["showgrid"] = False
    trace = {
        "type": "heatmap",
        "x": [time_ns // _NS_PER_MS for time_ns in times_ns],
        "y": [row.name for row in rows],
        "z": [[_rounded(column.get(time_ns)) for time_ns in times_ns] for column in columns],
        "zmin": 0,
        "zmax": 100,
        "ygap": 2,
        "colorscale": [[0, f"rgba({HEAT_RGB}, 0.06)"], [1, f"rgba({HEAT_RGB}, 1)"]],
        "showscale": False,
        "hovertemplate": "%{y}<br>%{x|%b %d %H:%M}<br><b>%{z:.0f} %</b><extra></extra>",
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


def pieces(times_ns: Sequence[int], *, step_ns: int) -> list[slice]:
    """Return the stretches of a series that no gap interrupts.

    A gap is wider than 2.5 steps and than 2.5 times the pace of the points before and after it:
    a series that is sampled more rarely than the step is whole.
    """
    cuts = [index for index in range(1, len(times_ns)) if _is_gap(times_ns, index, step_ns)]
    return [slice(*ends) for ends in pairwise([0, *cuts, len(times_ns)])]


def with_gaps(
    times_ns: Sequence[int], values: Sequence[float], *, step_ns: int
) -> tuple[list[int], list[float | None]]:
    """Return the points with a None in the middle of every gap, so that no line crosses it."""
    out_times: list[int] = []
    out_values: list[float | None] = []
    for piece in pieces(times_ns, step_ns=step_ns):
        if piece.start:
            out_times.append((times_ns[piece.start - 1] + times_ns[piece.start]) // 2)
            out_values.append(None)
        out_times.extend(times_ns[piece])
        out_values.extend(values[piece])
    return out_times, out_values


def axis_scale(field: str, peak: float) -> tuple[float, str]:
    """Return what to divide values by, and the unit that they then have, such as `GiB`."""
    unit = unit_of(field)
    if not (unit.is_binary or unit.is_scaled):
        return 1.0, unit.symbol
    base, prefixes = (1024, _BINARY) if unit.is_binary else (1000, _DECIMAL)
    power = 0
    while peak >= base ** (power + 1) and power < len(prefixes) - 1:
        power += 1
    return float(base**power), f"{prefixes[power]}{unit.symbol}" if prefixes[power] else unit.symbol


def _is_gap(times_ns: Sequence[int], index: int, step_ns: int) -> bool:
    width = times_ns[index] - times_ns[index - 1]
    if width <= GAP_STEPS * step_ns:
        return False
    before = _pace(times_ns[max(0, index - 1 - _PACE_NEIGHBOURS) : index])
    after = _pace(times_ns[index : index + 1 + _PACE_NEIGHBOURS])
    return width > GAP_STEPS * max(before, after, step_ns)


def _pace(times_ns: Sequence[int]) -> float:
    widths = [later - earlier for earlier, later in pairwise(times_ns)]
    return median(widths) if widths else 0.0


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
        "x": [time_ns // _NS_PER_MS for time_ns in times_ns],
        "y": [_rounded(value, divisor) for value in values],
        "line": {"color": color, "width": 1.5, "dash": line.stroke.value},
        "marker": {"color": color, "size": 5},
        "hovertemplate": f"%{{y:.{_hover_digits(field)}f}} {label}",
    }


def _layout(span: Span, revision: str) -> Figure:
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "font": {"family": "inherit", "size": 11},
        "hovermode": "x unified",
        "hoverdistance": 40,
        "uirevision": revision,
        "xaxis": {
            "type": "date",
            "range": [span.start_ns // _NS_PER_MS, span.end_ns // _NS_PER_MS],
            "nticks": 7,
            "automargin": True,
            "hoverformat": "%b %d %H:%M:%S",
            "tickformatstops": _TICKS,
            "showspikes": False,
        },
        "legend": {
            "orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0,
            "itemwidth": 30, "traceorder": "normal",
            "bgcolor": "rgba(0,0,0,0)",
        },
    }  # fmt: skip


# A day's name only where the ticks are days: `14:30` reads better than `14:30:00.000`.
_TICKS = [
    {"dtickrange": [None, 60_000], "value": "%H:%M:%S"},
    {"dtickrange": [60_000, 43_200_000], "value": "%H:%M"},
    {"dtickrange": [43_200_000, None], "value": "%b %d"},
]


def _value_axis(field: str, label: str, *, peak: float) -> Figure:
    axis: Figure = {
        "ticksuffix": f" {label}" if label else "",
        "automargin": True,
        "nticks": 5,
        "ticklabelstandoff": 4,
        "rangemode": "tozero",
        "zeroline": False,
        "exponentformat": "none",
    }
    if field.endswith("_percent") and peak <= 100:  # noqa: PLR2004 - the whole
        axis |= {"range": [0, 100], "dtick": 25}
    elif field.endswith("_celsius"):
        axis |= {"rangemode": "normal", "range": [20, max(100, peak + 5)]}
    else:
        axis |= {"range": [0, peak * 1.08 or 1]}
    if unit_of(field).is_binary and peak > 0:
        axis["dtick"] = 2.0 ** ceil(log2(peak / 5))
    return axis


def _band(mark: Mark, span: Span, number: int) -> Figure:
    is_wide = mark.end_ns - mark.start_ns > _LABELLED_SHARE * (span.end_ns - span.start_ns)
    return {
        "type": "rect", "layer": "below", "xref": "x", "yref": "paper", "y0": 0, "y1": 1,
        "x0": mark.start_ns // _NS_PER_MS, "x1": mark.end_ns // _NS_PER_MS,
        "fillcolor": f"rgba(128, 128, 128, {0.16 if number % 2 else 0.09})", "line": {"width": 0},
        "label": {"text": mark.label if is_wide else "", "textposition": "bottom left",
                  "font": {"size": 10}},
    }  # fmt: skip


def _event_trace(events: Sequence[Event], span: Span) -> Figure:
    """Draw events as marks above the plot, named where there is room, told in full on hovering."""
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": "events",
        "yaxis": "y2",
        "x": [event.time_ns // _NS_PER_MS for event in events],
        "y": [1 for _ in events],
        "text": _event_labels(events, span),
        "textposition": "top left",
        "textfont": {"size": 10},
        "hovertext": [event.text for event in events],
        "marker": {
            "symbol": "triangle-down",
            "size": 9,
            "color": [_event_color(event) for event in events],
        },
        "cliponaxis": False,
        "showlegend": False,
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def _event_labels(events: Sequence[Event], span: Span) -> list[str]:
    """Return the events' names, but none that would run over the one before it."""
    room_ns = _LABELLED_SHARE * (span.end_ns - span.start_ns)
    labels: list[str] = []
    free_from_ns = span.start_ns + room_ns
    for event in events:
        has_room = event.time_ns >= free_from_ns
        labels.append(event.label if has_room else "")
        free_from_ns = event.time_ns + room_ns
    return labels


def _event_line(event: Event) -> Figure:
    return {
        "type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1,
        "x0": event.time_ns // _NS_PER_MS, "x1": event.time_ns // _NS_PER_MS,
        "line": {"color": _event_color(event), "width": 1, "dash": "dot"},
    }  # fmt: skip


def _event_color(event: Event) -> str:
    return _BAD_COLOR if event.is_bad else _WARN_COLOR


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


def _hover_digits(field: str) -> int:
    return 0 if field.endswith(("_percent", "_celsius", "_watts")) else 1


def _faded(color: str, alpha: float) -> str:
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {alpha})"
