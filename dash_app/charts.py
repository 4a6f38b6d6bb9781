"""What a panel shows, before any drawing: lines, marks and trouble.

Queries make charts; `figures` draws them. Keeping the two apart lets tests read the numbers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from timeseries.store import Series


class Stroke(StrEnum):
    """How a line is drawn."""

    SOLID = "solid"
    DASHED = "dash"
    DOTTED = "dot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Values of one name over time. `color` indexes the palette, so that a GPU keeps its own."""

    name: str
    times_ns: list[int]
    values: list[float]
    color: int
    stroke: Stroke = Stroke.SOLID
    is_filled: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A stretch of time with a name, such as the job that held a GPU."""

    start_ns: int
    end_ns: int
    label: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at an instant; `text` says it in full, `label` in a word or two."""

    time_ns: int
    label: str
    text: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """A value at which something is told, such as a rule's threshold, in the field's own unit."""

    value: float
    label: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines that share axes.

    Attributes:
        field: names the unit of the vertical axis by its suffix (see `core.units`).
        problem: why there is nothing to draw, for people; empty when the store answered.
    """

    field: str
    lines: tuple[Line, ...] = ()
    is_stacked: bool = False
    marks: tuple[Mark, ...] = ()
    events: tuple[Event, ...] = ()
    levels: tuple[Level, ...] = ()
    problem: str = ""

    def marked(self, marks: Iterable[Mark]) -> "Chart":
        """Return the chart with marks behind its lines."""
        return replace(self, marks=tuple(marks))

    def with_events(self, events: Iterable[Event]) -> "Chart":
        """Return the chart with events over its lines."""
        return replace(self, events=tuple(events))

    def with_levels(self, levels: Iterable[Level]) -> "Chart":
        """Return the chart with levels across its lines."""
        return replace(self, levels=tuple(levels))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatRow:
    """One row of a heat map."""

    name: str
    times_ns: list[int]
    values: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Rows of percentages over time, first row on top."""

    rows: tuple[HeatRow, ...] = ()
    problem: str = ""


def line_of(series: Series, *, name: str, color: int, stroke: Stroke = Stroke.SOLID) -> Line:
    """Return a series as a line."""
    return Line(
        name=name, times_ns=series.times_ns, values=series.values, color=color, stroke=stroke
    )
