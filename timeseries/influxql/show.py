"""SHOW: what there is to select."""

from collections.abc import Callable, Mapping, Sequence

from timeseries.influxql.conditions import search
from timeseries.influxql.reading import Measurement
from timeseries.influxql.results import ResultSeries
from timeseries.influxql.syntax import Show

DATABASE = "vedette"
_POLICY = ("autogen", "0s", "168h0m0s", 1, True)
_POLICY_COLUMNS = ("name", "duration", "shardGroupDuration", "replicaN", "default")


def show(statement: Show, measurements: Sequence[Measurement]) -> list[ResultSeries]:
    """Return the lists of a SHOW over some measurements."""
    return _LISTS[statement.kind](statement, measurements)


def _measurements(statement: Show, measurements: Sequence[Measurement]) -> list[ResultSeries]:
    names = [
        measurement.name
        for measurement in measurements
        if statement.condition is None or measurement.groups()
    ]
    rows = [[name] for name in names[statement.page.slice()]]
    return [ResultSeries("measurements", ["name"], rows)] if rows else []


def _field_keys(statement: Show, measurements: Sequence[Measurement]) -> list[ResultSeries]:
    listed = []
    for measurement in measurements:
        kinds = measurement.source.numbers_of(measurement.name)
        rows = [[name, kinds[name]] for name in sorted(kinds)][statement.page.slice()]
        if rows:
            listed.append(ResultSeries(measurement.name, ["fieldKey", "fieldType"], rows))
    return listed


def _tag_keys(statement: Show, measurements: Sequence[Measurement]) -> list[ResultSeries]:
    listed = []
    for measurement in measurements:
        tags = measurement.tags
        if statement.condition is not None:
            tags = sorted({tag for own in measurement.groups() for tag in own})
        rows = [[tag] for tag in tags[statement.page.slice()]]
        if rows:
            listed.append(ResultSeries(measurement.name, ["tagKey"], rows))
    return listed


def _tag_values(statement: Show, measurements: Sequence[Measurement]) -> list[ResultSeries]:
    listed = []
    for measurement in measurements:
        tags = _wanted_tags(statement, measurement.tags)
        values = _values_by_tag(statement, measurement, tags)
        rows = [(tag, text) for tag in tags for text in sorted(values[tag])]
        if rows:
            page = rows[statement.page.slice()]
            listed.append(ResultSeries(measurement.name, ["key", "value"], page))
    return listed


def _values_by_tag(
    statement: Show, measurement: Measurement, tags: Sequence[str]
) -> Mapping[str, set[str]]:
    if statement.condition is None:
        return {tag: measurement.tag_values(tag) for tag in tags}
    groups = measurement.groups() if tags else []
    return {tag: {own[tag] for own in groups if tag in own} for tag in tags}


def _wanted_tags(statement: Show, tags: Sequence[str]) -> list[str]:
    operator, keys = statement.keys
    wanted = {tag for key in keys for tag in search(tags, key)}
    return sorted(set(tags) - wanted if operator.startswith("!") else wanted)


_LISTS: Mapping[str, Callable[[Show, Sequence[Measurement]], list[ResultSeries]]] = {
    "databases": lambda _, __: [ResultSeries("databases", ["name"], [[DATABASE]])],
    "retention policies": lambda _, __: [ResultSeries("", _POLICY_COLUMNS, [_POLICY])],
    "measurements": _measurements,
    "field keys": _field_keys,
    "tag keys": _tag_keys,
    "tag values": _tag_values,
}
