"""Times of figures: texts without a zone that show the clock of the user's zone."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from core.clock import to_ns
from dash_app.axes import Figure
from dash_app.charts import Band, Bar, Chart, Event, Line
from dash_app.figures import heat_figure, time_figure, timeline_figure
from dash_app.queries.fleet_charts import METRICS, Heat
from dash_app.timerange import Span
from dash_app.zoned import CLOCK_TRACE, in_zone

HOUR = timedelta(hours=1)
KOLKATA, NEW_YORK = ZoneInfo("Asia/Kolkata"), ZoneInfo("America/New_York")
# New York's clocks go from 02:00 EST to 03:00 EDT, and from 02:00 EDT to 01:00 EST.
SPRING = datetime(2026, 3, 8, 7, tzinfo=UTC)
AUTUMN = datetime(2026, 11, 1, 6, tzinfo=UTC)
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def span_around(at: datetime, hours: int = 4) -> Span:
    return Span(to_ns(at - hours * HOUR), to_ns(at + hours * HOUR), to_ns(at) - to_ns(at - HOUR))


def hourly(at: datetime, hours: int = 4) -> Line:
    times_ns = [to_ns(at + number * HOUR) for number in range(-hours, hours + 1)]
    return Line(name="a", times_ns=times_ns, values=[1.0] * len(times_ns), color=0)


def drawn(at: datetime, zone: ZoneInfo) -> Figure:
    chart = Chart(
        field="power_watts",
        # A second line, so that each is one trace.
        lines=(hourly(at), hourly(at)),
        bands=(Band(to_ns(at), to_ns(at + HOUR), "job"),),
        events=(Event(to_ns(at), "e", "event"),),
    )
    return in_zone(time_figure(chart, span_around(at), revision="r"), zone)


def trace(figure: Figure, name: str) -> Figure:
    return next(drawn_trace for drawn_trace in figure["data"] if drawn_trace["name"] == name)


def test_lines_axis_bands_and_events_are_in_the_zone_and_hover_names_it() -> None:
    figure = drawn(NOON, KOLKATA)
    axis = figure["layout"]["xaxis"]
    assert trace(figure, "a")["x"][4] == "2026-06-01 17:30:00"
    assert trace(figure, "events")["x"] == ["2026-06-01 17:30:00"]
    assert axis["range"] == ["2026-06-01 13:30:00", "2026-06-01 21:30:00"]
    assert axis["hoverformat"] == "%b %d %H:%M:%S IST"
    shapes = [(shape["x0"], shape["x1"]) for shape in figure["layout"]["shapes"]]
    assert shapes == [
        ("2026-06-01 17:30:00", "2026-06-01 18:30:00"),
        ("2026-06-01 17:30:00", "2026-06-01 17:30:00"),
    ]


def test_bars_of_a_timeline_begin_in_the_zone_and_last_as_long_as_before() -> None:
    bar = Bar(
        row="GPU 0",
        start_ns=to_ns(NOON),
        end_ns=to_ns(NOON + HOUR),
        label="train",
        text="train",
        href="/jobs/1",
    )
    (bars,) = in_zone(timeline_figure([bar], span_around(NOON), revision="r"), KOLKATA)["data"]
    assert (bars["base"], bars["x"]) == (["2026-06-01 17:30:00"], [3_600_000])


@pytest.mark.parametrize(
    ("change", "labels", "hovers"),
    [
        (
            SPRING,
            ["22:00<br>EST", "00:00", "04:00<br>EDT", "06:00"],
            ["Mar 08 01:00:00 EST", "Mar 08 03:00:00 EDT", "Mar 08 04:00:00 EDT"],
        ),
        (
            AUTUMN,
            ["22:00<br>EDT", "00:00", "02:00<br>EST", "04:00"],
            ["Nov 01 01:00:00 EDT", "Nov 01 01:00:00 EST", "Nov 01 02:00:00 EST"],
        ),
    ],
)
def test_labels_and_hover_texts_follow_a_change_of_the_clock(
    change: datetime, labels: list[str], hovers: list[str]
) -> None:
    figure = drawn(change, NEW_YORK)
    assert figure["layout"]["xaxis"]["ticktext"] == labels
    assert trace(figure, CLOCK_TRACE)["text"][3:6] == hovers
    assert trace(figure, CLOCK_TRACE)["x"] == trace(figure, "a")["x"]


@pytest.mark.parametrize("change", [SPRING, AUTUMN])
def test_an_hour_is_as_wide_before_a_change_of_the_clock_as_after_it(change: datetime) -> None:
    figure = drawn(change, NEW_YORK)
    times = [datetime.fromisoformat(text) for text in trace(figure, "a")["x"]]
    offset = timedelta(milliseconds=figure["layout"]["meta"]["offset_ms"])
    instants = [time.replace(tzinfo=UTC) - offset for time in times]
    assert instants == [change + number * HOUR for number in range(-4, 5)]


def test_a_heat_map_over_a_change_of_the_clock_has_the_time_of_each_column() -> None:
    chart = Chart(field="utilization_percent", lines=(hourly(AUTUMN),))
    heat = heat_figure(
        Heat(chart, {}),
        span_around(AUTUMN),
        metric=METRICS["utilization"],
        search="",
        revision="r",
    )
    (cells,) = in_zone(heat, NEW_YORK)["data"]
    assert cells["text"][0][3:5] == ["Nov 01 01:00:00 EDT", "Nov 01 01:00:00 EST"]
    assert "%{text}" in cells["hovertemplate"]
    (plain,) = in_zone(heat, KOLKATA)["data"]
    assert plain["hovertemplate"].startswith("%{y}<br>%{x|%b %d %H:%M} IST<br>")


def test_bars_of_whole_days_in_utc_stay_in_utc() -> None:
    day_ns = to_ns(NOON + 24 * HOUR) - to_ns(NOON)
    chart = Chart(field="gpu_hours", lines=(hourly(NOON),), bar_ns=day_ns)
    figure = in_zone(time_figure(chart, span_around(NOON), revision="r"), KOLKATA)
    assert figure["data"][0]["x"][4] == "2026-06-01 12:00:00"
    assert figure["layout"]["xaxis"]["hoverformat"] == "%b %d UTC"
