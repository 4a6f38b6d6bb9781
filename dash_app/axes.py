"""Axes and annotations of figures: units, bands, events, thresholds."""

from collections.abc import Sequence
from math import ceil, log2
from typing import Any

from core.quantities import unit_of
from dash_app.charts import Band, Event, Limits, Threshold
from dash_app.timerange import Span

Figure = dict[str, Any]

NS_PER_MS = 1_000_000
# More event lines would hide the data; other events have a marker only.
MAX_EVENT_LINES = 8
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
_DECIMAL = ("", "k", "M", "G", "T")
# Dates only where the ticks are days: `14:30` reads better than `14:30:00.000`.
_TICKS = [
    {"dtickrange": [None, 60_000], "value": "%H:%M:%S"},
    {"dtickrange": [60_000, 43_200_000], "value": "%H:%M"},
    {"dtickrange": [43_200_000, None], "value": "%b %d"},
]
# The label of a narrower band would overlap its neighbor's.
_LABELED_SHARE = 0.15
_SEVERITY_COLORS = {"info": "#3b82f6", "warning": "#d9a300", "critical": "#dc3545"}
EVENT_AXIS: Figure = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}


def base_layout(span: Span, revision: str) -> Figure:
    """Return the layout of all figures; zoom and hidden lines last while `revision` is the same."""
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
            "range": [span.start_ns // NS_PER_MS, span.end_ns // NS_PER_MS],
            "nticks": 5,
            "automargin": True,
            "hoverformat": "%b %d %H:%M:%S UTC",
            "tickformatstops": _TICKS,
            "showspikes": False,
        },
        "legend": {
            "orientation": "h",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
            "x": 0,
            "itemwidth": 30,
            "traceorder": "normal",
            "bgcolor": "rgba(0,0,0,0)",
        },
    }


def axis_scale(field: str, peak: float) -> tuple[float, str]:
    """Return the divisor of the values, and the resulting unit such as `GiB`."""
    unit = unit_of(field)
    if not (unit.is_binary or unit.is_scaled):
        return 1.0, unit.symbol
    base, prefixes = (1024, _BINARY) if unit.is_binary else (1000, _DECIMAL)
    power = 0
    while peak >= base ** (power + 1) and power < len(prefixes) - 1:
        power += 1
    return float(base**power), f"{prefixes[power]}{unit.symbol}" if prefixes[power] else unit.symbol


def value_axis(field: str, label: str, *, peak: float) -> Figure:
    """Return the vertical axis: percentages up to 100, other values up to the peak."""
    axis: Figure = {
        "ticksuffix": f" {label}" if label else "",
        "automargin": True,
        "nticks": 5,
        "ticklabelstandoff": 4,
        "rangemode": "tozero",
        "zeroline": False,
        # Dragging selects a time window, whatever its height.
        "fixedrange": True,
        "exponentformat": "none",
    }
    if field.endswith("_percent") and peak <= 100:  # noqa: PLR2004 - the whole
        axis |= {"range": [0, 100], "dtick": 25}
    elif field.endswith("_celsius"):
        axis |= {"rangemode": "normal", "range": [20, max(110, peak + 5)]}
    else:
        axis |= {"range": [0, peak * 1.08 or 1]}
    if unit_of(field).is_binary and peak > 0:
        axis["dtick"] = 2.0 ** ceil(log2(peak / 5))
    return axis


def limited_axis(axis: Figure, limits: Limits, *, divisor: float) -> Figure:
    """Return an axis that begins and ends at the limits that are given."""
    if limits == (None, None):
        return axis
    low, high = (
        end if limit is None else limit / divisor
        for end, limit in zip(axis["range"], limits, strict=True)
    )
    # A limit beyond all values would turn the axis around.
    ends = {"range": [low, high if high > low else low + 1], "rangemode": "normal"}
    # Steps for the whole range would leave a part of it without a tick.
    return {name: value for name, value in axis.items() if name != "dtick"} | ends


def band_shape(band: Band, span: Span, number: int) -> Figure:
    """Draw a band behind the lines, every second one darker."""
    is_wide = band.end_ns - band.start_ns > _LABELED_SHARE * (span.end_ns - span.start_ns)
    return {
        "type": "rect",
        "layer": "below",
        "xref": "x",
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "x0": band.start_ns // NS_PER_MS,
        "x1": band.end_ns // NS_PER_MS,
        "fillcolor": band.color or f"rgba(128, 128, 128, {0.16 if number % 2 else 0.09})",
        "line": {"width": 0},
        "label": {
            "text": band.label if is_wide else "",
            "textposition": "bottom left",
            "font": {"size": 10},
        },
    }


def event_trace(events: Sequence[Event], span: Span) -> Figure:
    """Draw events as markers above the plot, labeled where there is room."""
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": "events",
        "yaxis": "y2",
        "x": [event.time_ns // NS_PER_MS for event in events],
        "y": [1 for _ in events],
        "text": _event_labels(events, span),
        "textposition": "top left",
        "textfont": {"size": 10},
        "hovertext": [event.text for event in events],
        "marker": {
            "symbol": "triangle-down",
            "size": 9,
            "color": [_color(event) for event in events],
        },
        "cliponaxis": False,
        "showlegend": False,
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def event_line(event: Event) -> Figure:
    """Draw an event through the plot."""
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "x0": event.time_ns // NS_PER_MS,
        "x1": event.time_ns // NS_PER_MS,
        "line": {"color": _color(event), "width": 1, "dash": "dot"},
    }


def threshold_shapes(
    thresholds: Sequence[Threshold], *, divisor: float, axis: Figure
) -> list[Figure]:
    """Draw the thresholds within the axis; their labels are below the chart, see `threshold_keys`.

    Labels in the plot would cover each other, the data and the ticks.
    """
    low, high = axis["range"]
    return [
        {
            "type": "line",
            "name": threshold.label,
            "xref": "paper",
            "yref": "y",
            "x0": 0,
            "x1": 1,
            "y0": threshold.value / divisor,
            "y1": threshold.value / divisor,
            "line": {"color": _color(threshold), "width": 1, "dash": "dash"},
        }
        for threshold in thresholds
        if low <= threshold.value / divisor <= high
    ]


def turned(shape: Figure) -> Figure:
    """Return a horizontal line as a vertical one, for an axis of values that is horizontal."""
    return shape | {
        "xref": "x",
        "yref": "paper",
        "x0": shape["y0"],
        "x1": shape["y1"],
        "y0": 0,
        "y1": 1,
    }


def threshold_keys(shapes: Sequence[Figure]) -> list[dict[str, str]]:
    """Return the names and colors of the thresholds that are drawn, highest first."""
    named = sorted(
        (shape for shape in shapes if "name" in shape),
        key=lambda shape: -(shape["x0"] if shape["xref"] == "x" else shape["y0"]),
    )
    return [{"name": shape["name"], "color": shape["line"]["color"]} for shape in named]


def _event_labels(events: Sequence[Event], span: Span) -> list[str]:
    """Return the labels, without those that would overlap the one before."""
    width_ns = _LABELED_SHARE * (span.end_ns - span.start_ns)
    labels: list[str] = []
    free_from_ns = span.start_ns + width_ns
    for event in events:
        labels.append(event.label if event.time_ns >= free_from_ns else "")
        free_from_ns = event.time_ns + width_ns
    return labels


def _color(annotation: Event | Threshold) -> str:
    if isinstance(annotation, Threshold):
        return _SEVERITY_COLORS[annotation.severity]
    return _SEVERITY_COLORS["critical" if annotation.is_critical else "warning"]
