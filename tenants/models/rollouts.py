"""Tables of rollouts: a tenant's updates of its agents, in stages."""

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from sqlalchemy import JSON, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from core.db import Base, id_column
from tenants.models.appliances import Appliance
from tenants.models.audit import Audited
from tenants.models.columns import enum_column, reference, tenant_column


class RolloutState(StrEnum):
    """The state of a rollout; the last two are final."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    CANCELED = "canceled"

    @property
    def is_final(self) -> bool:
        """Whether the rollout has ended."""
        return self in {RolloutState.COMPLETED, RolloutState.CANCELED}


class ApplianceUpdateState(StrEnum):
    """The state of an appliance in a rollout; the last three are final."""

    WAITING = "waiting"
    UPDATING = "updating"
    UPDATED = "updated"
    FAILED = "failed"
    SKIPPED = "skipped"


class AgentRollout(Base):
    """An update of a tenant's agents to the portal's version, a share of each site at a time.

    `sites` limits it, if any are named. `stage_percents` are the shares that are updated once each
    stage has ended, the last of them 100. A stage is followed by `soak_seconds`, counted from
    `soaking_since`, in which its appliances must stay healthy. More than `max_failures` since the
    last resume pause the rollout; `reason` says why.
    """

    __tablename__ = "agent_rollouts"
    audited: ClassVar = Audited(
        kind="agent_rollout",
        name="version",
        fields=("version", "sites", "stage_percents", "soak_seconds", "max_failures", "state"),
        created="started",
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    version: Mapped[str] = mapped_column(String(50))
    requirements_sha256: Mapped[str] = mapped_column(String(64))
    sites: Mapped[list[str]] = mapped_column(default=list)
    stage_percents: Mapped[list[int]] = mapped_column(JSON, default=list)
    soak_seconds: Mapped[int]
    max_failures: Mapped[int]
    accepted_failures: Mapped[int] = mapped_column(default=0)
    state: Mapped[RolloutState] = mapped_column(enum_column(RolloutState), index=True)
    reason: Mapped[str] = mapped_column(String(500), default="")
    stage: Mapped[int] = mapped_column(default=0)
    soaking_since: Mapped[datetime | None]
    created_by: Mapped[str | None] = reference("users.id", ondelete="SET NULL")
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    updates: Mapped[list["ApplianceUpdate"]] = relationship(
        back_populates="rollout", passive_deletes=True, lazy="raise"
    )


class ApplianceUpdate(Base):
    """An appliance in a rollout: which stage it belongs to, and what came of its update."""

    __tablename__ = "appliance_updates"
    __table_args__ = (
        UniqueConstraint("rollout_id", "appliance_id"),
        Index("ix_appliance_updates_state_started_at", "state", "started_at"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    rollout_id: Mapped[str] = reference("agent_rollouts.id")
    appliance_id: Mapped[str] = reference("appliances.id")
    stage: Mapped[int]
    state: Mapped[ApplianceUpdateState] = mapped_column(enum_column(ApplianceUpdateState))
    message: Mapped[str] = mapped_column(String(500), default="")
    from_version: Mapped[str] = mapped_column(String(50), default="")
    health_before: Mapped[str] = mapped_column(String(32), default="")
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    rollout: Mapped[AgentRollout] = relationship(back_populates="updates", lazy="raise")
    appliance: Mapped[Appliance] = relationship(lazy="joined")
