"""Tables of appliances, enrollment tokens, events and outages."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

import msgspec
from sqlalchemy import JSON, BigInteger, Index, String, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column, relationship, validates

from core.db import Base, id_column
from core.ids import ID_LENGTH, new_id
from protocol.health import HealthState
from protocol.inventory import Inventory
from tenants.models.audit import Audited
from tenants.models.columns import enum_column, reference, secret_hash_column, tenant_column
from tenants.models.users import Tenant

MAX_MODEL_LENGTH = 200
MAX_CLASS_LENGTH = 100


class ApplianceState(StrEnum):
    """The connection state of an appliance, by the time since its last heartbeat.

    A host without an agent has no heartbeats: it is `reporting` while its samples arrive, else
    `silent`.
    """

    ENROLLED = "enrolled"
    ONLINE = "online"
    STALE = "stale"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    REPORTING = "reporting"
    SILENT = "silent"


class EnrollmentToken(Base):
    """A secret with which a number of appliances can enroll in a tenant.

    With an `appliance_id`, only that appliance can enroll again, with a new identity.
    """

    __tablename__ = "enrollment_tokens"
    audited: ClassVar = Audited(
        kind="enrollment_token",
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
    appliance_id: Mapped[str | None] = reference("appliances.id")
    created_by: Mapped[str | None] = reference("users.id", ondelete="SET NULL")
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


class WriteToken(Base):
    """A secret with which programs other than the agent send samples of hosts.

    `appliance_pattern` is the name of an appliance or a shell pattern of names.
    """

    __tablename__ = "write_tokens"
    audited: ClassVar = Audited(
        kind="write_token",
        name="name",
        fields=("name", "appliance_pattern", "expires_at", "revoked_at"),
        verbs={"revoked_at": ("revoked", "restored")},
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    name: Mapped[str] = mapped_column(String(100), default="")
    appliance_pattern: Mapped[str] = mapped_column(String(100))
    secret_hash: Mapped[str] = secret_hash_column()
    created_by: Mapped[str | None] = reference("users.id", ondelete="SET NULL")
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Appliance(Base):
    """An enrolled host, or one whose samples other programs send.

    `inventory`, `health` and `gpu_processes` are `protocol.inventory.Inventory`,
    `protocol.health.ApplianceHealth` and a list of `protocol.gpu_processes.GPUProcess` as JSON;
    health and processes are null if the agent reports none.
    They may be large, so a query reads them only with `with_report()`. `report_id` changes with
    inventory and health, so that readers can cache them. `gpu_count`, `gpu_model`, `cluster_kind`,
    `health_state` and `appliance_class` repeat parts of them for lists and filters.
    `desired_generation` counts changes of the desired state, which agents poll. `instance_id` is
    the agent's current run, `past_instances` the former ones: two concurrent runs fence the
    appliance. `sender` is the program and the write token whose readings count as ours, on a host
    without an agent. `last_placed_at` is when a job was last placed on it;
    at `drain_deadline_at`, the jobs that still run on a drained one move. `quarantined_at`,
    `quarantine_reason`, `quarantine_ended_at` (the last time), `probe_number` and `probe_at` (the
    next one) are for `jobqueue.jobs.quarantine`. `can_update` says that its host has the update
    service, `update_id` which `ApplianceUpdate` that service shall make now. `cluster_kind` is set
    of a connector, `connector_id` of a node of its cluster: see `tenants.fleet.nodes`.
    """

    __tablename__ = "appliances"
    audited: ClassVar = Audited(
        kind="appliance",
        name="name",
        fields=(
            "name",
            "site",
            "region",
            "labels",
            "drained_at",
            "drain_deadline_at",
            "retired_at",
            "revoked_at",
            "fenced_at",
            "quarantined_at",
            "quarantine_reason",
        ),
        verbs={
            "name": ("renamed", "renamed"),
            "labels": ("relabeled", "relabeled"),
            "drained_at": ("drained", "undrained"),
            "drain_deadline_at": ("drain_deadline_set", "drain_deadline_removed"),
            "retired_at": ("retired", "reinstated"),
            "revoked_at": ("revoked", "restored"),
            "fenced_at": ("fenced", "unfenced"),
            "quarantined_at": ("quarantined", "released"),
        },
        created="enrolled",
    )
    __table_args__ = (
        UniqueConstraint("tenant_id", "name"),
        # Covers the list with any filter and order: rows are wide.
        Index(
            "ix_appliances_list",
            "tenant_id",
            "revoked_at",
            "retired_at",
            "name",
            "id",
            "state",
            "drained_at",
            "fenced_at",
            "quarantined_at",
            "health_state",
            "gpu_count",
            "gpu_model",
            "appliance_class",
            "site",
            "region",
        ),
        # Covers the values of the list's filters.
        Index(
            "ix_appliances_choices",
            "tenant_id",
            "revoked_at",
            "retired_at",
            "appliance_class",
            "site",
            "region",
            "gpu_model",
        ),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    name: Mapped[str] = mapped_column(String(100))
    site: Mapped[str] = mapped_column(String(100), default="")
    region: Mapped[str] = mapped_column(String(100), default="")
    labels: Mapped[dict[str, str]] = mapped_column(default=dict)
    state: Mapped[ApplianceState] = mapped_column(enum_column(ApplianceState))
    secret_hash: Mapped[str] = secret_hash_column()
    inventory: Mapped[dict[str, Any]] = mapped_column(default=dict, deferred_group="report")
    health: Mapped[dict[str, Any] | None] = mapped_column(
        JSON(none_as_null=True), deferred_group="report"
    )
    gpu_processes: Mapped[list[dict[str, Any]] | None] = mapped_column(
        JSON(none_as_null=True), deferred=True
    )
    report_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    health_state: Mapped[HealthState | None] = mapped_column(enum_column(HealthState))
    gpu_count: Mapped[int] = mapped_column(default=0)
    gpu_model: Mapped[str] = mapped_column(String(200), default="")
    appliance_class: Mapped[str] = mapped_column(String(100), default="")
    agent_version: Mapped[str] = mapped_column(String(50), default="")
    access_point: Mapped[str] = mapped_column(String(255), default="", server_default="")
    clock_skew_seconds: Mapped[float | None]
    desired_generation: Mapped[int] = mapped_column(BigInteger, default=1)
    enrolled_at: Mapped[datetime]
    last_seen_at: Mapped[datetime | None]
    drained_at: Mapped[datetime | None]
    drain_deadline_at: Mapped[datetime | None]
    last_placed_at: Mapped[datetime | None]
    retired_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    fenced_at: Mapped[datetime | None]
    quarantined_at: Mapped[datetime | None]
    quarantine_reason: Mapped[str] = mapped_column(String(500), default="")
    quarantine_ended_at: Mapped[datetime | None]
    probe_number: Mapped[int] = mapped_column(default=0)
    probe_at: Mapped[datetime | None]
    instance_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    sender: Mapped[str] = mapped_column(String(100), default="", server_default="")
    past_instances: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    can_update: Mapped[bool] = mapped_column(default=False, server_default=false())
    update_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    connector_id: Mapped[str | None] = mapped_column(String(ID_LENGTH), index=True)
    cluster_kind: Mapped[str] = mapped_column(String(20), default="", server_default="")
    tenant: Mapped[Tenant] = relationship()
    connector: Mapped["Appliance | None"] = relationship(
        primaryjoin="foreign(Appliance.connector_id) == remote(Appliance.id)",
        viewonly=True,
    )

    @validates("inventory")
    def _repeat_gpus(self, _key: str, inventory: dict[str, Any]) -> dict[str, Any]:
        for name, value in reported_gpus(decode_inventory(inventory)).items():
            setattr(self, name, value)
        self.report_id = new_id()
        return inventory

    @validates("health")
    def _repeat_class(self, _key: str, health: dict[str, Any] | None) -> dict[str, Any] | None:
        self.appliance_class = reported_class(health)["appliance_class"]
        self.report_id = new_id()
        return health


def decode_inventory(stored: Mapping[str, Any]) -> Inventory:
    """Return a stored inventory; an invalid one has no GPUs and no executors: it gets no jobs."""
    try:
        return msgspec.convert(stored, Inventory)
    except msgspec.ValidationError:
        return Inventory(hostname="")


def reported_gpus(inventory: Inventory) -> dict[str, Any]:
    """Return the columns that repeat an inventory's GPUs and cluster."""
    models = sorted({gpu.model for gpu in inventory.gpus if gpu.model})
    return {
        "gpu_count": len(inventory.gpus),
        "gpu_model": ", ".join(models)[:MAX_MODEL_LENGTH],
        "cluster_kind": inventory.cluster.kind.value if inventory.cluster else "",
    }


def reported_class(health: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the column that repeats the reported appliance class."""
    return {"appliance_class": str((health or {}).get("appliance_class", ""))[:MAX_CLASS_LENGTH]}


class ApplianceEvent(Base):
    """An event of an appliance, such as a change of state or health."""

    __tablename__ = "appliance_events"
    __table_args__ = (
        Index("ix_appliance_events_appliance_id_at", "appliance_id", "at"),
        Index("ix_appliance_events_at", "at"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    appliance_id: Mapped[str] = reference("appliances.id")
    at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(String(50))
    message: Mapped[str] = mapped_column(String(500))
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)


class FleetOutage(Base):
    """A mass outage: so many appliances were unreachable at once that the portal may be the cause.

    The sweep starts and ends it. `released_at` is when an operator released the mass-outage guard,
    `notified_at` when the operators were notified.
    """

    __tablename__ = "fleet_outages"

    id: Mapped[str] = id_column()
    began_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    unreachable_count: Mapped[int]
    fleet_count: Mapped[int]
    notified_at: Mapped[datetime | None]
    released_at: Mapped[datetime | None]
    released_by: Mapped[str | None] = reference("users.id", ondelete="SET NULL")


class LateSamples(Base):
    """Samples of an appliance that arrived late, so that rules must be evaluated for them again.

    Rows last a moment, and may outlast their tenant: writing one must not fail.
    """

    __tablename__ = "late_samples"

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    appliance_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    measurements: Mapped[list[str]] = mapped_column(default=list)
    first_at: Mapped[datetime]
    """The time of the oldest of the samples."""
    last_at: Mapped[datetime]
    """The time of the newest."""
    arrived_at: Mapped[datetime]


class TunnelHolder(Base):
    """The process of the portal that holds the tunnel of an appliance, or wants to.

    `holder_url` is where other processes reach it.
    """

    __tablename__ = "tunnels"

    appliance_id: Mapped[str] = reference("appliances.id", primary_key=True)
    holder_url: Mapped[str] = mapped_column(String(255))
