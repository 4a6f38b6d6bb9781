import plotly.graph_objects as go
import pytest

from core.clock import NS_PER_SECOND
from dash_app.axes import Figure, axis_scale
from dash_app.charts import Band, Bar, Chart, Line, Summary, with_gaps
from dash_app.figures import (
    HEIGHT_OF_AXIS,
    NO_SAMPLES,
    heat_figure,
    message_figure,
    time_figure,
    timeline_figure,
)
from dash_app.queries.fleet_charts import METRICS, Heat, Metric
from dash_app.timerange import Span
from timeseries.store import Aggregate

STEP_NS = 10 * NS_PER_SECOND
SPAN = Span(0, 100 * STEP_NS, STEP_NS)
GIB = 1024**3


def at(*steps: float) -> list[int]:
    return [int(step * STEP_NS) for step in steps]


def line(*steps: float, value: float = 1.0, is_filled: bool = False) -> Line:
    times_ns = at(*steps)
    return Line(
        name="GPU 0",
        times_ns=times_ns,
        values=[value] * len(times_ns),
        color=0,
        is_filled=is_filled,
    )


BAR = Bar(row="GPU 0", start_ns=0, end_ns=STEP_NS, label="train", text="train", href="/jobs/1")


def heat(chart: Chart) -> Figure:
    data = Heat(chart, {row.name: f"/dashboards/{row.name}" for row in chart.lines})
    return heat_figure(data, SPAN, metric=METRICS["utilization"], search="?range=6h", revision="r")


def drawn(*lines: Line, field: str = "usage_percent", is_stacked: bool = False) -> Figure:
    chart = Chart(field=field, lines=lines, is_stacked=is_stacked)
    return time_figure(chart, SPAN, revision="r")


def test_a_hole_of_three_steps_is_a_gap() -> None:
    times_ns, values = with_gaps(at(0, 1, 4, 5), [1.0, 1.0, 1.0, 1.0], step_ns=STEP_NS)
    assert values == [1.0, 1.0, None, 1.0, 1.0]
    assert times_ns[2] == at(2.5)[0]


def test_one_missing_window_is_no_gap() -> None:
    _, values = with_gaps(at(0, 1, 3, 4), [1.0] * 4, step_ns=STEP_NS)
    assert None not in values


def test_a_series_sampled_once_a_minute_is_whole_under_a_step_of_ten_seconds() -> None:
    _, values = with_gaps(at(*range(0, 60, 6), *range(60, 80)), [1.0] * 30, step_ns=STEP_NS)
    assert None not in values


def test_a_lone_sample_in_an_outage_has_a_gap_on_both_sides() -> None:
    _, values = with_gaps(at(0, 1, 2, 30, 60, 61, 62), [1.0] * 7, step_ns=STEP_NS)
    assert values == [1.0, 1.0, 1.0, None, 1.0, None, 1.0, 1.0, 1.0]


def test_the_extremes_of_a_line_are_an_area_behind_it_and_raise_the_axis() -> None:
    pairs = [(10.0, 90.0), (20.0, 150.0), (5.0, 80.0)]
    times_ns = at(0, 1, 9)
    gpu_line = Line(name="GPU", times_ns=times_ns, values=[50.0] * 3, color=0, extremes=pairs)
    figure = drawn(gpu_line, field="power_watts")

    *areas, drawn_line = figure["data"]
    assert [area["fill"] for area in areas] == ["toself", "toself"]
    assert areas[0]["y"] == [90.0, 150.0, 20.0, 10.0]
    assert drawn_line["customdata"] == [[10.0, 90.0], [20.0, 150.0], [None, None], [5.0, 80.0]]
    assert figure["layout"]["yaxis"]["range"][1] > 150
    assert not figure["layout"]["showlegend"]


def test_a_filled_line_is_drawn_in_parts_with_one_legend_entry() -> None:
    figure = drawn(line(0, 1, 9, 10, is_filled=True), line(0, 1, 9, 10))
    filled = [trace for trace in figure["data"] if "fill" in trace]
    assert [trace["showlegend"] for trace in filled] == [True, False]
    assert all(None not in trace["y"] for trace in filled)


def test_parts_of_a_stack_do_not_stack_on_one_another() -> None:
    figure = drawn(line(0, 1, 9, 10), line(0, 1, 9, 10), is_stacked=True)
    assert [trace["stackgroup"] for trace in figure["data"]] == ["part 0", "part 1"] * 2


def test_the_axis_of_a_stack_has_room_for_the_sum() -> None:
    stack = [line(0, 1, value=3.0), line(0, 1, value=4.0)]
    figure = drawn(*stack, field="points_per_second", is_stacked=True)
    assert figure["layout"]["yaxis"]["range"] == [0, pytest.approx(7 * 1.08)]


def test_a_stack_of_shares_ends_at_100() -> None:
    figure = drawn(line(0, 1, value=60.0), line(0, 1, value=40.1), is_stacked=True)
    assert figure["layout"]["yaxis"]["range"] == [0, 100]


def test_bytes_are_scaled_to_one_binary_unit_for_the_whole_axis() -> None:
    figure = drawn(line(0, 1, value=12 * GIB), line(0, 1, value=GIB / 2), field="used_bytes")
    assert figure["layout"]["yaxis"]["ticksuffix"] == " GiB"
    assert [trace["y"][0] for trace in figure["data"]] == [12.0, 0.5]


@pytest.mark.parametrize(
    ("field", "peak", "expected"),
    [
        ("used_bytes", 700.0, (1.0, "B")),
        ("read_bytes_per_second", 3.0 * 1024**2, (1024.0**2, "MiB/s")),
        ("power_watts", 25_000.0, (1000.0, "kW")),
        ("sm_clock_hertz", 1.98e9, (1e9, "GHz")),
        ("usage_percent", 99.0, (1.0, "%")),
        ("load1", 12.0, (1.0, "")),
    ],
)
def test_an_axis_has_the_unit_of_its_field(
    field: str, peak: float, expected: tuple[float, str]
) -> None:
    assert axis_scale(field, peak) == expected


def test_a_percentage_has_an_axis_from_0_to_100() -> None:
    assert drawn(line(0, 1, value=3.0))["layout"]["yaxis"]["range"] == [0, 100]


def test_the_cores_of_a_job_may_pass_100_percent() -> None:
    assert drawn(line(0, 1, value=800.0), field="cpu_percent")["layout"]["yaxis"]["range"][1] > 800


def test_every_panel_shows_the_whole_span_even_where_samples_are_few() -> None:
    assert drawn(line(98, 99))["layout"]["xaxis"]["range"] == [0, 1_000_000]


def test_a_refresh_keeps_the_zoom() -> None:
    assert drawn(line(0, 1))["layout"]["uirevision"] == drawn(line(1, 2))["layout"]["uirevision"]


def test_a_chart_without_samples_says_so() -> None:
    assert drawn()["layout"]["annotations"][0]["text"] == NO_SAMPLES


def test_a_problem_is_shown_as_it_is() -> None:
    figure = time_figure(
        Chart(field="load1", problem="The store is unavailable."), SPAN, revision="r"
    )
    assert figure["layout"]["annotations"][0]["text"] == "The store is unavailable."
    long = message_figure("word " * 20)["layout"]["annotations"][0]["text"]
    assert max(map(len, long.split("<br>"))) < 45


def test_a_lone_sample_is_a_dot() -> None:
    assert drawn(line(5))["data"][0]["mode"] == "markers"


def test_a_narrow_band_has_no_label() -> None:
    bands = (Band(0, STEP_NS, "short"), Band(STEP_NS, 60 * STEP_NS, "long"))
    figure = time_figure(Chart(field="load1", lines=(line(0, 1),), bands=bands), SPAN, revision="r")
    assert [shape["label"]["text"] for shape in figure["layout"]["shapes"]] == ["", "long"]


def test_a_heat_map_has_a_gap_where_a_row_has_no_value() -> None:
    rows = (
        Line(name="a", times_ns=at(0, 1, 2), values=[1.0, 2.0, 3.0], color=0),
        Line(name="b", times_ns=at(0, 2), values=[4.0, 5.0], color=0),
    )
    figure = heat(Chart(field="utilization_percent", lines=rows))
    assert figure["data"][0]["z"] == [[1.0, 2.0, 3.0], [4.0, None, 5.0]]
    assert figure["layout"]["meta"]["links"]["a"] == "/dashboards/a?range=6h"


def test_a_heat_map_has_a_scale_with_units_and_room_for_the_name_of_every_row() -> None:
    rows = tuple(
        Line(name=f"dgx-01 · GPU {gpu}", times_ns=at(0, 1), values=[GIB, 3 * GIB], color=0)
        for gpu in range(64)
    )
    metric = Metric("", "used_bytes", 0.0, 4.0 * GIB)
    links = dict.fromkeys((row.name for row in rows), "/")
    data = Heat(Chart(field=metric.field, lines=rows), links)
    figure = heat_figure(data, SPAN, metric=metric, search="", revision="r")
    (trace,), layout = figure["data"], figure["layout"]
    assert layout["meta"]["scale"] == ["0 B", "4 GiB"]
    assert (trace["z"][0], trace["zmax"]) == ([1.0, 3.0], 4.0)
    assert "GiB" in trace["hovertemplate"]
    assert "ticktext" not in layout["yaxis"]
    # A name takes 1.2 times its size, and Plotly leaves names out where they have less.
    room = layout["meta"]["min_height"] - HEIGHT_OF_AXIS
    assert room / len(rows) >= 1.2 * layout["yaxis"]["tickfont"]["size"]


def test_the_legend_has_the_figures_of_the_samples_behind_a_line() -> None:
    # Nine samples of 50 W in the first step, one of 60 W in the second.
    gpu_line = Line(
        name="GPU",
        times_ns=at(0, 1),
        values=[50.0, 60.0],
        color=0,
        summary=Summary(least=10.0, whole=51.0, greatest=150.0),
    )
    meta = drawn(gpu_line, field="power_watts")["layout"]["meta"]
    assert meta["headings"] == ["of samples", "min", "mean", "max", "last step"]
    assert meta["legend"][0]["stats"] == ["10 W", "51 W", "150 W", "60 W"]


def test_the_legend_of_a_total_says_that_its_figures_are_of_steps() -> None:
    total = Line(name="GPUs", times_ns=at(0, 1), values=[500.0, 600.0], color=0)
    meta = drawn(total, field="power_watts")["layout"]["meta"]
    assert meta["headings"] == ["of steps", "min", "mean", "max", "last step"]
    assert meta["legend"][0]["stats"] == ["500 W", "550 W", "600 W", "600 W"]


def test_the_legend_of_another_aggregate_has_that_of_the_range() -> None:
    line = Line(
        name="GPU", times_ns=at(0, 1), values=[5.0, 6.0], color=0, summary=Summary(5.0, 5.5, 6.0)
    )
    chart = Chart(field="power_watts", lines=(line,), aggregate=Aggregate.P95)
    meta = time_figure(chart, SPAN, revision="")["layout"]["meta"]
    assert meta["headings"] == ["", "min step", "p95 of range", "max step", "last step"]
    assert meta["legend"][0]["stats"] == ["5 W", "5.5 W", "6 W", "6 W"]


@pytest.mark.parametrize(
    "figure",
    [
        drawn(line(0, 1, 9), field="used_bytes"),
        drawn(line(0, 1), line(0, 1), is_stacked=True),
        message_figure("nothing"),
        heat(Chart(field="usage_percent", lines=(line(0),))),
        timeline_figure([BAR], SPAN, revision="r"),
    ],
)
def test_plotly_accepts_every_figure(figure: Figure) -> None:
    assert go.Figure(figure).layout.paper_bgcolor == "rgba(0,0,0,0)"
