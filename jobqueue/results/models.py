"""The tables of results."""

from datetime import datetime

from sqlalchemy import BigInteger, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from core.db import Base, id_column
from jobqueue.models import Attempt
from protocol.datasets import MAX_PATH_LENGTH, SHA256_LENGTH
from tenants.models.columns import exact_text, reference

_PATH_HASH_LENGTH = 64


class Artifact(Base):
    """A file that a job left in an output folder, as it was last uploaded.

    Attributes:
        path_sha256: the hash of `path`, which is too long for an index of MySQL.
        attempt_id: the attempt that wrote this content.
    """

    __tablename__ = "job_artifacts"
    __table_args__ = (
        UniqueConstraint("job_id", "path_sha256"),
        Index("ix_job_artifacts_tenant_id_uploaded_at", "tenant_id", "uploaded_at"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    job_id: Mapped[str] = reference("jobs.id")
    attempt_id: Mapped[str | None] = reference("attempts.id", ondelete="SET NULL", index=True)
    path: Mapped[str] = mapped_column(exact_text(MAX_PATH_LENGTH))
    path_sha256: Mapped[str] = mapped_column(String(_PATH_HASH_LENGTH))
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(SHA256_LENGTH))
    modified_at: Mapped[datetime]
    uploaded_at: Mapped[datetime]
    attempt: Mapped[Attempt | None] = relationship(lazy="joined")


class ArtifactPart(Base):
    """A part of an artifact's content, by its position."""

    __tablename__ = "job_artifact_parts"

    artifact_id: Mapped[str] = reference("job_artifacts.id", primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    sha256: Mapped[str] = mapped_column(String(SHA256_LENGTH))
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    tenant_id: Mapped[str] = reference("tenants.id")

    __table_args__ = (Index("ix_job_artifact_parts_tenant_id_sha256", "tenant_id", "sha256"),)


class ResultReport(Base):
    """What an appliance says of the results of an attempt: what waits, and what is left out."""

    __tablename__ = "job_result_reports"

    attempt_id: Mapped[str] = reference("attempts.id", primary_key=True)
    tenant_id: Mapped[str] = reference("tenants.id", index=True)
    pending_files: Mapped[int] = mapped_column(BigInteger, default=0)
    pending_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    message: Mapped[str] = mapped_column(Text, default="")
    reported_at: Mapped[datetime]
