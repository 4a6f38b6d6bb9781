"""The fleet over time: a heat map of its GPUs, and totals of hosts, disks and networks."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dash_app.charts import Chart, Line, line_of
from dash_app.context import SharedCache
from dash_app.queries.fleet import ApplianceCard
from dash_app.queries.gpu_rows import numbers
from dash_app.queries.telemetry import Telemetry
from dash_app.routes import appliance_path, gpu_path
from dash_app.timerange import Span
from timeseries.store import APPLIANCE_TAG, Series

# More rows would not fit on a screen: the map then has one for each appliance.
MAX_GPU_ROWS = 64
# More columns than these are hardly wider than a pixel.
_HEAT_COLUMNS = 100
_IO_PANELS: Mapping[str, Mapping[str, str]] = {
    "diskio": {"read_bytes_per_second": "read", "written_bytes_per_second": "write"},
    "network": {"received_bytes_per_second": "in", "sent_bytes_per_second": "out"},
}
_IO_TAGS = {"diskio": "device", "network": "interface"}


@dataclass(frozen=True, slots=True)
class Metric:
    """The metric that colors GPU tiles and the heat map: darker from `low` to `high`."""

    label: str
    field: str
    low: float
    high: float

    def share(self, value: float) -> float:
        """Return where a value lies between the ends, from 0 to 1."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


METRICS: Mapping[str, Metric] = {
    "utilization": Metric("Utilization", "utilization_percent", 0.0, 100.0),
    "memory": Metric("Memory", "memory_used_percent", 0.0, 100.0),
    "temperature": Metric("Temperature", "temperature_celsius", 25.0, 90.0),
    "power": Metric("Power", "power_watts", 0.0, 700.0),
}


@dataclass(frozen=True, slots=True)
class Heat:
    """Rows of a heat map with the address that each leads to."""

    chart: Chart
    links: Mapping[str, str]


def metric_of(key: str, cards: Sequence[ApplianceCard]) -> Metric:
    """Return a metric; that of power ends at the highest power limit among the GPUs."""
    metric = METRICS[key]
    if key != "power":
        return metric
    high = max(
        (max(numbers(card.gpus, "power_limit_watts"), default=0.0) for card in cards), default=0.0
    )
    return replace(metric, high=high) if high else metric


def gpu_heat(
    telemetry: Telemetry,
    cards: Sequence[ApplianceCard],
    metric: Metric,
    *,
    names: Mapping[str, str],
) -> Heat:
    """Return a metric of the cards' GPUs over time, or their mean by appliance if they are many.

    Args:
        telemetry: filtered to these appliances.
        cards: in the order of the rows.
        metric: the metric.
        names: the label of each appliance, by id.
    """
    is_detailed = sum(len(card.gpus) for card in cards) <= MAX_GPU_ROWS
    tags = (APPLIANCE_TAG, "gpu") if is_detailed else (APPLIANCE_TAG,)
    coarse = replace(telemetry, span=heat_span(telemetry.span))
    result = coarse.over_time("gpu", (metric.field,), group_by=tags)
    series_by_tags = {
        tuple(series.tags.get(tag, "") for tag in tags): series for series in result.series
    }
    rows: dict[str, tuple[Series, str]] = {}
    for card in cards:
        ident = card.appliance_id
        if not is_detailed:
            _add(rows, series_by_tags.get((ident,)), names[ident], appliance_path(ident))
            continue
        for gpu in card.gpus:
            name = f"{names[ident]} · GPU {gpu.index}"
            _add(rows, series_by_tags.get((ident, gpu.index)), name, gpu_path(ident, gpu.index))
    lines = tuple(line_of(series, name=name, color=0) for name, (series, _) in rows.items())
    return Heat(
        Chart(field=metric.field, lines=lines, problem=result.problem),
        {name: path for name, (_, path) in rows.items()},
    )


def host_charts(telemetry: Telemetry, cache: SharedCache) -> dict[str, Chart]:
    """Return the mean use of GPUs and hosts, and the total rates of disks and networks.

    The numbers of devices are read once a minute.
    """
    gpus = telemetry.charted("gpu", ("utilization_percent", "memory_used_percent"))
    parts = (
        ("GPU", gpus, "utilization_percent"),
        ("GPU memory", gpus, "memory_used_percent"),
        ("CPU", telemetry.charted("cpu", ("usage_percent",)), "usage_percent"),
        ("memory", telemetry.charted("memory", ("used_percent",)), "used_percent"),
        ("disks", telemetry.charted("disk", ("used_percent",)), "used_percent"),
    )
    lines = tuple(
        result.line(series, name=name, color=color)
        for color, (name, result, field) in enumerate(parts)
        for series in result.of(field)
    )
    use = Chart(field="utilization_percent", lines=lines, problem=telemetry.problem)
    return {"use": use} | {key: _total_rate(telemetry, cache, key) for key in _IO_PANELS}


def _total_rate(telemetry: Telemetry, cache: SharedCache, measurement: str) -> Chart:
    """Return rates over all devices but the loopback.

    By name of the device, such as `eth0`, it is the mean rate times the devices that report now.
    """
    names, tag = _IO_PANELS[measurement], _IO_TAGS[measurement]
    counts = telemetry.once_a_minute(
        cache, f"devices of {measurement}", lambda: _devices(telemetry, measurement), Counter[str]()
    )
    result = telemetry.over_time(measurement, tuple(names), group_by=(tag,))
    lines = []
    for color, (name, label) in enumerate(names.items()):
        totals: dict[int, float] = defaultdict(float)
        for series in result.of(name):
            for time_ns, value in zip(series.times_ns, series.values, strict=True):
                totals[time_ns] += value * counts[series.tags.get(tag, "")]
        times_ns = sorted(totals)
        values = [totals[at_ns] for at_ns in times_ns]
        lines.append(Line(name=label, times_ns=times_ns, values=values, color=color))
    return Chart(field=next(iter(names)), lines=tuple(lines), problem=result.problem)


def _devices(telemetry: Telemetry, measurement: str) -> Counter[str]:
    """Return how many devices report now, by name, without the loopback interface."""
    tag = _IO_TAGS[measurement]
    rows = telemetry.latest(
        measurement, tuple(_IO_PANELS[measurement]), group_by=(APPLIANCE_TAG, tag)
    )
    counts = Counter(row.tags.get(tag, "") for row in rows)
    del counts["lo"]
    return counts


def _add(rows: dict[str, tuple[Series, str]], series: Series | None, name: str, path: str) -> None:
    if series is not None:
        rows[name] = series, path


def heat_span(span: Span) -> Span:
    """Return a span in steps that are columns of a heat map."""
    factor = max(1, -(-(span.end_ns - span.start_ns) // (_HEAT_COLUMNS * span.step_ns)))
    step_ns = factor * span.step_ns
    return Span(span.start_ns - span.start_ns % step_ns, span.end_ns, step_ns)
