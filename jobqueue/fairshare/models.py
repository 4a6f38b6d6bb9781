"""Tables of decayed usage and of forecasts."""

from datetime import datetime

from sqlalchemy import Double, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from tenants.models.columns import reference


class FairShareUsage(Base):
    """What the ended attempts of a user in a project used, decayed to an instant.

    An attempt is added once, when its `is_charged` is set. Users and projects may be gone, so
    these are no foreign keys; "" is none.
    """

    __tablename__ = "fair_share_usage"

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    project_id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    user_id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    gpu_seconds: Mapped[float] = mapped_column(Double)
    cpu_seconds: Mapped[float] = mapped_column(Double)
    memory_byte_seconds: Mapped[float] = mapped_column(Double)
    half_life_seconds: Mapped[float] = mapped_column(Double)
    """By which the seconds were decayed; a change of the setting applies from then on."""
    decayed_to: Mapped[datetime]


class StartForecast(Base):
    """When a waiting job was expected to start, as of an instant, and how wrong that was."""

    __tablename__ = "start_forecasts"
    __table_args__ = (Index("ix_start_forecasts_tenant_id_made_at", "tenant_id", "made_at"),)

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    job_id: Mapped[str] = mapped_column(String(ID_LENGTH), index=True)
    made_at: Mapped[datetime]
    expected_start_at: Mapped[datetime]
    late_seconds: Mapped[float | None] = mapped_column(Double)
    """By which the job started later than expected, or earlier if below 0; None: it waits."""
