"""Tables of datasets, their versions, parts and copies, and of a tenant's buckets."""

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from core.db import Base, id_column
from core.ids import ID_LENGTH
from protocol.datasets import SHA256_LENGTH, CopyState, SourceKind
from tenants.models import Appliance, User, enum_column
from tenants.models.audit import Audited
from tenants.models.columns import reference

MAX_NAME_LENGTH = 100
MAX_URL_LENGTH = 1000


class VersionState(StrEnum):
    """Of a version: `ready` ones never change."""

    INDEXING = "indexing"
    UPLOADING = "uploading"
    READY = "ready"
    FAILED = "failed"


class DataConnection(Base):
    """Credentials of a tenant for a store: a bucket of S3 or of a server with its API, or HTTPS.

    Attributes:
        url: the addresses that it is for begin with this, such as `s3://bucket`.
        endpoint_url: of a server with S3's API; "" is AWS.
        secrets: the credentials, encrypted; see `datasets.connections`.
    """

    __tablename__ = "data_connections"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)
    audited: ClassVar = Audited(
        kind="data_connection",
        name="name",
        fields=("name", "url", "endpoint_url", "region", "access_key_id"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    url: Mapped[str] = mapped_column(String(MAX_URL_LENGTH))
    endpoint_url: Mapped[str] = mapped_column(String(MAX_URL_LENGTH), default="")
    region: Mapped[str] = mapped_column(String(100), default="")
    access_key_id: Mapped[str] = mapped_column(String(200), default="")
    secrets: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]

    @property
    def has_secrets(self) -> bool:
        """Whether credentials are stored."""
        return bool(self.secrets)


class TenantDataSettings(Base):
    """Where a tenant's results go and how long they stay; a tenant may have no row.

    Attributes:
        results_connection_id: the bucket for results; None is the portal's store.
        results_retention_days: None keeps results as long as their jobs.
        allows_peers: whether appliances of one site fetch datasets from each other.
    """

    __tablename__ = "tenant_data_settings"
    audited: ClassVar = Audited(
        kind="data_settings",
        name="tenant_id",
        fields=("results_connection_id", "results_retention_days", "allows_peers"),
        created="changed",
    )

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    results_connection_id: Mapped[str | None] = reference(
        "data_connections.id", ondelete="SET NULL"
    )
    results_retention_days: Mapped[int | None]
    allows_peers: Mapped[bool] = mapped_column(default=False)


class Dataset(Base):
    """A dataset: a name and a source, of which versions are made.

    `last_number` is that of the latest version, also if that was deleted.
    """

    __tablename__ = "datasets"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)
    audited: ClassVar = Audited(
        kind="dataset", name="name", fields=("name", "description", "source_url", "connection_id")
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    user_id: Mapped[str | None] = reference("users.id", ondelete="SET NULL", index=True)
    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    description: Mapped[str] = mapped_column(String(500), default="")
    kind: Mapped[SourceKind] = mapped_column(enum_column(SourceKind))
    source_url: Mapped[str] = mapped_column(String(MAX_URL_LENGTH), default="")
    connection_id: Mapped[str | None] = reference("data_connections.id", ondelete="SET NULL")
    last_number: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime]
    user: Mapped[User | None] = relationship(lazy="joined")
    versions: Mapped[list["DatasetVersion"]] = relationship(
        back_populates="dataset",
        order_by="DatasetVersion.number",
        lazy="selectin",
        passive_deletes="all",
    )
    connection: Mapped[DataConnection | None] = relationship(lazy="joined")

    @property
    def version_count(self) -> int:
        """The number of its versions in all states."""
        return len(self.versions)

    @property
    def newest(self) -> "DatasetVersion | None":
        """The newest version that is ready, if any."""
        ready = [version for version in self.versions if version.state is VersionState.READY]
        return ready[-1] if ready else None


class DatasetVersion(Base):
    """A version; its manifest never changes once it is ready.

    Attributes:
        digest: of the manifest; None until it is ready.
        head: the `ManifestHead` as JSON.
        indexing_appliance_id: the appliance whose agent reads the source; None while none can.
        requested_appliance_id: the appliance that a user chose for that, and no other.
        upload_key: names the files that are uploaded, for a client that resumes.
        active_at: when agent or client last made progress.
        is_scheduled: whether a schedule made it, so that it goes where nothing has changed.
        parts_stored: whether all its parts are in the portal's store.
    """

    __tablename__ = "dataset_versions"
    __table_args__ = (
        UniqueConstraint("dataset_id", "number"),
        Index("ix_dataset_versions_tenant_id_digest", "tenant_id", "digest"),
    )
    audited: ClassVar = Audited(
        kind="dataset_version", name="number", fields=("dataset_id", "number", "digest")
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    dataset_id: Mapped[str] = reference("datasets.id")
    number: Mapped[int]
    state: Mapped[VersionState] = mapped_column(enum_column(VersionState), index=True)
    message: Mapped[str] = mapped_column(Text, default="")
    digest: Mapped[str | None] = mapped_column(String(SHA256_LENGTH))
    head: Mapped[dict[str, Any] | None] = mapped_column(deferred=True)
    file_count: Mapped[int] = mapped_column(BigInteger, default=0)
    total_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    indexing_appliance_id: Mapped[str | None] = reference(
        "appliances.id", ondelete="SET NULL", index=True
    )
    requested_appliance_id: Mapped[str | None] = reference("appliances.id", ondelete="SET NULL")
    upload_key: Mapped[str | None] = mapped_column(String(SHA256_LENGTH))
    indexed_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    parts_stored: Mapped[bool] = mapped_column(default=False)
    is_scheduled: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime]
    active_at: Mapped[datetime]
    ready_at: Mapped[datetime | None]
    dataset: Mapped[Dataset] = relationship(back_populates="versions", lazy="joined")
    indexing_appliance: Mapped[Appliance | None] = relationship(
        foreign_keys=[indexing_appliance_id], lazy="joined"
    )

    @property
    def label(self) -> str:
        """Its dataset's name with its number, as jobs refer to it."""
        return f"{self.dataset.name}@{self.number}"


class DataPart(Base):
    """A part of content in a tenant's store: of manifests' pages, uploads and results.

    Attributes:
        is_in_bucket: whether it is in a bucket of the tenant, not in the portal's store.
        connection_id: of that bucket. The tenant may use another one for results by now.
        last_used_at: when it was last stored or announced; an unused part is deleted a day later.
        is_deleting: whether its content is being deleted; see `datasets.parts`.
    """

    __tablename__ = "data_parts"

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    sha256: Mapped[str] = mapped_column(String(SHA256_LENGTH), primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    is_in_bucket: Mapped[bool] = mapped_column(default=False)
    connection_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    last_used_at: Mapped[datetime] = mapped_column(index=True)
    is_deleting: Mapped[bool] = mapped_column(default=False, index=True)


class VersionPart(Base):
    """A stored part, or page, that a version needs."""

    __tablename__ = "dataset_version_parts"

    version_id: Mapped[str] = reference("dataset_versions.id", primary_key=True)
    sha256: Mapped[str] = mapped_column(String(SHA256_LENGTH), primary_key=True)
    tenant_id: Mapped[str] = reference("tenants.id")

    __table_args__ = (Index("ix_dataset_version_parts_tenant_id_sha256", "tenant_id", "sha256"),)


class DatasetCopyRecord(Base):
    """A version in the cache of an appliance, as its agent reports it."""

    __tablename__ = "dataset_copies"

    version_id: Mapped[str] = reference("dataset_versions.id", primary_key=True)
    appliance_id: Mapped[str] = reference("appliances.id", primary_key=True, index=True)
    tenant_id: Mapped[str] = reference("tenants.id", index=True)
    state: Mapped[CopyState] = mapped_column(enum_column(CopyState))
    cached_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    fetched_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    peer_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    message: Mapped[str] = mapped_column(Text, default="")
    last_used_at: Mapped[datetime | None]
    reported_at: Mapped[datetime]
    appliance: Mapped[Appliance] = relationship(lazy="joined")


class ApplianceCache(Base):
    """The cache of an appliance, as its agent reports it; no row before the first report.

    Attributes:
        bytes_per_second: as fast as it fetched lately; None while that is unknown.
    """

    __tablename__ = "appliance_caches"

    appliance_id: Mapped[str] = reference("appliances.id", primary_key=True)
    tenant_id: Mapped[str] = reference("tenants.id", index=True)
    cache_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    cache_limit_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    bytes_per_second: Mapped[int | None] = mapped_column(BigInteger)
    peer_url: Mapped[str] = mapped_column(String(300), default="")
    reported_at: Mapped[datetime]


class DatasetPrefetch(Base):
    """An order to have a dataset on appliances ahead of jobs, by hand or on a schedule.

    Attributes:
        appliance_id: None for all that have the labels.
        version_id: what is fetched; None is the newest that is ready.
        is_pinned: whether the copy is never evicted.
        schedule: when a new version is made of a changed source, as for jobs; "" is never.
    """

    __tablename__ = "dataset_prefetches"
    audited: ClassVar = Audited(
        kind="dataset_prefetch",
        name="dataset_id",
        fields=("dataset_id", "appliance_id", "labels", "is_pinned", "schedule", "time_zone"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id", index=True)
    dataset_id: Mapped[str] = reference("datasets.id", index=True)
    version_id: Mapped[str | None] = reference("dataset_versions.id", index=True)
    appliance_id: Mapped[str | None] = reference("appliances.id", index=True)
    labels: Mapped[dict[str, str]] = mapped_column(default=dict)
    is_pinned: Mapped[bool] = mapped_column(default=False)
    schedule: Mapped[str] = mapped_column(String(200), default="")
    time_zone: Mapped[str] = mapped_column(String(64), default="UTC")
    next_run_at: Mapped[datetime | None] = mapped_column(index=True)
    created_at: Mapped[datetime]
    appliance: Mapped[Appliance | None] = relationship(lazy="joined")
