"""Tables of the platform: removals, usage, counts, quota warnings, processes, backups."""

from datetime import date, datetime
from enum import StrEnum
from typing import ClassVar

from sqlalchemy import Date, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from tenants.models.audit import Audited
from tenants.models.columns import SECRET_HASH_LENGTH, BigNumber, enum_column, reference
from tenants.models.users import EMAIL_LENGTH, NAME_LENGTH


class RemovalState(StrEnum):
    """The step of a removal; each can be repeated from its start."""

    EXPORTING = "exporting"
    DELETING_ROWS = "deleting_rows"
    DELETING_SAMPLES = "deleting_samples"
    REMOVED = "removed"


class TenantRemoval(Base):
    """The removal of a tenant; it outlives the tenant, so no foreign key refers to it.

    `done` of `total` is the progress of the current state, `error` the reason of the last failure.
    The export is stored as `file_name` in the data folder until `discarded_at`.
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
        """The file name of the export."""
        return f"{self.tenant_slug}-{self.id}.zip"

    @property
    def has_file(self) -> bool:
        """Return whether there is an export to download."""
        return self.exported_at is not None and self.discarded_at is None


class TenantUsage(Base):
    """A tenant's usage on a day, as last measured on that day."""

    __tablename__ = "tenant_usage"
    __table_args__ = (Index("ix_tenant_usage_day", "day"),)

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    measured_at: Mapped[datetime]
    appliances: Mapped[int]
    gpus: Mapped[int]
    points: Mapped[int] = mapped_column(BigNumber)
    storage_bytes: Mapped[int] = mapped_column(BigNumber)


class SeriesCount(Base):
    """The active series, measurements and fields of a tenant, as counted by one ingest server."""

    __tablename__ = "series_counts"

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    server: Mapped[str] = mapped_column(String(64), primary_key=True)
    series: Mapped[int]
    measurements: Mapped[int] = mapped_column(server_default="0")
    fields: Mapped[int] = mapped_column(server_default="0")
    counted_at: Mapped[datetime]


class MessageCount(Base):
    """The messages that a tenant sent within an hour; `subject` is a kind of them, or a user."""

    __tablename__ = "message_counts"

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    subject: Mapped[str] = mapped_column(String(36), primary_key=True)
    started_at: Mapped[datetime]
    count: Mapped[int]


class FillingQuota(StrEnum):
    """The quotas that fill up with samples."""

    STORAGE = "storage"
    SERIES = "series"
    MEASUREMENTS = "measurements"
    FIELDS = "fields"


class QuotaWarning(Base):
    """The last level of a quota that was reported to a tenant's admins; 0 is none."""

    __tablename__ = "quota_warnings"

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    quota: Mapped[FillingQuota] = mapped_column(enum_column(FillingQuota), primary_key=True)
    level_percent: Mapped[int]
    changed_at: Mapped[datetime]


class ServerProcess(Base):
    """A running process of the portal, with its load in the last seconds.

    `holder` is its name in leases; `url` is where other processes reach it. `parts` are what it
    serves, separated by spaces. `broker` is its `BrokerState`. `shared` has fingerprints of what
    all processes must share, such as `secret_key=...`, separated by spaces.
    """

    __tablename__ = "server_processes"

    holder: Mapped[str] = mapped_column(String(64), primary_key=True)
    url: Mapped[str] = mapped_column(String(255))
    parts: Mapped[str] = mapped_column(String(64), default="")
    version: Mapped[str] = mapped_column(String(40))
    started_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    requests_per_second: Mapped[float] = mapped_column(default=0.0)
    cpu_percent: Mapped[float] = mapped_column(default=0.0)
    memory_bytes: Mapped[int] = mapped_column(BigNumber, default=0)
    broker: Mapped[str] = mapped_column(String(16), default="none", server_default="none")
    broker_since: Mapped[datetime | None]
    shared: Mapped[str] = mapped_column(String(255), default="", server_default="")


class AccessPoint(Base):
    """An address at which agents reach the portal; of all tenants, or of one.

    A relay has a token, and reports how it is doing: `seen_at` and what follows. `weight` 0 drains
    it: agents leave it for others.
    """

    __tablename__ = "access_points"
    audited: ClassVar = Audited(
        kind="access_point",
        name="name",
        fields=("name", "url", "region", "weight", "tenant_id"),
        secrets={"secret_hash": "token"},
        verbs={"name": ("renamed", "renamed"), "secret_hash": ("token_renewed", "changed")},
    )

    id: Mapped[str] = id_column()
    name: Mapped[str] = mapped_column(String(100), unique=True)
    url: Mapped[str] = mapped_column(String(255), unique=True)
    region: Mapped[str] = mapped_column(String(100), default="")
    weight: Mapped[int] = mapped_column(default=100)
    tenant_id: Mapped[str | None] = reference("tenants.id", ondelete="CASCADE")
    secret_hash: Mapped[str | None] = mapped_column(String(SECRET_HASH_LENGTH), unique=True)
    created_at: Mapped[datetime]
    seen_at: Mapped[datetime | None]
    version: Mapped[str] = mapped_column(String(50), default="")
    started_at: Mapped[datetime | None]
    agents: Mapped[int] = mapped_column(default=0)
    spool_bytes: Mapped[int] = mapped_column(BigNumber, default=0)
    max_spool_bytes: Mapped[int] = mapped_column(BigNumber, default=0)
    oldest_spooled_at: Mapped[datetime | None]
    refused_writes: Mapped[int] = mapped_column(BigNumber, default=0)
    undeliverable_bytes: Mapped[int] = mapped_column(BigNumber, default=0, server_default="0")
    requests_per_second: Mapped[float] = mapped_column(default=0.0)
    cpu_percent: Mapped[float] = mapped_column(default=0.0)
    memory_bytes: Mapped[int] = mapped_column(BigNumber, default=0)

    @property
    def is_relay(self) -> bool:
        """Whether it is a relay, not a process with the portal's database."""
        return self.secret_hash is not None


class BackupKind(StrEnum):
    """The kind of a run: a backup, a test that one can be restored, or a restore."""

    BACKUP = "backup"
    VERIFICATION = "verification"
    RESTORE = "restore"


class BackupState(StrEnum):
    """The state of a run; the last two are final."""

    REQUESTED = "requested"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class BackupRun(Base):
    """A run of a backup, a verification or a restore; see the package `backup`.

    `data_at` is the time of the database in the snapshot. `message` is the reason of a failure, or
    what the backup does not have.
    """

    __tablename__ = "backup_runs"

    id: Mapped[str] = id_column()
    kind: Mapped[BackupKind] = mapped_column(enum_column(BackupKind))
    state: Mapped[BackupState] = mapped_column(enum_column(BackupState))
    requested_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    data_at: Mapped[datetime | None]
    snapshot: Mapped[str] = mapped_column(String(64), default="")
    total_bytes: Mapped[int] = mapped_column(BigNumber, default=0)
    added_bytes: Mapped[int] = mapped_column(BigNumber, default=0)
    message: Mapped[str] = mapped_column(Text, default="")
