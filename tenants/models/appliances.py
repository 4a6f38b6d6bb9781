"""Tables of appliances: how they join, what they are, what happened to them."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship, validates

from core.db import Base, id_column
from core.ids import ID_LENGTH
from tenants.models.audited import Audited
from tenants.models.columns import enum_column, secret_hash_column, tenant_column
from tenants.models.people import Tenant

MAX_MODEL_LENGTH = 200
MAX_CLASS_LENGTH = 100


class ApplianceState(StrEnum):
    """What the portal's clock makes of an appliance's silence."""

    ENROLLED = "enrolled"
    ONLINE = "online"
    STALE = "stale"
    UNREACHABLE = "unreachable"
    LOST = "lost"


class HealthState(StrEnum):
    """What an appliance's agent makes of its devices; null in the database is unknown."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAILED = "failed"


class EnrolmentToken(Base):
    """A secret that lets appliances join a tenant, a limited number of times.

    With an `appliance_id` it lets that appliance alone join again, under a new identity.
    """

    __tablename__ = "enrolment_tokens"
    audited: ClassVar = Audited(
        kind="enrolment_token",
        name="name",
        fields=("name", "site", "region", "labels", "uses", "expires_at", "revoked_at"),
        verbs={"revoked_at": ("revoked", "restored")},
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    name: Mapped[str] = mapped_column(String(100), default="")
    secret_hash: Mapped[str] = secret_hash_column()
    site: Mapped[str] = mapped_column(String(100), default="")
    region: Mapped[str] = mapped_column(String(100), default="")
    labels: Mapped[dict[str, str]] = mapped_column(default=dict)
    uses: Mapped[int] = mapped_column(default=1)
    uses_left: Mapped[int]
    appliance_id: Mapped[str | None] = mapped_column(
        String(ID_LENGTH), ForeignKey("appliances.id", ondelete="CASCADE")
    )
    created_by: Mapped[str | None] = mapped_column(
        String(ID_LENGTH), ForeignKey("users.id", ondelete="SET NULL")
    )
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


class Appliance(Base):
    """An enrolled host. `inventory` holds `jobqueue.executors.wire.Inventory` as JSON.

    `health` holds `jobqueue.executors.health.ApplianceHealth`; null where the agent tells none.
    `desired_generation` counts changes of what should run there: agents wait for it to move.
    Revoked is shut out for good; retired is taken out of service by its owner, its history kept.
    Fenced is shut out because two agents used its identity at once: `instance_id` names the run of
    the agent that was heard last, `past_instances` the runs before it. `gpu_count`, `gpu_model` and
    `appliance_class` repeat what inventory and health say, so that lists are narrowed by them.
    """

    __tablename__ = "appliances"
    audited: ClassVar = Audited(
        kind="appliance",
        name="name",
        fields=(
            "name", "site", "region", "labels", "drained_at", "retired_at", "revoked_at",
            "fenced_at",
        ),
        verbs={
            "name": ("renamed", "renamed"),
            "labels": ("relabelled", "relabelled"),
            "drained_at": ("drained", "undrained"),
            "retired_at": ("retired", "reinstated"),
            "revoked_at": ("revoked", "restored"),
            "fenced_at": ("fenced", "unfenced"),
        },
        created="enrolled",
    )  # fmt: skip
    __table_args__ = (
        UniqueConstraint("tenant_id", "name"),
        # A page of the list, and its total, without a look at any row, however it is sorted and
        # searched: rows are wide.
        Index(
            "ix_appliances_list",
            "tenant_id", "revoked_at", "retired_at", "name", "id", "state", "drained_at",
            "fenced_at", "health_state", "gpu_count", "gpu_model", "appliance_class", "site",
            "region",
        ),
        # What the list can be narrowed by.
        Index(
            "ix_appliances_choices",
            "tenant_id", "revoked_at", "retired_at", "appliance_class", "site", "region",
            "gpu_model",
        ),
    )  # fmt: skip

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    name: Mapped[str] = mapped_column(String(100))
    site: Mapped[str] = mapped_column(String(100), default="")
    region: Mapped[str] = mapped_column(String(100), default="")
    labels: Mapped[dict[str, str]] = mapped_column(default=dict)
    state: Mapped[ApplianceState] = mapped_column(enum_column(ApplianceState))
    secret_hash: Mapped[str] = secret_hash_column()
    inventory: Mapped[dict[str, Any]] = mapped_column(default=dict)
    health: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    health_state: Mapped[HealthState | None] = mapped_column(enum_column(HealthState))
    gpu_count: Mapped[int] = mapped_column(default=0)
    gpu_model: Mapped[str] = mapped_column(String(200), default="")
    appliance_class: Mapped[str] = mapped_column(String(100), default="")
    agent_version: Mapped[str] = mapped_column(String(50), default="")
    clock_skew_seconds: Mapped[float | None]
    desired_generation: Mapped[int] = mapped_column(BigInteger, default=1)
    enrolled_at: Mapped[datetime]
    last_seen_at: Mapped[datetime | None]
    drained_at: Mapped[datetime | None]
    retired_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    fenced_at: Mapped[datetime | None]
    instance_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    past_instances: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    tenant: Mapped[Tenant] = relationship(lazy="joined")

    @validates("inventory")
    def _repeat_gpus(self, _key: str, inventory: dict[str, Any]) -> dict[str, Any]:
        for name, value in gpus_told(inventory).items():
            setattr(self, name, value)
        return inventory

    @validates("health")
    def _repeat_class(self, _key: str, health: dict[str, Any] | None) -> dict[str, Any] | None:
        self.appliance_class = class_told(health)["appliance_class"]
        return health


def gpus_told(inventory: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that repeat an inventory's GPUs: how many, and of which models.

    Nothing is made of what is not written as an inventory is.
    """
    told = inventory.get("gpus")
    gpus = [gpu for gpu in told if isinstance(gpu, Mapping)] if isinstance(told, list) else []
    models = sorted({str(gpu["model"]) for gpu in gpus if gpu.get("model")})
    return {"gpu_count": len(gpus), "gpu_model": ", ".join(models)[:MAX_MODEL_LENGTH]}


def class_told(health: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the column that repeats the class that an appliance's agent tells."""
    return {"appliance_class": str((health or {}).get("appliance_class", ""))[:MAX_CLASS_LENGTH]}


class ApplianceEvent(Base):
    """Something that happened to an appliance: a change of state or health, a certificate."""

    __tablename__ = "appliance_events"
    __table_args__ = (
        Index("ix_appliance_events_appliance_id_at", "appliance_id", "at"),
        Index("ix_appliance_events_at", "at"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    appliance_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("appliances.id", ondelete="CASCADE")
    )
    at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(String(50))
    message: Mapped[str] = mapped_column(String(500))
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)


class FleetOutage(Base):
    """A time in which so much of the fleet was silent together that the portal suspected itself.

    It began and ended by the sweep; `released_at` is when an operator said that the silent ones are
    gone indeed, `told_at` when the operators were told of it.
    """

    __tablename__ = "fleet_outages"

    id: Mapped[str] = id_column()
    began_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    silent_count: Mapped[int]
    fleet_count: Mapped[int]
    told_at: Mapped[datetime | None]
    released_at: Mapped[datetime | None]
    released_by: Mapped[str | None] = mapped_column(
        String(ID_LENGTH), ForeignKey("users.id", ondelete="SET NULL")
    )
