"""The data of a panel: lines, annotations, and gaps. Queries make charts; `figures` draws them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from timeseries.store import Aggregate, Series

# Two and a half steps without a value are a gap, not a slow line.
GAP_STEPS = 2.5
LIMIT_FIELDS = frozenset({"total_bytes", "memory_total_bytes", "power_limit_watts"})
_INTERVAL_NEIGHBORS = 5


Limits = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a line over its whole range.

    Attributes:
        least: the least sample; of other aggregates than a mean, the least value of a step.
        whole: the line's aggregate of all samples, which is what a bar of the range shows. It is no
            mean of the steps: these may have different numbers of samples.
        greatest: as `least`.
    """

    least: float
    whole: float
    greatest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Values over time.

    Attributes:
        color: an index of the palette, so that a GPU has one color.
        extremes: the least and the greatest sample behind each value, which is their mean.
        notes: a short text for each value, shown with it.
        summary: its figures; None for a total of several series, which has no samples.
    """

    name: str
    times_ns: Sequence[int]
    values: Sequence[float]
    color: int
    extremes: Sequence[tuple[float, float]] = ()
    notes: Sequence[str] = ()
    summary: Summary | None = None
    is_dotted: bool = False
    is_filled: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A labeled stretch of time, such as the run of a job on a GPU; `color` is a CSS color."""

    start_ns: int
    end_ns: int
    label: str
    color: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A stretch of time in a row of a timeline; `tone` is empty, `warning` or `critical`."""

    row: str
    start_ns: int
    end_ns: int
    label: str
    text: str
    href: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at an instant, with a short `label` and a full `text`."""

    time_ns: int
    label: str
    text: str
    is_critical: bool = False


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold of an alert rule, in the field's own unit."""

    value: float
    label: str
    severity: str = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines that share axes.

    Attributes:
        field: its suffix gives the unit of the vertical axis (see `core.quantities`).
        aggregate: reduces the samples of each step, and in the legend those of the range.
        bar_ns: how long each value stands for, which makes it a bar; 0 for lines.
        limits: where the vertical axis begins and ends, in the field's own unit; None where the
            values decide.
        least_peak: a value that the axis reaches in any case.
        problem: why there is no data, as a message to the user; empty otherwise.
    """

    field: str
    lines: tuple[Line, ...] = ()
    aggregate: Aggregate = Aggregate.AVG
    is_stacked: bool = False
    bar_ns: int = 0
    bands: tuple[Band, ...] = ()
    events: tuple[Event, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    limits: Limits = (None, None)
    least_peak: float = 0.0
    problem: str = ""


def with_earlier(chart: Chart, earlier: Chart, *, shift_ns: int, label: str) -> Chart:
    """Return a chart with the lines of another one: an earlier period, or another GPU.

    Args:
        chart: the chart; a stacked one can't be compared.
        earlier: the other.
        shift_ns: moves the other's lines to the right.
        label: what the other is.
    """
    if chart.is_stacked or chart.bar_ns:
        return chart
    others = tuple(
        replace(
            line,
            name=f"{line.name}, {label}" if line.name else label,
            times_ns=[time_ns + shift_ns for time_ns in line.times_ns],
            extremes=(),
            is_dotted=True,
            is_filled=False,
        )
        for line in earlier.lines
        if not line.is_dotted
    )
    return replace(chart, lines=(*chart.lines, *others))


def line_of(series: Series, *, name: str, color: int) -> Line:
    """Return a series as a line: limits are dotted, and the used memory of a host is filled."""
    return Line(
        name=name,
        times_ns=series.times_ns,
        values=series.values,
        color=color,
        is_dotted=series.field in LIMIT_FIELDS,
        is_filled=series.field == "used_bytes",
    )


def split_at_gaps(times_ns: Sequence[int], *, step_ns: int) -> list[slice]:
    """Return the parts of a series between its gaps.

    A gap is wider than 2.5 steps and than 2.5 times the interval of the points before and after it,
    so that a series with a longer sample interval than the step is one part.
    """
    cuts = [index for index in range(1, len(times_ns)) if _is_gap(times_ns, index, step_ns)]
    return [slice(*ends) for ends in pairwise([0, *cuts, len(times_ns)])]


def with_gaps(
    times_ns: Sequence[int], values: Sequence[float], *, step_ns: int
) -> tuple[list[int], list[float | None]]:
    """Return the points with a None in the middle of every gap, where the line breaks."""
    out_times: list[int] = []
    out_values: list[float | None] = []
    for part in split_at_gaps(times_ns, step_ns=step_ns):
        if part.start:
            out_times.append((times_ns[part.start - 1] + times_ns[part.start]) // 2)
            out_values.append(None)
        out_times.extend(times_ns[part])
        out_values.extend(values[part])
    return out_times, out_values


def _is_gap(times_ns: Sequence[int], index: int, step_ns: int) -> bool:
    width = times_ns[index] - times_ns[index - 1]
    if width <= GAP_STEPS * step_ns:
        return False
    before = _interval(times_ns[max(0, index - 1 - _INTERVAL_NEIGHBORS) : index])
    after = _interval(times_ns[index : index + 1 + _INTERVAL_NEIGHBORS])
    return width > GAP_STEPS * max(before, after, step_ns)


def _interval(times_ns: Sequence[int]) -> float:
    widths = [later - earlier for earlier, later in pairwise(times_ns)]
    return median(widths) if widths else 0.0
