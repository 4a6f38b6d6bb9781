"""Fleet advice as pages and API show it: with prices, in the reader's time zone, and as a week."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from sqlalchemy.orm import Session

from jobqueue.advice.figures import DAY_NAMES, FleetFigures, ModelFigures
from jobqueue.advice.rules import Prices
from jobqueue.advice.service import FleetReport, read_report
from jobqueue.usage.ledger import HOUR
from marketplace.fleet_prices import fleet_prices
from portal.context import current_scope, now, portal
from portal.time_zone import current_zone
from tenants.permissions import Permission

# Shades of the heat map, besides that of 0.
LEVELS = 5


class Measure(StrEnum):
    """What a heat map shows."""

    FREE = "free"
    ALLOCATED = "allocated"
    IDLE = "idle"
    SHORT = "short"
    WAITING = "waiting"
    RENTED = "rented"
    CAPACITY = "capacity"


class Cell(NamedTuple):
    """An hour of the week: the mean of GPUs, None without data, and its shade."""

    gpus: float | None
    level: int


class Share(NamedTuple):
    """A GPU model with its sums in GPU-hours; the ratio is None without capacity."""

    figures: ModelFigures
    capacity: float
    allocated: float
    idle: float
    free: float
    rented: float
    waiting: float
    short: float

    @property
    def allocated_ratio(self) -> float | None:
        """The allocated part of the capacity."""
        return min(1.0, self.allocated / self.capacity) if self.capacity else None


def fleet_report(session: Session) -> FleetReport:
    """Return the advice for the current tenant."""
    scope, settings = current_scope(), portal().settings

    def prices(figures: FleetFigures) -> Prices:
        if not scope.allows(Permission.VIEW_BILLING):
            return Prices()
        return fleet_prices(
            session,
            scope.require_tenant(),
            figures,
            currency=settings.billing_currency,
            has_market=settings.marketplace,
            now=now(),
        )

    return read_report(session, scope, prices=prices, zone=current_zone(), now=now())


def hourly(row: ModelFigures, measure: Measure) -> np.ndarray:
    """Return the GPU-hours of a measure, by hour of the period."""
    derived = {Measure.FREE: row.free, Measure.SHORT: row.short}
    values = derived[measure]() if measure in derived else getattr(row, measure.value)
    return np.asarray(values, np.float64)


def shares(figures: FleetFigures) -> list[Share]:
    """Return the GPU models with their sums."""
    names = [name for name in Share._fields if name != "figures"]
    return [
        Share(row, **{name: float(hourly(row, Measure(name)).sum()) for name in names})
        for row in figures.models
    ]


def heat_map(
    figures: FleetFigures, row: ModelFigures, measure: Measure
) -> Sequence[tuple[str, Sequence[Cell]]]:
    """Return the days of a week in the reader's time zone, with the mean of each hour."""
    week = figures.week(hourly(row, measure), current_zone())
    highest = max(float(np.nanmax(week, initial=0.0)), 1e-9)
    return [
        (
            name,
            [
                Cell(None, 0)
                if np.isnan(value)
                else Cell(float(value), int(np.ceil(LEVELS * round(float(value / highest), 6))))
                for value in week[day]
            ],
        )
        for day, name in enumerate(DAY_NAMES)
    ]


def hours_of(figures: FleetFigures, row: ModelFigures) -> list[dict[str, datetime | float]]:
    """Return the hours of the period with the GPU-hours of each measure."""
    columns = {f"{measure}_gpu_hours": hourly(row, measure).round(4) for measure in Measure}
    return [
        {
            "at": figures.since + number * HOUR,
            **{name: float(values[number]) for name, values in columns.items()},
        }
        for number in range(figures.hours)
    ]
