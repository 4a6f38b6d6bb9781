"""What there is to query: series, labels and their values, metrics with their types.

Series are those with a value in a span, also where samples have expired; labels without a selector
are those of any time.
"""

from collections.abc import Iterator, Sequence

from core.quantities import unit_of
from timeseries.metric_catalog import COUNTERS, descriptions
from timeseries.prometheus_names import label_name, metric_name
from timeseries.promql.selection import Matchers, Source, matching_rows
from timeseries.promql.syntax import EvaluationError
from timeseries.promql.values import NAME_LABEL, Labels, key_of
from timeseries.store import APPLIANCE_TAG, Aggregate, RangeQuery

MAX_SERIES = 50_000
Selectors = Sequence[Matchers]


def series(source: Source, selectors: Selectors, *, start_ms: int, end_ms: int) -> list[Labels]:
    """Return the labels of the series that match any selector and have values in a span.

    Raises:
        EvaluationError: there are too many.
    """
    unique: dict[object, Labels] = {}
    for matchers in selectors:
        for labels in _series(source, matchers, start_ms=start_ms, end_ms=end_ms):
            unique.setdefault(key_of(labels), labels)
            if len(unique) > MAX_SERIES:
                raise EvaluationError(
                    f"More than {MAX_SERIES:,} series match. Use more matchers, or a shorter range."
                )
    return sorted(unique.values(), key=lambda labels: sorted(labels.items()))


def label_names(source: Source) -> list[str]:
    """Return the names of all labels."""
    names = {NAME_LABEL}
    for measurement in source.measurements:
        source.check()
        names |= {label_name(tag) for tag in source.tags_of(measurement)}
    return sorted(names)


def label_values(source: Source, label: str) -> list[str]:
    """Return the values of a label."""
    if label == NAME_LABEL:
        return sorted({name for name, _, _ in metrics(source)})
    values = set[str]()
    for measurement in source.measurements:
        source.check()
        for tag in source.tags_of(measurement):
            if label_name(tag) == label:
                texts = source.store.tag_values(measurement, tag, tenants=source.tenants)
                names = source.names if tag == APPLIANCE_TAG else {}
                values |= {names.get(text, text) for text in texts}
    return sorted(values)


def metrics(source: Source) -> Iterator[tuple[str, str, str]]:
    """Yield the names of all metrics, each with its measurement and field."""
    for measurement, fields in source.metrics(()).items():
        for field in fields:
            yield metric_name(measurement, field), measurement, field


def metadata(source: Source) -> dict[str, dict[str, str]]:
    """Return the type, the unit and the description of each metric."""
    return {
        name: {
            "type": metric_type(measurement, field),
            "help": descriptions().get(measurement, {}).get(field, ""),
            "unit": unit_of(field).symbol,
        }
        for name, measurement, field in metrics(source)
    }


def metric_type(measurement: str, field: str) -> str:
    """Return the type of a metric as far as it is known."""
    if f"{measurement}.{field}" in COUNTERS:
        return "counter"
    return "gauge" if field in descriptions().get(measurement, {}) else "unknown"


def _series(source: Source, matchers: Matchers, *, start_ms: int, end_ms: int) -> Iterator[Labels]:
    for measurement, fields in source.metrics(matchers).items():
        source.check()
        conditions = source.tag_matchers(measurement, matchers)
        if conditions is None:
            continue
        query = RangeQuery(
            measurement=measurement,
            fields=fields,
            start_ns=start_ms * 1_000_000,
            end_ns=(end_ms + 1) * 1_000_000,
            aggregate=Aggregate.COUNT,
            tenants=source.tenants,
            matchers=conditions,
            group_by=tuple(source.tags_of(measurement)),
        )
        labels = [
            source.labels(
                metric_name(measurement, row.field),
                {tag: text for tag, text in row.tags.items() if text},
            )
            for row in source.store.query_range(query)
        ]
        yield from (labels[row] for row in matching_rows(labels, matchers))
