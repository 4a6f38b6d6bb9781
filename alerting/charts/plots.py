"""The geometry of a picture of series: pages draw it as SVG, emails as PNG.

Positions are pixels from the top left.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta, tzinfo

from alerting.evaluation.rule_series import GroupSeries, RuleSeries
from alerting.states import Severity
from core.clock import NS_PER_SECOND, from_ns, to_ns
from core.quantities import format_value, unit_of
from core.zones import abbreviation, round_times

_PIXELS_PER_TIME, _PIXELS_PER_VALUE = 110, 32
_GAP_STEPS = 2.5
_TIME_STEPS = tuple(
    count * unit
    for unit, counts in ((60, (1, 2, 5, 10, 15, 30)), (3600, (1, 2, 3, 6, 12)), (86400, (1, 2, 7)))
    for count in counts
)
_DAY = 86400
_MARGIN_SHARE = 0.06

Position = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A line; it breaks where values are missing."""

    name: str
    parts: Sequence[Sequence[Position]]
    trend: Sequence[Position]
    last: str


@dataclass(frozen=True, slots=True)
class Level:
    """A threshold."""

    y: float
    label: str
    severity: Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A picture: lines, thresholds, stretches of time, and the labels of the axes.

    The axes are inside the frame from `left` to `right` and `top` to `bottom`.
    """

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    lines: Sequence[PlotLine]
    levels: Sequence[Level]
    bands: Sequence[tuple[float, float]]
    times: Sequence[tuple[float, str]]
    values: Sequence[tuple[float, str]]


def plot_series(
    series: RuleSeries,
    *,
    size: tuple[int, int],
    names: Mapping[str, str],
    zone: tzinfo,
    bands: Sequence[tuple[int, int]] = (),
) -> Plot:
    """Return the picture of series.

    Args:
        series: the series; at least one has values.
        size: width and height of the picture.
        names: those of appliances by ID.
        zone: the time zone of the times below.
        bands: stretches of time to mark, from start to end.
    """
    width, height = size
    numbers = [value for line in series.lines for value in (*line.values, *_trended(line))]
    numbers += [value for value, _ in series.thresholds]
    low, high = _range(min(numbers), max(numbers))
    left, right, top, bottom = 64, width - 12, 12, height - 24
    x_scale = (right - left) / max(1, series.end_ns - series.start_ns)
    y_scale = (bottom - top) / (high - low)

    def x(time_ns: int) -> float:
        inside = min(max(time_ns, series.start_ns), series.end_ns)
        return round(left + (inside - series.start_ns) * x_scale, 1)

    def y(value: float) -> float:
        return round(bottom - (value - low) * y_scale, 1)

    def line_of(line: GroupSeries) -> PlotLine:
        parts = [[(x(at), y(value)) for at, value in part] for part in _parts(line, series.step_ns)]
        trend = [(x(at), y(value)) for at, value in line.trend]
        return PlotLine(
            _name(line.tags, names), parts, trend, format_value(series.field, line.values[-1])
        )

    ticks = _value_ticks(series.field, low, high, max_ticks=max(2, height // _PIXELS_PER_VALUE))
    return Plot(
        width=width,
        height=height,
        left=left,
        right=right,
        top=top,
        bottom=bottom,
        lines=[line_of(line) for line in series.lines],
        levels=[
            Level(y(value), format_value(series.field, value), severity)
            for value, severity in series.thresholds
        ],
        bands=[(x(start), x(end)) for start, end in bands],
        times=[
            (x(at), text)
            for at, text in _time_ticks(series, max_ticks=width // _PIXELS_PER_TIME, zone=zone)
        ],
        values=[(y(value), format_value(series.field, value)) for value in ticks],
    )


def _name(tags: Mapping[str, str], names: Mapping[str, str]) -> str:
    parts = [
        names.get(text, text) if tag == "appliance" else f"{tag} {text}"
        for tag, text in tags.items()
    ]
    return " · ".join(parts) or "all series"


def _trended(line: GroupSeries) -> Iterator[float]:
    return (value for _, value in line.trend)


def _range(low: float, high: float) -> tuple[float, float]:
    margin = (high - low) * _MARGIN_SHARE or abs(high) * _MARGIN_SHARE or 1.0
    # An axis of values that can't be negative doesn't begin below 0.
    return (max(0.0, low - margin) if low >= 0 else low - margin), high + margin


def _parts(series: GroupSeries, step_ns: int) -> Iterator[list[tuple[int, float]]]:
    part: list[tuple[int, float]] = []
    for at, value in zip(series.times_ns, series.values, strict=True):
        if part and at - part[-1][0] > _GAP_STEPS * step_ns:
            yield part
            part = []
        part.append((at, value))
    yield part


def _value_ticks(field: str, low: float, high: float, *, max_ticks: int) -> list[float]:
    base = 1024.0 if unit_of(field).is_binary else 10.0
    wanted = (high - low) / max_ticks
    if unit_of(field).symbol == "s":
        # Round durations above a minute.
        scale = next((seconds for seconds in (_DAY, 3600, 60) if wanted >= seconds), 1)
    else:
        scale = 1
    unit = scale * base ** math.floor(math.log(wanted / scale, base))
    factors = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if base > 10 else (1, 2, 5, 10)  # noqa: PLR2004 - of the decimal system
    step = next((unit * factor for factor in factors if unit * factor >= wanted), unit * base)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step) + 1)]


def _time_ticks(series: RuleSeries, *, max_ticks: int, zone: tzinfo) -> list[tuple[int, str]]:
    """Return round times in a zone; the first label names it, as does one after a change."""
    span = (series.end_ns - series.start_ns) / NS_PER_SECOND
    wanted = span / max(1, max_ticks)
    step = next((seconds for seconds in _TIME_STEPS if seconds >= wanted), _TIME_STEPS[-1])
    form = "%b %d" if step >= _DAY else "%b %d %H:%M" if span > _DAY else "%H:%M"
    ticks, last_name = [], ""
    start_at, end_at = from_ns(series.start_ns), from_ns(series.end_ns)
    for local in round_times(start_at, end_at, timedelta(seconds=step), zone):
        name = abbreviation(local)
        ticks.append((to_ns(local), f"{local:{form}}" + (f" {name}" if name != last_name else "")))
        last_name = name
    return ticks
