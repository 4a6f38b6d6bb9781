"""Tables of fleet advice: the figures of each tenant, and the advice that its admins dismissed."""

from datetime import datetime
from typing import ClassVar

from sqlalchemy import String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from jobqueue.models import LongText
from jobqueue.simulation.models import SimulationState
from tenants.models import enum_column
from tenants.models.audit import Audited
from tenants.models.columns import reference

MAX_KEY_LENGTH = 250


class FleetAdvice(Base):
    """The figures of a tenant's fleet that advice follows from; those before stay until new ones.

    Attributes:
        state: of the latest computation.
        progress_percent: the part of it that is done.
        message: why it failed.
        requested_at: when it was to run.
        started_at: when it began.
        finished_at: when it ended.
        computed_at: of which time the figures are; None without any.
        figures: as JSON, see `jobqueue.advice.figures.FleetFigures`.
        gpus: of its own appliances, as are the sums of the period.
        capacity_gpu_hours: that the GPUs had while they could run jobs.
        allocated_gpu_hours: allocated to jobs.
        idle_gpu_hours: allocated, but measured as idle.
        short_gpu_hours: by which the demand exceeded the capacity.
    """

    __tablename__ = "fleet_advice"

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    state: Mapped[SimulationState] = mapped_column(enum_column(SimulationState), index=True)
    progress_percent: Mapped[int] = mapped_column(default=0)
    message: Mapped[str] = mapped_column(String(500), default="")
    requested_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    computed_at: Mapped[datetime | None]
    figures: Mapped[str | None] = mapped_column(LongText, deferred=True)
    gpus: Mapped[int] = mapped_column(default=0)
    capacity_gpu_hours: Mapped[float] = mapped_column(default=0.0)
    allocated_gpu_hours: Mapped[float] = mapped_column(default=0.0)
    idle_gpu_hours: Mapped[float] = mapped_column(default=0.0)
    short_gpu_hours: Mapped[float] = mapped_column(default=0.0)


class AdviceDismissal(Base):
    """Advice that is not shown for a while, by its key."""

    __tablename__ = "advice_dismissals"
    __table_args__ = (UniqueConstraint("tenant_id", "advice_key"),)
    audited: ClassVar = Audited(
        kind="advice_dismissal",
        name="advice_key",
        fields=("dismissed_until",),
        created="dismissed",
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    advice_key: Mapped[str] = mapped_column(String(MAX_KEY_LENGTH))
    dismissed_at: Mapped[datetime]
    dismissed_until: Mapped[datetime]
    dismissed_by: Mapped[str | None] = reference("users.id", ondelete="SET NULL")
