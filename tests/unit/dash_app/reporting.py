"""A day of acme's, and what it needs to be reported on."""

from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from dash_app.reports.report import Cell, Report
from jobqueue.usage.measuring import Period
from jobqueue.usage.models import UsageEntry
from tenants.models import Appliance
from tests.cast import NOON

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
DAY = Period(NOON - 12 * HOUR, NOON + 12 * HOUR)
NOW = NOON + 6 * HOUR
HOUR_MS = 3_600_000
BuildReport = Callable[..., Report]


def row(report: Report, name: str) -> dict[str, Cell]:
    values = next(cells for cells in report.rows if cells[0] == name)
    return dict(zip([column.name for column in report.columns], values, strict=True))


def add_usage(
    session: Session,
    appliance: Appliance,
    user_id: str | None = None,
    *,
    at: datetime = NOON,
    job_id: str = "",
    **hours: float,
) -> None:
    """Add an hour of the ledger: GPU-hours by name, and the energy in kWh."""
    ident = job_id or f"{appliance.name}-{user_id}"[:36]
    session.add(
        UsageEntry(
            hour_at=at,
            tenant_id=appliance.tenant_id,
            user_id=user_id,
            job_id=ident,
            job_name="train",
            attempt_id=ident,
            appliance_id=appliance.id,
            gpu_model="H100",
            revision=0,
            allocated_milliseconds=int(hours["allocated"] * HOUR_MS),
            used_milliseconds=int(hours["used"] * HOUR_MS),
            idle_milliseconds=int(hours["idle"] * HOUR_MS),
            energy_joules=int(hours["energy"] * HOUR_MS),
            recorded_at=NOW,
        )
    )
