"""A report: what it is about, its columns, and its rows. `builders` make them, `files` write them.

*Hours* are GPU-hours: two GPUs for an hour are two. *Shares* are percentages of 0 to 100.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from enum import StrEnum
from functools import partial

from core.quantities import format_duration, format_size, format_value
from core.zones import instant_text, zone_of
from jobqueue.usage.measuring import Period

Cell = str | int | float | None
# This part of a GPU-hour is a tenth of the ledger's milliseconds.
_DECIMALS = 8
ABSENT = "-"


class FileFormat(StrEnum):
    """A file format of reports."""

    CSV = "csv"
    XLSX = "xlsx"
    PDF = "pdf"


class ReportKind(StrEnum):
    """The subject of a report."""

    GPU_TIME = "gpu-time"
    JOBS = "jobs"
    AVAILABILITY = "availability"
    ALERTS = "alerts"
    GPU_CAPACITY = "gpu-capacity"
    DISK_CAPACITY = "disk-capacity"
    NETWORK = "network"


class ReportBy(StrEnum):
    """The grouping of a report: a row stands for each of these."""

    TENANT = "tenant"
    USER = "user"
    PROJECT = "project"
    BUDGET_LABEL = "budget_label"
    JOB = "job"
    APPLIANCE = "appliance"
    GPU_MODEL = "gpu_model"
    SITE = "site"
    DAY = "day"
    RULE = "rule"
    FILE_SYSTEM = "file_system"


class Unit(StrEnum):
    """The unit of a column; texts have none."""

    TEXT = "text"
    COUNT = "count"
    HOURS = "GPU-hours"
    HOURS_PER_DAY = "GPU-h/d"
    PERCENT = "%"
    SECONDS = "s"
    ENERGY = "kWh"
    MONEY = "cost"
    BYTES = "B"
    SPEED = "B/s"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `name` in files for programs, `label` for readers."""

    name: str
    label: str
    unit: Unit = Unit.COUNT

    @property
    def has_unit(self) -> bool:
        """Return whether values have a unit that `shown` leaves out."""
        return self.unit in {Unit.HOURS, Unit.HOURS_PER_DAY, Unit.ENERGY}

    @property
    def heading(self) -> str:
        """The label with its unit, where the values don't show it."""
        return f"{self.label} ({self.unit})" if self.has_unit else self.label


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The settings of a report.

    Attributes:
        price_per_kilowatt_hour: adds the cost of the energy; 0 leaves it out.
        target_percent: availability below it is marked.
        appliances: words that the name, site, GPU model or labels of an appliance have; empty is
            every appliance.
        time_zone: of the period.
    """

    kind: ReportKind
    by: ReportBy
    period: Period
    price_per_kilowatt_hour: float = 0.0
    target_percent: float = 99.0
    appliances: str = ""
    time_zone: str = "UTC"

    @property
    def zone(self) -> tzinfo:
        """The time zone of the period."""
        return zone_of(self.time_zone)


_CHARTED: Mapping[ReportKind, str] = {
    ReportKind.GPU_TIME: "allocated_gpu_hours",
    ReportKind.JOBS: "jobs",
    ReportKind.AVAILABILITY: "available_percent",
    ReportKind.ALERTS: "alerts",
    ReportKind.GPU_CAPACITY: "allocated_percent",
    ReportKind.DISK_CAPACITY: "used_percent",
    ReportKind.NETWORK: "mean_received_bytes_per_second",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A finished report; `totals` is a row for everything together, `notes` explain figures."""

    request: Request
    title: str
    tenant: str
    made_at: datetime
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    totals: Sequence[Cell]
    notes: Sequence[str] = ()

    def arranged(self, *, sort: str = "", text: str = "") -> "Report":
        """Return the report with some rows in another order; the totals stay those of all.

        Args:
            sort: the name of a column, after `-` the greatest values first. Rows without a value
                are last. An unknown column leaves the order.
            text: what a text of a row has, in any case.
        """
        wanted = text.casefold()
        rows = [
            row
            for row in self.rows
            if any(isinstance(cell, str) and wanted in cell.casefold() for cell in row)
            or not wanted
        ]
        names = [column.name for column in self.columns]
        name = sort.removeprefix("-")
        if name in names:
            at = names.index(name)
            filled = [row for row in rows if row[at] is not None]
            missing = [row for row in rows if row[at] is None]
            filled.sort(key=lambda row: _order(row[at]), reverse=sort.startswith("-"))
            rows = filled + missing
        return replace(self, rows=rows)

    @property
    def charted(self) -> int:
        """The place of the column that charts show."""
        name = _CHARTED[self.request.kind]
        return next(at for at, column in enumerate(self.columns) if column.name == name)

    @property
    def subtitle(self) -> str:
        """The tenant, the period, the grouping and the filter."""
        period, words = self.request.period, self.request.appliances
        since, until = (instant_text(at, self.request.zone) for at in (period.since, period.until))
        return (f"{self.tenant} · {since} to {until} · by {lower(self.columns[0].label)}") + (
            f" · appliances with {words!r}" if words else ""
        )

    @property
    def file_name(self) -> str:
        """A portable name without suffix."""
        since, until = (
            at.astimezone(self.request.zone)
            for at in (self.request.period.since, self.request.period.until)
        )
        base_name = f"{self.request.kind}_by_{self.request.by}"
        return f"{base_name}_{since:%Y%m%d}_{until:%Y%m%d}"


def _order(value: Cell) -> str | float:
    return value.casefold() if isinstance(value, str) else float(value or 0)


def rounded(row: Sequence[Cell]) -> tuple[Cell, ...]:
    """Return a row without what sums of fractions leave behind: 0 instead of -1.6e-17."""
    return tuple(round(cell, _DECIMALS) + 0.0 if isinstance(cell, float) else cell for cell in row)


_WRITERS: Mapping[Unit, Callable[[float], str]] = {
    Unit.PERCENT: "{:z.1f} %".format,
    Unit.SECONDS: format_duration,
    Unit.COUNT: "{:z,.0f}".format,
    Unit.BYTES: format_size,
    Unit.SPEED: partial(format_value, "_bytes_per_second"),
}


def lower(label: str) -> str:
    """Return a label as it is within a sentence: `user`, `GPU model`."""
    return label if label.startswith("GPU") else label[0].lower() + label[1:]


def shown(column: Column, value: Cell) -> str:
    """Return a value as readers see it."""
    if value is None:
        return ABSENT
    if isinstance(value, str):
        return value
    return _WRITERS.get(column.unit, "{:z,.2f}".format)(value)
