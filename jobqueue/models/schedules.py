"""Tables of what submits jobs: templates and schedules."""

from datetime import datetime
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from sqlalchemy import Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from core.db import Base, id_column
from jobqueue.models.jobs import Job, LongText
from jobqueue.states import Missed, Overlap, RunOutcome
from tenants.models import User
from tenants.models.audit import Audited
from tenants.models.columns import enum_column, reference, tenant_column


class JobTemplate(Base):
    """A job request that the users of a tenant start from; see `jobqueue.queue.templates`."""

    __tablename__ = "job_templates"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)
    audited: ClassVar = Audited(
        kind="job_template", name="name", fields=("name", "description", "request")
    )
    is_shipped: ClassVar = False

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    user_id: Mapped[str | None] = reference("users.id", ondelete="SET NULL", index=True)
    name: Mapped[str] = mapped_column(String(100))
    description: Mapped[str] = mapped_column(String(500))
    request: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    user: Mapped[User | None] = relationship(lazy="joined")


class JobSchedule(Base):
    """A job that is submitted on a schedule; see `jobqueue.queue.schedules`."""

    __tablename__ = "job_schedules"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)
    audited: ClassVar = Audited(
        kind="job_schedule",
        name="name",
        fields=("name", "schedule", "time_zone", "overlap", "missed", "is_enabled", "request"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    user_id: Mapped[str | None] = reference("users.id", ondelete="SET NULL", index=True)
    name: Mapped[str] = mapped_column(String(100))
    schedule: Mapped[str] = mapped_column(String(200))
    time_zone: Mapped[str] = mapped_column(String(64))
    overlap: Mapped[Overlap] = mapped_column(enum_column(Overlap))
    missed: Mapped[Missed] = mapped_column(enum_column(Missed))
    is_enabled: Mapped[bool] = mapped_column(default=True)
    request: Mapped[dict[str, Any]]
    secret_env: Mapped[str | None] = mapped_column(LongText)
    secret_names: Mapped[list[str]] = mapped_column(default=list)
    next_run_at: Mapped[datetime | None] = mapped_column(index=True)
    """None while it is disabled, and after its last time."""
    created_at: Mapped[datetime]
    user: Mapped[User | None] = relationship(lazy="joined")

    @property
    def local_next_run_at(self) -> datetime | None:
        """Its next time on the clock of its time zone."""
        at = self.next_run_at
        return None if at is None else at.astimezone(ZoneInfo(self.time_zone))


class ScheduleRun(Base):
    """One time at which a schedule was due, and what happened."""

    __tablename__ = "job_schedule_runs"
    __table_args__ = (Index("ix_job_schedule_runs_schedule_id_id", "schedule_id", "id"),)

    id: Mapped[str] = id_column()
    schedule_id: Mapped[str] = reference("job_schedules.id")
    tenant_id: Mapped[str] = tenant_column()
    due_at: Mapped[datetime]
    outcome: Mapped[RunOutcome] = mapped_column(enum_column(RunOutcome))
    message: Mapped[str] = mapped_column(Text, default="")
    job_id: Mapped[str | None] = reference("jobs.id", ondelete="SET NULL", index=True)
    job: Mapped[Job | None] = relationship(lazy="joined")
