"""Tables of projects, their members and their quotas."""

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from sqlalchemy import BigInteger, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from core.db import Base, id_column
from tenants.models import User, enum_column
from tenants.models.audit import Audited
from tenants.models.columns import reference, tenant_column, user_column

MAX_NAME_LENGTH = 100
MAX_DESCRIPTION_LENGTH = 500
MAX_MODEL_WORD_LENGTH = 100


class QuotaResource(StrEnum):
    """What a quota counts: whole GPUs, CPU cores, or bytes of memory."""

    GPUS = "gpus"
    CPUS = "cpus"
    MEMORY_BYTES = "memory_bytes"


class Project(Base):
    """A project of a tenant; without a parent it is directly below the tenant.

    Projects are archived, never deleted: jobs and the usage ledger refer to them.
    """

    __tablename__ = "projects"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)
    audited: ClassVar = Audited(
        kind="project",
        name="name",
        fields=("name", "parent_id", "description", "shares", "budget_label", "archived_at"),
        verbs={"archived_at": ("archived", "restored"), "name": ("renamed", "renamed")},
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    parent_id: Mapped[str | None] = reference("projects.id", index=True)
    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    description: Mapped[str] = mapped_column(String(MAX_DESCRIPTION_LENGTH), default="")
    shares: Mapped[int] = mapped_column(default=1)
    """What it gets in relation to its siblings; at least 1."""
    budget_label: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH), default="")
    """By which reports group projects, such as a cost center."""
    created_at: Mapped[datetime]
    archived_at: Mapped[datetime | None]


class ProjectMember(Base):
    """A user who may submit jobs to a project; the default one gets those that name none."""

    __tablename__ = "project_members"
    __table_args__ = (UniqueConstraint("project_id", "user_id"),)
    audited: ClassVar = Audited(
        kind="project_member",
        name="user.email",
        fields=("project_id", "user_id", "shares", "is_default"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    project_id: Mapped[str] = reference("projects.id")
    user_id: Mapped[str] = user_column()
    shares: Mapped[int] = mapped_column(default=1)
    is_default: Mapped[bool] = mapped_column(default=False)
    user: Mapped[User] = relationship(lazy="joined")
    project: Mapped[Project] = relationship(lazy="joined")


class ProjectQuota(Base):
    """What a project and those below it may use of one resource; None is no limit.

    Attributes:
        gpu_model: a word of the GPU model that it counts; "" for all.
        guaranteed: what it always gets, by stopping jobs of borrowers if need be.
        maximum: the most that it gets, borrowed or not.
        lending_limit: how much of its guarantee others may borrow while it is idle.
        borrowing_limit: how much it may borrow above its guarantee.
    """

    __tablename__ = "project_quotas"
    __table_args__ = (UniqueConstraint("project_id", "gpu_model", "resource"),)
    audited: ClassVar = Audited(
        kind="project_quota",
        name="project.name",
        fields=(
            *("project_id", "gpu_model", "resource"),
            *("guaranteed", "maximum", "lending_limit", "borrowing_limit"),
        ),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    project_id: Mapped[str] = reference("projects.id")
    gpu_model: Mapped[str] = mapped_column(String(MAX_MODEL_WORD_LENGTH), default="")
    resource: Mapped[QuotaResource] = mapped_column(enum_column(QuotaResource))
    guaranteed: Mapped[int] = mapped_column(BigInteger, default=0)
    maximum: Mapped[int | None] = mapped_column(BigInteger)
    lending_limit: Mapped[int | None] = mapped_column(BigInteger)
    borrowing_limit: Mapped[int | None] = mapped_column(BigInteger)
    project: Mapped[Project] = relationship(lazy="joined")
