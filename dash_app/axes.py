"""What is around the lines of a figure: margins, axes with units, legend."""

from math import ceil, log2
from typing import Any

from core.units import unit_of
from dash_app.timerange import Span

Figure = dict[str, Any]

NS_PER_MS = 1_000_000
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
_DECIMAL = ("", "k", "M", "G", "T")
# A day's name only where the ticks are days: `14:30` reads better than `14:30:00.000`.
_TICKS = [
    {"dtickrange": [None, 60_000], "value": "%H:%M:%S"},
    {"dtickrange": [60_000, 43_200_000], "value": "%H:%M"},
    {"dtickrange": [43_200_000, None], "value": "%b %d"},
]


def layout_of(span: Span, revision: str) -> Figure:
    """Return the layout that all figures share; `revision` keeps what the user did to it."""
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
            "nticks": 7,
            "automargin": True,
            "hoverformat": "%b %d %H:%M:%S UTC",
            "tickformatstops": _TICKS,
            "showspikes": False,
        },
        "legend": {
            "orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0,
            "itemwidth": 30, "traceorder": "normal",
            "bgcolor": "rgba(0,0,0,0)",
        },
    }  # fmt: skip


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


def value_axis(field: str, label: str, *, peak: float) -> Figure:
    """Return the vertical axis of values in `label`, up to the peak or to the whole."""
    axis: Figure = {
        "ticksuffix": f" {label}" if label else "",
        "automargin": True,
        "nticks": 5,
        "ticklabelstandoff": 4,
        "rangemode": "tozero",
        "zeroline": False,
        # Dragging chooses a stretch of time, whatever its height.
        "fixedrange": True,
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
