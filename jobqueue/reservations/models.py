"""The table of reservations."""

from datetime import datetime
from typing import ClassVar

from sqlalchemy import String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from tenants.models.audit import Audited
from tenants.models.columns import reference

MAX_NAME_LENGTH = 100


class Reservation(Base):
    """Appliances that are kept for a project whenever a schedule is due, for some time.

    Attributes:
        project_id: whose jobs may start there, with those of projects below; None: nobody's, for
            maintenance.
        appliance_ids: the appliances; those that are gone have no effect.
        gpus: of each appliance; None is the whole appliance.
        schedule: when it begins, as of job schedules; `R1/2026-12-01T22:00/P1D` is once.
    """

    __tablename__ = "reservations"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)
    audited: ClassVar = Audited(
        kind="reservation",
        name="name",
        fields=(
            *("name", "project_id", "appliance_ids", "gpus"),
            *("schedule", "time_zone", "duration_seconds"),
        ),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    project_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    appliance_ids: Mapped[list[str]]
    gpus: Mapped[int | None]
    schedule: Mapped[str] = mapped_column(String(200))
    time_zone: Mapped[str] = mapped_column(String(64))
    duration_seconds: Mapped[int]
    created_by: Mapped[str | None] = reference("users.id", ondelete="SET NULL")
    created_at: Mapped[datetime]
