"""A report: what it is about, its columns, and its rows. `builders` make them, `files` write them.

*Hours* are GPU-hours: two GPUs for an hour are two. *Shares* are percentages of 0 to 100.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from core.quantities import format_duration
from jobqueue.usage.totals import Period

Cell = str | int | float | None
ABSENT = "-"


class ReportKind(StrEnum):
    """What a report is about."""

    GPU_TIME = "gpu-time"
    JOBS = "jobs"
    AVAILABILITY = "availability"
    ALERTS = "alerts"


class ReportBy(StrEnum):
    """What a row of a report is."""

    TENANT = "tenant"
    USER = "user"
    JOB = "job"
    APPLIANCE = "appliance"
    GPU_MODEL = "gpu_model"
    SITE = "site"
    DAY = "day"
    RULE = "rule"


class Unit(StrEnum):
    """The unit of a column; texts have none."""

    TEXT = "text"
    COUNT = "count"
    HOURS = "GPU-hours"
    PERCENT = "%"
    SECONDS = "s"
    ENERGY = "kWh"
    MONEY = "cost"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `name` in files for programs, `label` for readers."""

    name: str
    label: str
    unit: Unit = Unit.COUNT

    @property
    def heading(self) -> str:
        """The label with its unit, where the values don't show it."""
        return f"{self.label} ({self.unit})" if self.unit in _IN_HEADING else self.label


_IN_HEADING = frozenset({Unit.HOURS, Unit.ENERGY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to report.

    Attributes:
        price_per_kilowatt_hour: adds the cost of the energy; 0 leaves it out.
        target_percent: availability below it is marked.
    """

    kind: ReportKind
    by: ReportBy
    period: Period
    price_per_kilowatt_hour: float = 0.0
    target_percent: float = 99.0


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

    @property
    def file_name(self) -> str:
        """A portable name without suffix."""
        period = self.request.period
        what = f"{self.request.kind}_by_{self.request.by}"
        return f"{what}_{period.since:%Y%m%d}_{period.until:%Y%m%d}"


def shown(column: Column, value: Cell) -> str:
    """Return a value as readers see it."""
    if value is None:
        return ABSENT
    if isinstance(value, str):
        return value
    if column.unit is Unit.PERCENT:
        return f"{value:.1f} %"
    if column.unit is Unit.SECONDS:
        return format_duration(value)
    if column.unit is Unit.COUNT:
        return f"{value:,.0f}"
    return f"{value:,.2f}"
