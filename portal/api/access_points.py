"""`/access-points`: the addresses at which agents reach the portal (operators only)."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields

from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about, instant, page_query
from portal.context import current_scope, database, now, public_url
from portal.presenters.access_points import relay_settings
from protocol.access_points import MAX_WEIGHT
from tenants.fleet.access_points import (
    ACCESS_POINT_SORTS,
    AccessPointKind,
    AccessPointRequest,
    AccessPointState,
    ListedAccessPoint,
    change_access_point,
    create_access_point,
    delete_access_point,
    get_access_point,
    list_access_points,
    renew_relay_token,
)
from tenants.models import AccessPoint
from tenants.permissions import Permission

access_points = APIBlueprint(
    "Access points",
    "/access-points",
    "Addresses at which agents reach the portal, such as relays (operators only).",
    reads=Permission.OPERATE,
    changes=Permission.OPERATE,
)
_WEIGHT = (
    f"0 to {MAX_WEIGHT}: the share of the appliances that reach several about equally fast. "
    "With 0, agents leave it for others."
)


class AccessPointChangeSchema(StrictSchema):
    """A change of an access point; what is left out stays."""

    name = fields.String()
    url = fields.String(**about("Scheme, host and port."))
    region = fields.String()
    weight = fields.Integer(strict=True, **about(_WEIGHT))
    tenant_id = fields.String(allow_none=True, **about("Whose appliances use it; null for all."))


class AccessPointRequestSchema(AccessPointChangeSchema):
    """A new access point."""

    name = fields.String(required=True)
    url = fields.String(required=True, **about("Scheme, host and port."))
    kind = fields.Enum(
        AccessPointKind,
        by_value=True,
        load_default=AccessPointKind.DIRECT,
        **about("`direct`: a process of the portal. `relay`: gets a token."),
    )


class AccessPointSchema(Schema):
    """An access point, and how its relay is doing as it last reported."""

    id = fields.String(attribute="point.id")
    name = fields.String(attribute="point.name")
    url = fields.String(attribute="point.url")
    kind = fields.Enum(AccessPointKind, by_value=True)
    region = fields.String(attribute="point.region")
    weight = fields.Integer(attribute="point.weight", **about(_WEIGHT))
    tenant_id = fields.String(
        attribute="point.tenant_id",
        allow_none=True,
        **about("Whose appliances use it; null for all."),
    )
    state = fields.Enum(
        AccessPointState,
        by_value=True,
        **about("Of a relay whether it reports, of others whether agents use them."),
    )
    agents = fields.Integer(**about("That use it now."))
    seen_at = instant(attribute="point.seen_at")
    version = fields.String(attribute="point.version")
    started_at = instant(attribute="point.started_at")
    spool_bytes = fields.Integer(
        attribute="point.spool_bytes",
        **about("Samples on the relay's disk that the portal does not have yet."),
    )
    max_spool_bytes = fields.Integer(attribute="point.max_spool_bytes")
    oldest_spooled_at = instant(attribute="point.oldest_spooled_at")
    refused_writes = fields.Integer(
        attribute="point.refused_writes",
        **about("Since the relay's start, because its spool was full."),
    )
    undeliverable_bytes = fields.Integer(
        attribute="point.undeliverable_bytes",
        metadata={"description": "Of lines on the relay's disk that the portal did not store."},
    )
    requests_per_second = fields.Float(attribute="point.requests_per_second")
    cpu_percent = fields.Float(attribute="point.cpu_percent", **about("100 is one core."))
    memory_bytes = fields.Integer(attribute="point.memory_bytes")
    created_at = instant(attribute="point.created_at")


class AccessPointTokenSchema(AccessPointSchema):
    """An access point with the token of its relay."""

    token = fields.String(**about("Of a relay, shown only once; empty for others."))
    settings = fields.String(**about("The lines of the relay's settings file; empty for others."))


_CONFIGURED = ("id", "name", "url", "kind", "region", "weight", "tenant_id")
objects = Objects(
    access_points,
    "/<access_point_id>",
    read=get_access_point,
    answer=AccessPointSchema,
    model=AccessPoint,
    # Without what relays report.
    etag=AccessPointSchema(only=_CONFIGURED),
)


@access_points.operation(
    "POST", body=AccessPointRequestSchema, answer=AccessPointTokenSchema, status=HTTPStatus.CREATED
)
def create(body: dict[str, Any]) -> dict[str, Any]:
    """Add an access point: agents learn of it with their next heartbeats (operator)."""
    request = AccessPointRequest(**body)
    with database() as session:
        made = create_access_point(
            session, current_scope(), request, public_url=public_url(), now=now()
        )
        return _with_token(made)


@access_points.operation(
    "PATCH",
    "/<access_point_id>",
    body=AccessPointChangeSchema,
    answer=AccessPointSchema,
    etag=objects.etag,
)
def change(access_point_id: str, body: dict[str, Any]) -> ListedAccessPoint:
    """Change an access point; with weight 0 its agents leave it for others (operator)."""
    with database() as session:
        objects.check_if_match(session, access_point_id)
        return change_access_point(
            session, current_scope(), access_point_id, body, public_url=public_url(), now=now()
        )


@access_points.operation("POST", "/<access_point_id>/token", answer=AccessPointTokenSchema)
def renew_token(access_point_id: str) -> dict[str, Any]:
    """Give a relay a new token; the old one is refused at once (operator)."""
    with database() as session:
        return _with_token(renew_relay_token(session, current_scope(), access_point_id, now=now()))


def _with_token(listed: ListedAccessPoint) -> dict[str, Any]:
    return {
        "point": listed.point,
        "kind": listed.kind,
        "state": listed.state,
        "agents": listed.agents,
        "token": listed.secret,
        "settings": relay_settings(listed.secret),
    }


objects.lists(
    "List the access points (operator).",
    list_access_points,
    query=page_query(ACCESS_POINT_SORTS, default="name"),
)
objects.shows("Return an access point (operator).")
objects.deletes(
    "Remove an access point: agents leave it, and a relay's token is refused at once (operator).",
    delete_access_point,
)
