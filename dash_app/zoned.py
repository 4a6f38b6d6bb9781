"""Figures in a time zone.

Plotly knows no time zones, and draws numbers in that of the browser. It therefore gets date strings
without a zone: the instant, moved by the offset that the zone has at the right end of the axis. So
a minute is equally wide everywhere, and every place on the axis is one instant. Where the clock
changes within the axis, the strings before the change differ from the clock's time by the change:
labels and hover texts are then written here instead of by Plotly.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import Any

from core.zones import abbreviation, round_times
from dash_app.axes import EVENT_AXIS, Figure

CLOCK_TRACE = "clock"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WALL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a time on the wall
_MAX_TICKS = 6
_MILLISECOND = timedelta(milliseconds=1)
_DAY = timedelta(days=1)
_TICK_STEPS = tuple(
    timedelta(minutes=minutes)
    for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, *(d * 1440 for d in (1, 2, 7, 14)))
)


class WallClock:
    """The clock on the wall in a zone, for the times of one axis in milliseconds since 1970."""

    def __init__(self, zone: tzinfo, start_ms: int, end_ms: int) -> None:
        self._zone = zone
        self.start_ms, self.end_ms = start_ms, end_ms
        end = self.at(end_ms)
        self.offset_ms = _offset_ms(end)
        self.name = abbreviation(end)
        self.text = cache(self._text)
        self.changes = any(_offset_ms(at) != self.offset_ms for at in self._samples())

    def at(self, time_ms: float) -> datetime:
        """Return the local time of an instant."""
        return (_EPOCH + timedelta(milliseconds=time_ms)).astimezone(self._zone)

    @property
    def names(self) -> str:
        """The name of the zone, or both where it changes."""
        ends = (abbreviation(self.at(time_ms)) for time_ms in (self.start_ms, self.end_ms))
        return " and ".join(dict.fromkeys(ends))

    def spoken(self, time_ms: float) -> str:
        """Return the local time as hover texts have it."""
        local = self.at(time_ms)
        return f"{local:%b %d %H:%M:%S} {abbreviation(local)}"

    def ticks(self) -> dict[int, str]:
        """Return the times of labels and the labels, which name the zone where it changes."""
        width = timedelta(milliseconds=self.end_ms - self.start_ms)
        fitting = (step for step in _TICK_STEPS if width / step <= _MAX_TICKS)
        step = next(fitting, width / _MAX_TICKS)
        step = step if step < _DAY else timedelta(days=max(1, step // _DAY))
        form = "%H:%M" if step < _DAY / 2 else "%b %d"
        labels, last_name = {}, ""
        for local in round_times(self.at(self.start_ms), self.at(self.end_ms), step, self._zone):
            name = abbreviation(local)
            time_ms = (local - _EPOCH) // _MILLISECOND
            labels[time_ms] = f"{local:{form}}" + (f"<br>{name}" if name != last_name else "")
            last_name = name
        return labels

    def _text(self, time_ms: float) -> str:
        """Return what Plotly gets for an instant."""
        return (_WALL_EPOCH + timedelta(milliseconds=time_ms + self.offset_ms)).isoformat(" ")

    def _samples(self) -> Iterator[datetime]:
        """Yield local times of which two differ in their offset, if any within the axis do."""
        step_ms = max(1, (self.end_ms - self.start_ms) // 128)
        return map(self.at, range(self.start_ms, self.end_ms, step_ms))


def in_zone(figure: Figure, zone: tzinfo) -> Figure:
    """Return a figure whose times, milliseconds since 1970, are texts in a zone."""
    layout = figure["layout"]
    axis = layout.get("xaxis", {})
    if axis.get("type") != "date":
        return figure
    meta = layout.get("meta", {})
    clock = WallClock(UTC if meta.get("is_utc") else zone, *axis["range"])
    traces = [_zoned(trace, clock) for trace in figure["data"]]
    layout = layout | {
        "xaxis": _zoned_axis(axis, clock),
        "meta": meta | {"offset_ms": clock.offset_ms, "zone": clock.names},
        "shapes": [_zoned_shape(shape, clock) for shape in layout.get("shapes", [])],
    }
    if clock.changes and layout["hovermode"] == "x unified":
        layout["xaxis"]["unifiedhovertitle"] = {"text": "Time"}
        layout["yaxis2"] = EVENT_AXIS
        traces.insert(0, _clock_trace(figure["data"], clock))
    return {"data": traces, "layout": layout}


def _zoned_axis(axis: Figure, clock: WallClock) -> Figure:
    zoned = axis | {
        "range": [clock.text(time_ms) for time_ms in axis["range"]],
        "hoverformat": axis.get("hoverformat", "").replace("UTC", clock.name),
    }
    if clock.changes:
        ticks = clock.ticks()
        zoned |= {"tickvals": [clock.text(at) for at in ticks], "ticktext": list(ticks.values())}
    return zoned


def _zoned(trace: Figure, clock: WallClock) -> Figure:
    times = "base" if trace.get("orientation") == "h" else "x"
    template = trace.get("hovertemplate", "").replace("UTC", clock.name)
    moved = trace | {times: [clock.text(at) for at in trace[times]], "hovertemplate": template}
    if clock.changes and trace["type"] == "heatmap":
        moved["text"] = [[clock.spoken(at) for at in trace["x"]]] * len(trace["y"])
        moved["hovertemplate"] = template.replace(f"%{{x|%b %d %H:%M}} {clock.name}", "%{text}")
    return moved


def _zoned_shape(shape: Figure, clock: WallClock) -> Figure:
    if shape["xref"] != "x":
        return shape
    return shape | {"x0": clock.text(shape["x0"]), "x1": clock.text(shape["x1"])}


def _clock_trace(traces: Sequence[Figure], clock: WallClock) -> dict[str, Any]:
    """Return an invisible line whose hover text is the time."""
    times = sorted({at for trace in traces if trace.get("name") != "events" for at in trace["x"]})
    return {
        "type": "scatter",
        "mode": "markers",
        "name": CLOCK_TRACE,
        "yaxis": "y2",
        "x": [clock.text(at) for at in times],
        "y": [1] * len(times),
        "text": [clock.spoken(at) for at in times],
        "marker": {"opacity": 0},
        "showlegend": False,
        "hovertemplate": "%{text}<extra></extra>",
    }


def _offset_ms(local: datetime) -> int:
    return (local.utcoffset() or timedelta(0)) // _MILLISECOND
