"""What is drawn over and under the lines of a figure: stretches, events, levels."""

from collections.abc import Sequence

from dash_app.axes import NS_PER_MS, Figure
from dash_app.charts import Event, Level, Mark
from dash_app.timerange import Span

# A narrower band's name would run over its neighbour's.
_LABELLED_SHARE = 0.15
# Events beyond these have a mark and no line: a chart of lines says nothing.
MOST_EVENT_LINES = 8
# A name above a line as high as this would be cut off.
_TOP_SHARE = 0.88
# Plotly would set a name against the axis; other blanks it takes away.
_GAP = "\u00a0\u00a0"
_BAD_COLOR, _WARN_COLOR = "#dc3545", "#d9a300"
EVENT_AXIS: Figure = {
    "overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True,
}  # fmt: skip


def band(mark: Mark, span: Span, number: int) -> Figure:
    """Draw a stretch of time behind the lines, every second one darker."""
    is_wide = mark.end_ns - mark.start_ns > _LABELLED_SHARE * (span.end_ns - span.start_ns)
    return {
        "type": "rect", "layer": "below", "xref": "x", "yref": "paper", "y0": 0, "y1": 1,
        "x0": mark.start_ns // NS_PER_MS, "x1": mark.end_ns // NS_PER_MS,
        "fillcolor": f"rgba(128, 128, 128, {0.16 if number % 2 else 0.09})", "line": {"width": 0},
        "label": {"text": mark.label if is_wide else "", "textposition": "bottom left",
                  "font": {"size": 10}},
    }  # fmt: skip


def event_trace(events: Sequence[Event], span: Span) -> Figure:
    """Draw events as marks above the plot, named where there is room, told in full on hovering."""
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
            "color": [_event_color(event) for event in events],
        },
        "cliponaxis": False,
        "showlegend": False,
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def event_line(event: Event) -> Figure:
    """Draw an event through the plot."""
    return {
        "type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1,
        "x0": event.time_ns // NS_PER_MS, "x1": event.time_ns // NS_PER_MS,
        "line": {"color": _event_color(event), "width": 1, "dash": "dot"},
    }  # fmt: skip


def level_shapes(levels: Sequence[Level], *, divisor: float, axis: Figure) -> list[Figure]:
    """Draw the levels that the axis reaches; one above it would only press the lines down."""
    low, high = axis["range"]
    return [
        _level_shape(level, level.value / divisor, high=high)
        for level in levels
        if low <= level.value / divisor <= high
    ]


def _level_shape(level: Level, height: float, *, high: float) -> Figure:
    """Draw a level, a warning's name on the left and a critical one's on the right."""
    color = _BAD_COLOR if level.is_bad else _WARN_COLOR
    return {
        "type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": height, "y1": height,
        "line": {"color": color, "width": 1, "dash": "dash"},
        "label": {"text": f"{_GAP}{level.label}{_GAP}",
                  "textposition": "end" if level.is_bad else "start",
                  "yanchor": "top" if height > _TOP_SHARE * high else "bottom",
                  "font": {"size": 10}},
    }  # fmt: skip


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


def _event_color(event: Event) -> str:
    return _BAD_COLOR if event.is_bad else _WARN_COLOR
