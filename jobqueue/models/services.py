"""Tables of services: rolling updates, what a service that scales remembers, and its traffic."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base
from core.ids import ID_LENGTH
from jobqueue.states import UpdateState
from tenants.models.columns import enum_column, reference, tenant_column


class ServiceUpdate(Base):
    """The latest rolling update of a service; see `jobqueue.services.rolling_updates`."""

    __tablename__ = "service_updates"

    service_id: Mapped[str] = reference("jobs.id", primary_key=True)
    """The first instance."""
    tenant_id: Mapped[str] = tenant_column()
    revision: Mapped[int]
    values: Mapped[dict[str, Any]]
    """Columns of the instances after it, and `previous` before it."""
    previous: Mapped[dict[str, Any]]
    changed: Mapped[list[str]]
    """Fields of the request; none if it only restarts the instances."""
    state: Mapped[UpdateState] = mapped_column(enum_column(UpdateState), index=True)
    message: Mapped[str] = mapped_column(Text, default="")
    requested_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class ServiceScaler(Base):
    """What a service that scales remembers; see `jobqueue.services.autoscaling`.

    Attributes:
        memory: as `jobqueue.services.autoscaling.decision.Memory`.
        traffic: as `jobqueue.services.autoscaling.traffic.Traffic`.
        evaluate_at: when the next decision is due.
        load: what the last decision saw of its metric, as a sum of all instances.
        cost_hold: why it has its fewest instances alone: its highest cost is reached; "" if not.
        why: of the last decision; `is_refused` if it could not add instances.
        woken_at: since when it wakes; None once it serves.
        wake_seconds: how long the last wake-up took.
    """

    __tablename__ = "service_scalers"

    service_id: Mapped[str] = reference("jobs.id", primary_key=True)
    """The first instance."""
    tenant_id: Mapped[str] = tenant_column()
    memory: Mapped[dict[str, Any]] = mapped_column(default=dict)
    traffic: Mapped[dict[str, Any]] = mapped_column(default=dict)
    evaluate_at: Mapped[datetime] = mapped_column(index=True)
    wanted: Mapped[int | None]
    load: Mapped[float | None]
    why: Mapped[str] = mapped_column(String(500), default="")
    is_refused: Mapped[bool] = mapped_column(default=False)
    cost_hold: Mapped[str] = mapped_column(String(200), default="", server_default="")
    decided_at: Mapped[datetime | None]
    woken_at: Mapped[datetime | None]
    wake_seconds: Mapped[float | None]


class ServiceTraffic(Base):
    """The requests that a process of the portal passed on to a service.

    Attributes:
        requests: how many there were.
        busy_seconds: the sum of their durations.
    """

    __tablename__ = "service_traffic"

    service_id: Mapped[str] = reference("jobs.id", primary_key=True)
    process_id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant_id: Mapped[str] = tenant_column()
    requests: Mapped[int] = mapped_column(BigInteger)
    busy_seconds: Mapped[float]
    updated_at: Mapped[datetime]
