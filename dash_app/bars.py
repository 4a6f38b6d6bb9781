"""Horizontal bars: one value for each group, greatest on top."""

from collections.abc import Sequence
from dataclasses import dataclass

from core.quantities import format_value
from dash_app.axes import (
    Figure,
    axis_scale,
    limited_axis,
    threshold_keys,
    threshold_shapes,
    turned,
    value_axis,
)
from dash_app.charts import Chart
from dash_app.figures import (
    HEIGHT_OF_AXIS,
    HEIGHT_OF_ROW,
    NO_SAMPLES,
    PALETTE,
    message_figure,
)


@dataclass(frozen=True, slots=True)
class RankedBar:
    """A bar, and the address that it leads to; empty for none."""

    label: str
    value: float
    color: int = 0
    href: str = ""


def bar_figure(bars: Sequence[RankedBar], chart: Chart, *, revision: str) -> Figure:
    """Return bars in the order given, with the unit, thresholds and limits of a chart."""
    if not bars:
        return message_figure(NO_SAMPLES)
    field = chart.field
    peak = max([chart.least_peak, *(abs(bar.value) for bar in bars)])
    divisor, label = axis_scale(field, peak)
    # Room for the values beside the bars.
    end = peak / divisor * 1.15 or 1.0
    low = -end if min(bar.value for bar in bars) < 0 else 0.0
    axis = value_axis(field, label, peak=peak / divisor) | {"range": [low, end]}
    axis = limited_axis(axis, chart.limits, divisor=divisor)
    shapes = [
        turned(shape) for shape in threshold_shapes(chart.thresholds, divisor=divisor, axis=axis)
    ]
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": label,
                "y": [bar.label for bar in bars],
                "x": [bar.value / divisor for bar in bars],
                "text": [format_value(field, bar.value) for bar in bars],
                "textposition": "outside",
                "cliponaxis": False,
                "customdata": [bar.href for bar in bars],
                "marker": {"color": [PALETTE[bar.color % len(PALETTE)] for bar in bars]},
                "hovertemplate": "%{y}: <b>%{text}</b><extra></extra>",
            }
        ],
        "layout": {
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
            "font": {"family": "inherit", "size": 11},
            "uirevision": revision,
            "hovermode": "closest",
            "bargap": 0.3,
            "showlegend": False,
            "xaxis": axis | {"ticklabelstandoff": 2},
            "yaxis": {
                "autorange": "reversed",
                "automargin": True,
                "fixedrange": True,
                "showgrid": False,
                "ticklabelstandoff": 4,
                "tickfont": {"size": 10},
            },
            "shapes": shapes,
            "meta": {
                "unit": label,
                "thresholds": threshold_keys(shapes),
                "min_height": HEIGHT_OF_AXIS + HEIGHT_OF_ROW * len(bars),
            },
        },
    }
