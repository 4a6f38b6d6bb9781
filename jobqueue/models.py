"""Tables of jobs, attempts, their history and their logs."""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import Mapped, mapped_column, relationship

from core.db import Base, id_column
from core.ids import ID_LENGTH
from jobqueue.states import AttemptState, JobKind, JobState, Reason
from tenants.models import Appliance, User, enum_column
from tenants.models.audited import Audited

LogBytes = LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")


class Job(Base):
    """What a user submitted. Figures are the request: cores, bytes, whole GPUs."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_tenant_id_state", "tenant_id", "state"),
        Index("ix_jobs_tenant_id_id", "tenant_id", "id"),
    )
    # What becomes of a job is told in its own history.
    audited: ClassVar = Audited(
        kind="job",
        name="name",
        fields=(
            "name", "kind", "image", "command", "gpus", "gpu_memory_bytes", "cpus", "memory_bytes",
            "appliance_id", "stop_requested_at",
        ),
        verbs={"stop_requested_at": ("stop_requested", "stop_withdrawn")},
        created="submitted",
    )  # fmt: skip

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("tenants.id", ondelete="CASCADE")
    )
    user_id: Mapped[str | None] = mapped_column(
        String(ID_LENGTH), ForeignKey("users.id", ondelete="SET NULL"), index=True
    )
    name: Mapped[str] = mapped_column(String(100))
    kind: Mapped[JobKind] = mapped_column(enum_column(JobKind))
    image: Mapped[str] = mapped_column(String(300))
    command: Mapped[list[str]] = mapped_column(default=list)
    env: Mapped[dict[str, str]] = mapped_column(default=dict)
    gpus: Mapped[int] = mapped_column(default=0)
    gpu_memory_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    cpus: Mapped[float] = mapped_column(default=1.0)
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    appliance_id: Mapped[str | None] = mapped_column(
        String(ID_LENGTH), ForeignKey("appliances.id", ondelete="SET NULL"), index=True
    )
    """The one appliance that the user asked for; None lets placement choose."""
    state: Mapped[JobState] = mapped_column(enum_column(JobState))
    reason: Mapped[Reason] = mapped_column(enum_column(Reason), default=Reason.NONE)
    message: Mapped[str] = mapped_column(Text, default="")
    exit_code: Mapped[int | None]
    submitted_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    stop_requested_at: Mapped[datetime | None]
    user: Mapped[User | None] = relationship(lazy="joined")
    attempts: Mapped[list["Attempt"]] = relationship(
        back_populates="job", order_by="Attempt.number", lazy="selectin"
    )

    @property
    def attempt(self) -> "Attempt | None":
        """The newest attempt, if it was placed yet."""
        return self.attempts[-1] if self.attempts else None


class Attempt(Base):
    """One try at a job on one appliance. `placement` explains the choice (see `placement.py`)."""

    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("job_id", "number"),
        Index("ix_attempts_appliance_id_state", "appliance_id", "state"),
    )

    id: Mapped[str] = id_column()
    job_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("jobs.id", ondelete="CASCADE")
    )
    tenant_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("tenants.id", ondelete="CASCADE"), index=True
    )
    appliance_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("appliances.id", ondelete="CASCADE")
    )
    number: Mapped[int]
    state: Mapped[AttemptState] = mapped_column(enum_column(AttemptState))
    reason: Mapped[Reason] = mapped_column(enum_column(Reason), default=Reason.NONE)
    message: Mapped[str] = mapped_column(Text, default="")
    gpu_uuids: Mapped[list[str]] = mapped_column(default=list)
    placement: Mapped[dict[str, Any]] = mapped_column(default=dict)
    exit_code: Mapped[int | None]
    bound_at: Mapped[datetime]
    assigned_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    log_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    job: Mapped[Job] = relationship(back_populates="attempts", lazy="joined")
    appliance: Mapped[Appliance] = relationship(lazy="joined")


class JobEvent(Base):
    """A line of a job's history: what changed, when and why."""

    __tablename__ = "job_events"

    id: Mapped[str] = id_column()
    job_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("jobs.id", ondelete="CASCADE"), index=True
    )
    tenant_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("tenants.id", ondelete="CASCADE"), index=True
    )
    state: Mapped[JobState] = mapped_column(enum_column(JobState))
    reason: Mapped[Reason] = mapped_column(enum_column(Reason), default=Reason.NONE)
    message: Mapped[str] = mapped_column(Text, default="")
    at: Mapped[datetime]


class LogChunk(Base):
    """A piece of an attempt's output; `offset` is its place in bytes."""

    __tablename__ = "attempt_log_chunks"

    attempt_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True
    )
    offset: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    data: Mapped[bytes] = mapped_column(LogBytes)
