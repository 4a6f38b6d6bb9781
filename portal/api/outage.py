"""`/fleet-outage`: whether the brake on mass outages holds."""

from typing import Any

from marshmallow import Schema, fields

from portal.api.blueprint import resource
from portal.api.schemas import instant
from portal.context import current_scope, database, now
from tenants.fleet.outages import present_outage, release_brake
from tenants.models import FleetOutage
from tenants.permissions import Permission

outage = resource(
    "Fleet outage", "/fleet-outage", "The brake on mass outages.", changes=Permission.OPERATE
)


class OutageSchema(Schema):
    """The brake; what is of the whole fleet is told to the operator alone."""

    is_held = fields.Boolean(
        metadata={"description": "While it holds, no appliance is called lost."}
    )
    began_at = instant()
    silent_count = fields.Integer(allow_none=True)
    fleet_count = fields.Integer(allow_none=True)


@outage.operation("GET", answer=OutageSchema)
def show() -> dict[str, Any]:
    """Say whether the brake holds."""
    scope = current_scope()
    with database() as session:
        return _told(present_outage(session), with_counts=scope.allows(Permission.OPERATE))


@outage.operation("POST", "/release", answer=OutageSchema)
def release() -> dict[str, Any]:
    """Let the silent appliances be called lost: they are gone, and the portal is well."""
    with database() as session:
        release_brake(session, current_scope(), now=now())
        return _told(None, with_counts=True)


def _told(found: FleetOutage | None, *, with_counts: bool) -> dict[str, Any]:
    if found is None:
        return {"is_held": False, "began_at": None, "silent_count": None, "fleet_count": None}
    return {
        "is_held": True,
        "began_at": found.began_at,
        "silent_count": found.silent_count if with_counts else None,
        "fleet_count": found.fleet_count if with_counts else None,
    }
