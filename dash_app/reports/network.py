"""Report on network speed: what interfaces received and sent."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from core.clock import from_ns
from dash_app.reports.report import Cell, Column, ReportBy, Unit
from dash_app.reports.source import DAY_SECONDS, Source, Table, largest_first, total
from timeseries.store import APPLIANCE_TAG, Aggregate

_FIELDS = ("received_bytes_per_second", "sent_bytes_per_second")


def network(source: Source) -> Table:
    """Return the mean speed of all interfaces together, and the highest sample of one."""
    is_day = source.request.by is ReportBy.DAY
    # Of a group: field and aggregate to the values of its interfaces.
    groups: dict[str, list[tuple[str, Aggregate, float]]] = defaultdict(list)
    for aggregate in (Aggregate.AVG, Aggregate.MAX):
        for series in source.series(
            "network",
            _FIELDS,
            group_by=("interface",),
            aggregate=aggregate,
            step_seconds=DAY_SECONDS if is_day else None,
        ):
            for at_ns, value in zip(series.times_ns, series.values, strict=True):
                name = (
                    f"{from_ns(at_ns):%Y-%m-%d}"
                    if is_day
                    else source.group_of(series.tags[APPLIANCE_TAG])
                )
                groups[name].append((series.field, aggregate, value))
    if is_day:
        ordered = largest_first(groups, ReportBy.DAY)
    else:
        ordered = sorted(groups.items(), key=lambda item: (-_mean(item[1], _FIELDS[0]), item[0]))
    rows = [(name, *_figures(values)) for name, values in ordered]
    count = len(rows) if is_day else 1
    everything = _figures([one for values in groups.values() for one in values])
    means = [None if one is None else float(one) / max(1, count) for one in everything[:2]]
    return Table(
        (
            Column("mean_received_bytes_per_second", "Received, mean", Unit.SPEED),
            Column("mean_sent_bytes_per_second", "Sent, mean", Unit.SPEED),
            Column("peak_received_bytes_per_second", "Received, peak", Unit.SPEED),
            Column("peak_sent_bytes_per_second", "Sent, peak", Unit.SPEED),
        ),
        rows,
        [*means, *everything[2:]],
        (
            "Means are of all interfaces together, over the time with samples.",
            "A peak is the highest sample of one interface.",
        ),
    )


def _mean(values: Iterable[tuple[str, Aggregate, float]], field: str) -> float:
    return sum(value for name, kind, value in values if (name, kind) == (field, Aggregate.AVG))


def _figures(values: Sequence[tuple[str, Aggregate, float]]) -> list[Cell]:
    def of(field: str, aggregate: Aggregate) -> list[float]:
        return [value for name, kind, value in values if (name, kind) == (field, aggregate)]

    return [
        *(total(of(field, Aggregate.AVG)) for field in _FIELDS),
        *(max(of(field, Aggregate.MAX), default=None) for field in _FIELDS),
    ]
