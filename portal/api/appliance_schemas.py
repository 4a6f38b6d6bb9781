"""Schemas of an appliance: its state, its health, its inventory and the processes on its GPUs.

Health, inventory and processes are what the agent reported in its last heartbeat.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, get_args, get_origin

import msgspec
from marshmallow import Schema, fields

from portal.api.cluster_schemas import ApplianceNameSchema, ClusterNodeSchema, ClusterSchema
from portal.api.schemas import about, instant
from protocol.clusters import ClusterKind
from protocol.gpu_processes import GPUProcess
from protocol.health import ApplianceHealth, HealthReason, HealthState
from protocol.inventory import Inventory
from tenants.fleet.appliances import read_gpu_processes
from tenants.fleet.clusters import read_cluster, read_node
from tenants.fleet.states import SKEW_LIMIT_SECONDS, EffectiveStatus, effective_status_of
from tenants.models import Appliance, ApplianceState

DESCRIPTIONS = {
    "appliance_class": "Such as `8 x flagship` or `cpu`.",
    "boot_id": "Changes with every boot of the host.",
    "cpu_count": "Hardware threads.",
    "detail": "The problem in words, with values.",
    "has_unified_memory": "The GPU shares the host's memory, whose size `memory_bytes` then is.",
    "implausible_readings": "Values that the agent dropped since it started: they can't be true.",
    "last_at": "When the last of them was read.",
    "kind": "`NV<n>` (n NVLinks), `PIX`, `PXB`, `PHB`, `NODE` or `SYS`.",
    "reason": "Stable identifier; docs/health.md explains each.",
    "memory_bytes": "Null if unknown.",
    "owner": "`job`, `container` (one that runs no job) or `host`.",
    "series": "The tags that tell the series from others, such as `gpu=3`.",
    "value": "The last of the values.",
    "remote": "UUID of a GPU, `switch`, or empty if the driver reports none.",
    "speed_bits_per_second": "0 while the link is down.",
    "tier": "Performance tier; empty if unknown.",
}
# Clusters have schemas of their own.
_ELSEWHERE = (Inventory, "cluster")
CHOICES = {"reason": HealthReason, "state": HealthState}
_FIELDS: dict[Any, type[fields.Field[Any]]] = {
    bool: fields.Boolean,
    int: fields.Integer,
    float: fields.Float,
}


class _MemorySize(fields.Integer):
    """A size that agents report as 0 if it is unknown."""

    def _serialize(self, value: Any, attr: str | None, obj: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return super()._serialize(value or None, attr, obj, **kwargs)


@cache
def _schema_of(struct: type[msgspec.Struct]) -> type[Schema]:
    """Return the schema of a struct of the protocol, with the same fields."""
    name = struct.__name__.removesuffix("Info")
    schema_fields = {
        field.name: _field(field.name, field.type)
        for field in msgspec.structs.fields(struct)
        if (struct, field.name) != _ELSEWHERE
    }
    return Schema.from_dict(schema_fields, name=f"{name}Schema")


def _field(name: str, kind: Any) -> fields.Field[Any]:  # noqa: ANN401 - a type
    if get_origin(kind) is Annotated:  # with a limit, which matters to agents only
        kind = get_args(kind)[0]
    if get_origin(kind) is list:
        return fields.List(_field("", *get_args(kind)))
    if get_origin(kind) is dict:
        keys, values = (_field("", part) for part in get_args(kind))
        return fields.Dict(keys=keys, values=values)
    if issubclass(kind, msgspec.Struct):
        return fields.Nested(_schema_of(kind))
    metadata: dict[str, Any] = {}
    if name in DESCRIPTIONS:
        metadata["description"] = DESCRIPTIONS[name]
    if name in CHOICES:
        metadata["enum"] = [member.value for member in CHOICES[name]]
    if name == "memory_bytes":
        return _MemorySize(allow_none=True, metadata=metadata)
    return _FIELDS.get(kind, fields.String)(metadata=metadata)


_READERS: Mapping[str, Callable[[Appliance], Any]] = {
    "gpu_processes": read_gpu_processes,
    "cluster": read_cluster,
    "node": read_node,
}


class ApplianceSchema(Schema):
    """An enrolled host, or a node of a cluster."""

    id = fields.String()
    tenant_id = fields.String()
    name = fields.String()
    site = fields.String()
    region = fields.String()
    labels = fields.Dict(keys=fields.String(), values=fields.String())
    status = fields.Enum(
        EffectiveStatus,
        by_value=True,
        **about("Effective status: decides what the appliance can do."),
    )
    state = fields.Enum(
        ApplianceState,
        by_value=True,
        **about("Connection state, from the time of the last heartbeat."),
    )
    health_state = fields.Enum(
        HealthState, by_value=True, allow_none=True, **about("Null if the agent reports none.")
    )
    health = fields.Nested(_schema_of(ApplianceHealth), allow_none=True)
    inventory = fields.Nested(_schema_of(Inventory))
    connector = fields.Nested(
        ApplianceNameSchema,
        allow_none=True,
        **about("Of a node of a cluster: the appliance whose agent reports it."),
    )
    cluster_kind = fields.String(
        **about(
            "Of a connector: the kind of its cluster; empty otherwise.",
            enum=["", *(kind.value for kind in ClusterKind)],
        )
    )
    cluster = fields.Nested(
        ClusterSchema,
        allow_none=True,
        **about("Of a connector, as it reported it last; null otherwise."),
    )
    node = fields.Nested(
        ClusterNodeSchema,
        allow_none=True,
        **about("Of a node of a cluster, as its connector reported it last; null otherwise."),
    )
    gpu_processes = fields.List(
        fields.Nested(_schema_of(GPUProcess)),
        allow_none=True,
        **about("Null while the appliance is offline or reports none."),
    )
    gpu_count = fields.Integer()
    gpu_model = fields.String(**about("Several models are comma-separated."))
    appliance_class = fields.String()
    agent_version = fields.String()
    access_point = fields.String(
        **about("The address that the agent uses; empty if it does not say.")
    )
    clock_skew_seconds = fields.Float(
        allow_none=True,
        **about(
            "Positive if the agent's clock is ahead of the portal's. Check the "
            f"clock if the skew exceeds {SKEW_LIMIT_SECONDS:g} s in either direction."
        ),
    )
    enrolled_at = instant()
    last_seen_at = instant()
    drained_at = instant()
    drain_deadline_at = instant(**about("When jobs that still run on a drained appliance move."))
    quarantined_at = instant(**about("Since when it gets no jobs, as they failed to start there."))
    quarantine_reason = fields.String()
    retired_at = instant()
    revoked_at = instant()
    fenced_at = instant()

    def get_attribute(self, obj: Any, attr: str, default: Any) -> Any:  # noqa: ANN401 - marshmallow's
        """Return an attribute."""
        if attr == "status":
            return effective_status_of(obj)
        connector = None if obj.connector_id is None else obj.connector
        if attr == "connector":
            return connector
        if attr == "last_seen_at" and connector is not None:
            return connector.last_seen_at  # what is heard of the node comes from there
        if attr in _READERS:
            return _READERS[attr](obj)
        return super().get_attribute(obj, attr, default)


class BriefApplianceSchema(ApplianceSchema):
    """An enrolled host or a node of a cluster, without inventory, health and GPU processes."""

    class Meta:
        """marshmallow's options."""

        exclude = ("inventory", "health", "gpu_processes", "cluster", "node")
