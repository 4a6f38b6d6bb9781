"""Tables of the platform's own work: tenants' removals, what each one uses, what it is told."""

from datetime import date, datetime
from enum import StrEnum

from sqlalchemy import Date, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from tenants.models.columns import BigNumber, enum_column
from tenants.models.people import EMAIL_LENGTH, NAME_LENGTH


class RemovalState(StrEnum):
    """How far the removal of a tenant is; each state is worked from its beginning when repeated."""

    EXPORTING = "exporting"
    DELETING_ROWS = "deleting_rows"
    DELETING_SAMPLES = "deleting_samples"
    REMOVED = "removed"


class TenantRemoval(Base):
    """A tenant's removal; it outlives the tenant, so nothing refers to it by a foreign key.

    `done` of `total` says how far the present state is; `error` what stopped it last time. The
    export lies in the data folder under `file_name` until `discarded_at`.
    """

    __tablename__ = "tenant_removals"

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH), unique=True)
    tenant_slug: Mapped[str] = mapped_column(String(64))
    tenant_name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    state: Mapped[RemovalState] = mapped_column(enum_column(RemovalState))
    done: Mapped[int] = mapped_column(default=0)
    total: Mapped[int] = mapped_column(default=0)
    error: Mapped[str] = mapped_column(Text, default="")
    requested_by: Mapped[str] = mapped_column(String(EMAIL_LENGTH))
    requested_at: Mapped[datetime]
    exported_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    file_bytes: Mapped[int] = mapped_column(BigNumber, default=0)
    discarded_at: Mapped[datetime | None]

    @property
    def file_name(self) -> str:
        """What the export is called in the folder of exports."""
        return f"{self.tenant_slug}-{self.id}.zip"

    @property
    def has_file(self) -> bool:
        """Whether there is an export to download."""
        return self.exported_at is not None and self.discarded_at is None


class TenantUsage(Base):
    """What a tenant used on a day, as it was measured last on that day."""

    __tablename__ = "tenant_usage"
    __table_args__ = (Index("ix_tenant_usage_day", "day"),)

    tenant_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True
    )
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    measured_at: Mapped[datetime]
    appliances: Mapped[int]
    gpus: Mapped[int]
    points: Mapped[int] = mapped_column(BigNumber)
    storage_bytes: Mapped[int] = mapped_column(BigNumber)


class SeriesCount(Base):
    """How many series of a tenant are active, as one server that takes samples counts them."""

    __tablename__ = "series_counts"

    tenant_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True
    )
    server: Mapped[str] = mapped_column(String(64), primary_key=True)
    series: Mapped[int]
    counted_at: Mapped[datetime]


class FillingQuota(StrEnum):
    """The quotas that fill up by themselves."""

    STORAGE = "storage"
    SERIES = "series"


class QuotaWarning(Base):
    """The level of a quota that a tenant's admins were told of last; 0 is none."""

    __tablename__ = "quota_warnings"

    tenant_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True
    )
    quota: Mapped[FillingQuota] = mapped_column(enum_column(FillingQuota), primary_key=True)
    level_percent: Mapped[int]
    changed_at: Mapped[datetime]
