"""Tables of reservations, and of what they book of rented appliances."""

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from sqlalchemy import Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from tenants.models.appliances import MAX_MODEL_LENGTH
from tenants.models.audit import Audited
from tenants.models.columns import enum_column, reference
from tenants.models.rentals import MAX_OFFER_NAME_LENGTH

MAX_NAME_LENGTH = 100


class Reservation(Base):
    """Appliances that are kept for a project whenever a schedule is due, for some time.

    Attributes:
        project_id: whose jobs may start there, with those of projects below; None: nobody's, for
            maintenance.
        appliance_ids: the appliances; those that are gone have no effect.
        gpus: of each appliance; None is the whole appliance.
        appliance_count: of rented appliances, which `Booking` has; 0 for own ones.
        gpu_model: a word that must be in the model of their GPUs; "" for any.
        max_gpu_hour_price: the highest price of a GPU of theirs for an hour.
        rental: what they must meet, as of jobs.
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
            *("appliance_count", "gpu_model", "max_gpu_hour_price"),
        ),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    project_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    appliance_ids: Mapped[list[str]]
    gpus: Mapped[int | None]
    appliance_count: Mapped[int] = mapped_column(default=0, server_default="0")
    gpu_model: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH), default="", server_default="")
    max_gpu_hour_price: Mapped[float] = mapped_column(default=0.0, server_default="0")
    stored_rental: Mapped[dict[str, str] | None] = mapped_column("rental")
    schedule: Mapped[str] = mapped_column(String(200))
    time_zone: Mapped[str] = mapped_column(String(64))
    duration_seconds: Mapped[int]
    created_by: Mapped[str | None] = reference("users.id", ondelete="SET NULL")
    created_at: Mapped[datetime]

    @property
    def rental(self) -> dict[str, str]:
        """What rented appliances must meet."""
        return self.stored_rental or {}


class Booking(Base):
    """What a reservation keeps of a rented appliance, as it was saved.

    Only its ends are ever set, when the reservation is changed or deleted: what was kept is charged
    later. So it outlives its reservation and both tenants, and has no foreign keys.

    Attributes:
        contract_id: by which the appliance is rented; nothing is kept without its grant.
        gpus: so many of them.
        gpu_model: of the appliance, for the price.
        since: when it was booked.
        until: when it was given up; None while it holds.
        charged_until: until when it is charged after that; None if not.
    """

    __tablename__ = "reservation_bookings"
    __table_args__ = (
        Index("ix_reservation_bookings_provider_id_until", "provider_id", "until"),
        Index("ix_reservation_bookings_until", "until"),
    )

    id: Mapped[str] = id_column()
    reservation_id: Mapped[str] = mapped_column(String(ID_LENGTH), index=True)
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    project_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    provider_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    contract_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    offer_name: Mapped[str] = mapped_column(String(MAX_OFFER_NAME_LENGTH))
    appliance_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    gpus: Mapped[int]
    gpu_model: Mapped[str] = mapped_column(String(MAX_MODEL_LENGTH))
    schedule: Mapped[str] = mapped_column(String(200))
    time_zone: Mapped[str] = mapped_column(String(64))
    duration_seconds: Mapped[int]
    since: Mapped[datetime]
    until: Mapped[datetime | None]
    charged_until: Mapped[datetime | None]


class GapReason(StrEnum):
    """Why nothing can be used of what was booked: each is for the provider to mend."""

    WITHDRAWN = "withdrawn"
    UNAVAILABLE = "unavailable"
    SUSPENDED = "suspended"


class BookingGap(Base):
    """A time in which a provider did not give what was booked; it is not charged.

    Attributes:
        reason: the appliance is out of the offer; offline, drained or quarantined; or its provider
            is suspended.
        until: None while it goes on.
    """

    __tablename__ = "reservation_booking_gaps"

    id: Mapped[str] = id_column()
    booking_id: Mapped[str] = mapped_column(String(ID_LENGTH), index=True)
    reason: Mapped[GapReason] = mapped_column(enum_column(GapReason))
    since: Mapped[datetime]
    until: Mapped[datetime | None]
