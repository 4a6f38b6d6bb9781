"""`/appliances` and `/enrolment-tokens`: enrolled hosts, and the secrets that let more join."""

from datetime import timedelta
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from marshmallow import Schema, fields, validate

from portal.api.blueprint import resource
from portal.api.health_schemas import ApplianceHealthSchema
from portal.api.inventory_schemas import InventorySchema
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of
from portal.context import current_scope, database, now, portal
from tenants.appliances import (
    drain_appliance,
    get_appliance,
    list_appliances,
    rename_appliance,
    revoke_appliance,
    undrain_appliance,
)
from tenants.enrolment import create_enrolment_token
from tenants.models import Appliance, ApplianceState, HealthState

appliances = resource("Appliances", "/appliances", "Enrolled hosts.")
enrolment_tokens = resource("Enrolment tokens", "/enrolment-tokens", "Let appliances join.")

MAX_LIFETIME_HOURS = 24 * 90
UNKNOWN = "unknown"


class ApplianceSchema(Schema):
    """An enrolled host with what it has."""

    id = fields.String()
    tenant_id = fields.String()
    name = fields.String()
    site = fields.String()
    region = fields.String()
    labels = fields.Dict(keys=fields.String(), values=fields.String())
    state = fields.Enum(ApplianceState, by_value=True)
    health_state = fields.Enum(
        HealthState,
        by_value=True,
        allow_none=True,
        metadata={"description": "Null where the agent tells none."},
    )
    health = fields.Nested(ApplianceHealthSchema, allow_none=True)
    inventory = fields.Nested(InventorySchema)
    agent_version = fields.String()
    clock_skew_seconds = fields.Float(allow_none=True)
    enrolled_at = instant()
    last_seen_at = instant()
    drained_at = instant()
    revoked_at = instant()


class ApplianceQuery(PageQuery):
    """Which appliances."""

    state = fields.Enum(ApplianceState, by_value=True, load_default=None)
    health = fields.String(
        load_default=None,
        validate=validate.OneOf([*(state.value for state in HealthState), UNKNOWN]),
    )
    search = fields.String(load_default="")
    is_revoked = fields.Boolean(load_default=False)


class ApplianceChangeSchema(StrictSchema):
    """What may be changed of an appliance."""

    name = fields.String(required=True)


class EnrolmentRequestSchema(StrictSchema):
    """Which appliances may join with the new token."""

    site = fields.String(load_default="")
    region = fields.String(load_default="")
    labels = fields.Dict(keys=fields.String(), values=fields.String(), load_default=dict)
    uses = fields.Integer(load_default=1)
    lifetime_hours = fields.Float(
        load_default=24.0,
        validate=validate.Range(min=0, min_inclusive=False, max=MAX_LIFETIME_HOURS),
    )


class EnrolmentTokenSchema(Schema):
    """A new enrolment token, with the command to run on the appliance."""

    id = fields.String()
    token = fields.String(metadata={"description": "Shown only now."})
    command = fields.String()
    site = fields.String()
    region = fields.String()
    labels = fields.Dict()
    uses_left = fields.Integer()
    expires_at = instant()


@appliances.operation("GET", query=ApplianceQuery, answer=page_of(ApplianceSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List appliances by name."""
    health = query.pop("health")
    if health is not None and health != UNKNOWN:
        health = HealthState(health)
    with database() as session:
        return envelope(list_appliances(session, current_scope(), health=health, **query))


@appliances.operation("GET", "/<appliance_id>", answer=ApplianceSchema)
def show(appliance_id: str) -> Appliance:
    """Return an appliance."""
    with database() as session:
        return get_appliance(session, current_scope(), appliance_id)


@appliances.operation(
    "PATCH", "/<appliance_id>", body=ApplianceChangeSchema, answer=ApplianceSchema
)
def rename(appliance_id: str, body: dict[str, Any]) -> Appliance:
    """Give an appliance another name."""
    with database() as session:
        return rename_appliance(session, current_scope(), appliance_id, name=body["name"])


@appliances.operation("POST", "/<appliance_id>/drain", answer=ApplianceSchema)
def drain(appliance_id: str) -> Appliance:
    """Give the appliance no more jobs; those that run go on."""
    with database() as session:
        return drain_appliance(session, current_scope(), appliance_id, now=now())


@appliances.operation("POST", "/<appliance_id>/undrain", answer=ApplianceSchema)
def undrain(appliance_id: str) -> Appliance:
    """Give the appliance jobs again."""
    with database() as session:
        return undrain_appliance(session, current_scope(), appliance_id)


@appliances.operation("POST", "/<appliance_id>/revoke", answer=ApplianceSchema)
def revoke(appliance_id: str) -> Appliance:
    """Take the appliance's identity away for good; its agent is refused from now on."""
    with database() as session:
        return revoke_appliance(session, current_scope(), appliance_id, now=now())


@enrolment_tokens.operation(
    "POST", body=EnrolmentRequestSchema, answer=EnrolmentTokenSchema, status=HTTPStatus.CREATED
)
def create_enrolment(body: dict[str, Any]) -> dict[str, Any]:
    """Make a token that lets appliances join your tenant."""
    lifetime = timedelta(hours=body.pop("lifetime_hours"))
    with database() as session:
        token, secret = create_enrolment_token(
            session, current_scope(), lifetime=lifetime, now=now(), **body
        )
    return {
        "id": token.id,
        "token": secret,
        "command": enrol_command(secret),
        "site": token.site,
        "region": token.region,
        "labels": token.labels,
        "uses_left": token.uses_left,
        "expires_at": token.expires_at,
    }


def enrol_command(secret: str) -> str:
    """Return the command that joins a host to this portal."""
    return f"vedette agent enroll {portal().settings.resolved_public_url} {secret}"


def install_command() -> str:
    """Return the command that installs the agent from the package that `make wheel` builds."""
    return f"pip install vedette-{version('vedette')}-py3-none-any.whl"
