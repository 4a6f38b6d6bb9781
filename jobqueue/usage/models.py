"""Tables of the usage ledger."""

from datetime import datetime

from sqlalchemy import BigInteger, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from tenants.models.columns import reference

MAX_MODEL_LENGTH = 200


class UsageEntry(Base):
    """The use of one GPU model by an attempt in one hour, or a correction of it.

    Rows are only added: what an attempt used is the sum of its rows, whose `revision` counts from
    0. They outlive the job, its user and its appliance, so these are no foreign keys. The
    milliseconds are those of single GPUs: two GPUs for a second are 2000, and a quarter of a GPU is
    250. `used` is the time in which a kernel ran, `idle` the measured rest; what is in neither was
    not measured. The energy of slices is not measurable.
    """

    __tablename__ = "usage_entries"
    __table_args__ = (
        UniqueConstraint("attempt_id", "hour_at", "gpu_model", "revision"),
        Index("ix_usage_entries_tenant_id_hour_at", "tenant_id", "hour_at"),
    )

    id: Mapped[str] = id_column()
    hour_at: Mapped[datetime] = mapped_column(index=True)
    tenant_id: Mapped[str] = reference("tenants.id")
    user_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    project_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    job_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    job_name: Mapped[str] = mapped_column(String(100))
    attempt_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    appliance_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    contract_id: Mapped[str | None] = mapped_column(String(ID_LENGTH), index=True)
    """The contract under which the appliance was rented; None for an own one."""
    gpu_model: Mapped[str] = mapped_column(String(MAX_MODEL_LENGTH))
    revision: Mapped[int]
    allocated_milliseconds: Mapped[int] = mapped_column(BigInteger)
    used_milliseconds: Mapped[int] = mapped_column(BigInteger)
    idle_milliseconds: Mapped[int] = mapped_column(BigInteger)
    energy_joules: Mapped[int] = mapped_column(BigInteger)
    recorded_at: Mapped[datetime]


class UsageHour(Base):
    """An hour that is in the ledger, and when it is next compared with the samples.

    `appends` counts how often rows were appended to it: who follows the ledger compares it with
    what they have read, and misses no row, however late its transaction commits.
    """

    __tablename__ = "usage_hours"

    hour_at: Mapped[datetime] = mapped_column(primary_key=True)
    recorded_at: Mapped[datetime]
    next_check_at: Mapped[datetime | None] = mapped_column(index=True)
    appends: Mapped[int] = mapped_column(default=0, server_default="0")
