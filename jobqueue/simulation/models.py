"""The table of simulations of a tenant's own recorded jobs."""

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import Text
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from jobqueue.models import LongText
from tenants.models import enum_column
from tenants.models.audit import Audited
from tenants.models.columns import reference


class SimulationState(StrEnum):
    """Where a simulation is; an interrupted one ended with the scheduler that ran it."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def is_final(self) -> bool:
        """Return whether it has ended."""
        return self not in UNFINISHED


UNFINISHED = (SimulationState.WAITING, SimulationState.RUNNING)


class Simulation(Base):
    """Jobs of a period, replayed under today's rules and changed ones.

    Attributes:
        since: the begin of the period of submission.
        until: its end, exclusive.
        changes: what differs from today, as `jobqueue.simulation.scenarios.Changes`.
        progress_percent: the part of the replays that is done.
        message: why it failed.
        results: the results as JSON, as `jobqueue.simulation.results.Comparison`.
    """

    __tablename__ = "simulations"
    audited: ClassVar = Audited(kind="simulation", name="id", fields=("since", "until", "changes"))

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id", index=True)
    since: Mapped[datetime]
    until: Mapped[datetime]
    changes: Mapped[dict[str, Any]]
    state: Mapped[SimulationState] = mapped_column(
        enum_column(SimulationState), default=SimulationState.WAITING, index=True
    )
    progress_percent: Mapped[int] = mapped_column(default=0)
    message: Mapped[str] = mapped_column(Text, default="")
    created_by: Mapped[str | None] = reference("users.id", ondelete="SET NULL")
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    results: Mapped[str | None] = mapped_column(LongText, deferred=True)
