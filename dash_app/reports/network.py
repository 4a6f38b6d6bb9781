"""Report on network speed: what interfaces received and sent.

The speed of an appliance is the sum of all samples of its interfaces, divided by the number of its
samples: that of the interface with the most. So it is the mean of the samples of a single one, and
an interface that was up for half of the time counts half.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from core.clock import from_ns
from dash_app.reports.report import Cell, Column, ReportBy, Unit
from dash_app.reports.source import DAY_SECONDS, Source, Table, total
from timeseries.store import APPLIANCE_TAG, Aggregate

_FIELDS = ("received_bytes_per_second", "sent_bytes_per_second")


@dataclass(slots=True)
class _Traffic:
    """The samples of one field on the interfaces of one appliance."""

    sum: float = 0.0
    samples: float = 0.0
    peak: float = -inf

    def add(self, aggregate: Aggregate, value: float) -> None:
        """Add an aggregate of one more interface."""
        match aggregate:
            case Aggregate.SUM:
                self.sum += value
            case Aggregate.COUNT:
                self.samples = max(self.samples, value)
            case _:
                self.peak = max(self.peak, value)


@dataclass(slots=True)
class _Group:
    """The traffic of a row's appliances, by field and appliance."""

    traffic: dict[str, dict[str, _Traffic]] = field(
        default_factory=lambda: {name: defaultdict(_Traffic) for name in _FIELDS}
    )

    def figures(self) -> list[Cell]:
        """Return the mean speeds, then the peaks."""
        appliances = [
            [traffic for traffic in self.traffic[name].values() if traffic.samples]
            for name in _FIELDS
        ]
        return [
            *(
                total(traffic.sum / traffic.samples for traffic in per_field)
                for per_field in appliances
            ),
            *(
                max((traffic.peak for traffic in per_field), default=None)
                for per_field in appliances
            ),
        ]


def network(source: Source) -> Table:
    """Return the mean speed of all interfaces together, and the highest sample of one."""
    # The totals cover the whole period, so that they are the same for each grouping.
    groups = _groups(source, is_day=False)
    everything = _Group()
    for group in groups.values():
        for name in _FIELDS:
            everything.traffic[name].update(group.traffic[name])
    if source.request.by is ReportBy.DAY:
        groups = _groups(source, is_day=True)
    rows = [(name, *group.figures()) for name, group in sorted(groups.items())]
    if source.request.by is not ReportBy.DAY:
        rows.sort(key=lambda row: -float(row[1] or 0))
    return Table(
        (
            Column("mean_received_bytes_per_second", "Received, mean", Unit.SPEED),
            Column("mean_sent_bytes_per_second", "Sent, mean", Unit.SPEED),
            Column("peak_received_bytes_per_second", "Received, peak", Unit.SPEED),
            Column("peak_sent_bytes_per_second", "Sent, peak", Unit.SPEED),
        ),
        rows,
        everything.figures(),
        (
            "A mean is that of the samples of an appliance, with its interfaces added up.",
            "A peak is the highest sample of one interface.",
        ),
    )


def _groups(source: Source, *, is_day: bool) -> Mapping[str, _Group]:
    groups: dict[str, _Group] = defaultdict(_Group)
    for aggregate in (Aggregate.SUM, Aggregate.COUNT, Aggregate.MAX):
        for series in source.series(
            "network",
            _FIELDS,
            group_by=("interface",),
            aggregate=aggregate,
            step_seconds=DAY_SECONDS if is_day else None,
        ):
            ident = series.tags[APPLIANCE_TAG]
            for at_ns, value in zip(series.times_ns, series.values, strict=True):
                name = f"{from_ns(at_ns):%Y-%m-%d}" if is_day else source.group_of(ident)
                groups[name].traffic[series.field][ident].add(aggregate, value)
    return groups
