"""`/appliances`: enrolled hosts, what happened to them, and what may be done with them."""

from typing import Any

from marshmallow import Schema, fields, validate
from sqlalchemy import inspect

from core.paging import Page
from jobqueue.retirement import retire as retire_idle
from portal.api.blueprint import resource
from portal.api.health_schemas import ApplianceHealthSchema
from portal.api.inventory_schemas import InventorySchema
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of
from portal.api.sorting import sort_field
from portal.context import current_scope, database, now
from tenants.fleet.appliance_list import SORTS, UNKNOWN
from tenants.fleet.appliances import (
    ApplianceChanges,
    ApplianceFilter,
    change_appliance,
    drain_appliance,
    get_appliance,
    list_appliances,
    reinstate_appliance,
    revoke_appliance,
    undrain_appliance,
)
from tenants.fleet.events import EVENT_SORTS, EventKind, list_events
from tenants.fleet.life import SKEW_LIMIT_SECONDS, LifeState, life_of
from tenants.models import Appliance, ApplianceEvent, ApplianceState, HealthState
from tenants.permissions import Permission

appliances = resource(
    "Appliances", "/appliances", "Enrolled hosts.", changes=Permission.MANAGE_APPLIANCES
)

_LARGE = frozenset({"inventory", "health"})
# What its heartbeats change: the ETag leaves it out.
_VOLATILE = frozenset(
    {"life", "state", "health_state", "clock_skew_seconds", "last_seen_at", "agent_version"}
    | _LARGE
)


class ApplianceSchema(Schema):
    """An enrolled host with what it has."""

    id = fields.String()
    tenant_id = fields.String()
    name = fields.String()
    site = fields.String()
    region = fields.String()
    labels = fields.Dict(keys=fields.String(), values=fields.String())
    life = fields.Enum(
        LifeState,
        by_value=True,
        metadata={"description": "What it is, in the one word that decides what it can do."},
    )
    state = fields.Enum(
        ApplianceState, by_value=True, metadata={"description": "What its silence makes of it."}
    )
    health_state = fields.Enum(
        HealthState,
        by_value=True,
        allow_none=True,
        metadata={"description": "Null where the agent tells none."},
    )
    health = fields.Nested(ApplianceHealthSchema, allow_none=True)
    inventory = fields.Nested(InventorySchema)
    gpu_count = fields.Integer()
    gpu_model = fields.String(metadata={"description": "Several models have commas between."})
    appliance_class = fields.String()
    agent_version = fields.String()
    clock_skew_seconds = fields.Float(
        allow_none=True,
        metadata={
            "description": "Positive where the agent's clock is ahead of the portal's. More than "
            f"{SKEW_LIMIT_SECONDS:g} s either way should be looked at."
        },
    )
    enrolled_at = instant()
    last_seen_at = instant()
    drained_at = instant()
    retired_at = instant()
    revoked_at = instant()
    fenced_at = instant()

    def get_attribute(self, obj: Any, attr: str, default: Any) -> Any:  # noqa: ANN401 - marshmallow's
        """Return an attribute; a brief list leaves out what was not read."""
        if attr == "life":
            return life_of(obj)
        if attr in _LARGE and attr in inspect(obj).unloaded:
            return default
        return super().get_attribute(obj, attr, default)


class ApplianceQuery(PageQuery):
    """Which appliances."""

    life = fields.Enum(
        LifeState,
        by_value=True,
        load_default=None,
        metadata={"description": "Without it, those in service: not retired and not revoked."},
    )
    state = fields.Enum(ApplianceState, by_value=True, load_default=None)
    health = fields.String(
        load_default=None,
        validate=validate.OneOf([*(state.value for state in HealthState), UNKNOWN]),
    )
    appliance_class = fields.String(load_default="")
    site = fields.String(load_default="")
    region = fields.String(load_default="")
    label = fields.String(load_default="", metadata={"description": "`rack` or `rack=b12`."})
    gpu_model = fields.String(load_default="")
    search = fields.String(
        load_default="", metadata={"description": "In name, site, region or GPU model."}
    )
    sort = sort_field(SORTS, default="name")
    is_brief = fields.Boolean(
        load_default=False, metadata={"description": "Without `inventory` and `health`."}
    )


class ApplianceChangeSchema(StrictSchema):
    """What shall be another; what is left out stays as it is."""

    name = fields.String()
    site = fields.String()
    region = fields.String()
    labels = fields.Dict(
        keys=fields.String(),
        values=fields.String(),
        metadata={"description": "In place of all that it has."},
    )


class EventQuery(PageQuery):
    """Which events."""

    kind = fields.Enum(EventKind, by_value=True, load_default=None)
    sort = sort_field(EVENT_SORTS, default="-at")


class ApplianceEventSchema(Schema):
    """Something that happened to an appliance."""

    id = fields.String()
    appliance_id = fields.String()
    at = instant()
    kind = fields.String()
    message = fields.String()
    details = fields.Dict(keys=fields.String())


@appliances.operation("GET", query=ApplianceQuery, answer=page_of(ApplianceSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List appliances."""
    paging = {name: query.pop(name) for name in ("page", "page_size", "sort", "is_brief")}
    health = query.pop("health")
    if health is not None and health != UNKNOWN:
        health = HealthState(health)
    wanted = ApplianceFilter(health=health, **query)
    with database() as session:
        return envelope(list_appliances(session, current_scope(), wanted, **paging))


@appliances.operation("GET", "/<appliance_id>", answer=ApplianceSchema, volatile=_VOLATILE)
def show(appliance_id: str) -> Appliance:
    """Return an appliance."""
    with database() as session:
        return get_appliance(session, current_scope(), appliance_id)


@appliances.operation(
    "PATCH", "/<appliance_id>", body=ApplianceChangeSchema, answer=ApplianceSchema, row=Appliance
)
def change(appliance_id: str, body: dict[str, Any]) -> Appliance:
    """Give an appliance another name, site or region, or other labels."""
    changes = ApplianceChanges(**body)
    with database() as session:
        return change_appliance(session, current_scope(), appliance_id, changes, now=now())


@appliances.operation(
    "GET", "/<appliance_id>/events", query=EventQuery, answer=page_of(ApplianceEventSchema)
)
def events(appliance_id: str, query: dict[str, Any]) -> dict[str, Any]:
    """List what happened to an appliance, the newest first."""
    with database() as session:
        found: Page[ApplianceEvent] = list_events(session, current_scope(), appliance_id, **query)
        return envelope(found)


@appliances.operation("POST", "/<appliance_id>/drain", answer=ApplianceSchema)
def drain(appliance_id: str) -> Appliance:
    """Give the appliance no more jobs; those that run go on."""
    with database() as session:
        return drain_appliance(session, current_scope(), appliance_id, now=now())


@appliances.operation("POST", "/<appliance_id>/undrain", answer=ApplianceSchema)
def undrain(appliance_id: str) -> Appliance:
    """Give the appliance jobs again."""
    with database() as session:
        return undrain_appliance(session, current_scope(), appliance_id, now=now())


@appliances.operation("POST", "/<appliance_id>/retire", answer=ApplianceSchema)
def retire(appliance_id: str) -> Appliance:
    """Take the appliance out of service, its history kept; 409 while jobs run on it."""
    with database() as session:
        return retire_idle(session, current_scope(), appliance_id, now=now())


@appliances.operation("POST", "/<appliance_id>/reinstate", answer=ApplianceSchema)
def reinstate(appliance_id: str) -> Appliance:
    """Take a retired appliance back into service."""
    with database() as session:
        return reinstate_appliance(session, current_scope(), appliance_id, now=now())


@appliances.operation("POST", "/<appliance_id>/revoke", answer=ApplianceSchema)
def revoke(appliance_id: str) -> Appliance:
    """Take the appliance's identity away for good; its agent is refused from now on."""
    with database() as session:
        return revoke_appliance(session, current_scope(), appliance_id, now=now())
