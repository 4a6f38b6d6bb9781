"""`/enrolment-tokens`: the secrets that let appliances join."""

from datetime import timedelta
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate

from portal.api.appliances import appliances
from portal.api.blueprint import resource
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of
from portal.api.sorting import sort_field
from portal.context import current_scope, database, now
from portal.showing.enrolment import enrol_command
from tenants.entry.enrolment_tokens import (
    ENROLMENT_TOKEN_SORTS,
    MAX_USES,
    create_enrolment_token,
    create_token_for_appliance,
    get_enrolment_token,
    list_enrolment_tokens,
    revoke_enrolment_token,
)
from tenants.models import EnrolmentToken
from tenants.permissions import Permission

enrolment_tokens = resource(
    "Enrolment tokens",
    "/enrolment-tokens",
    "Let appliances join.",
    reads=Permission.MANAGE_APPLIANCES,
    changes=Permission.MANAGE_APPLIANCES,
)

MAX_LIFETIME_HOURS = 24 * 90
MAX_TEXT_LENGTH = 100


def _lifetime() -> fields.Float:
    bounds = validate.Range(min=0, min_inclusive=False, max=MAX_LIFETIME_HOURS)
    return fields.Float(load_default=24.0, validate=bounds)


def _text() -> fields.String:
    return fields.String(load_default="", validate=validate.Length(max=MAX_TEXT_LENGTH))


class EnrolmentRequestSchema(StrictSchema):
    """Which appliances may join with the new token."""

    name = _text()
    site = _text()
    region = _text()
    labels = fields.Dict(keys=fields.String(), values=fields.String(), load_default=dict)
    uses = fields.Integer(load_default=1, validate=validate.Range(min=1, max=MAX_USES))
    lifetime_hours = _lifetime()


class EnrolAgainSchema(StrictSchema):
    """How long an appliance may take to join again."""

    lifetime_hours = _lifetime()


class EnrolmentTokenSchema(Schema):
    """An enrolment token; its secret is never shown again."""

    id = fields.String()
    name = fields.String()
    site = fields.String()
    region = fields.String()
    labels = fields.Dict(keys=fields.String(), values=fields.String())
    uses = fields.Integer(metadata={"description": "How many appliances it was made for."})
    uses_left = fields.Integer()
    appliance_id = fields.String(
        allow_none=True,
        metadata={"description": "The one appliance that may join again with it; else null."},
    )
    created_by = fields.String(allow_none=True)
    created_at = instant()
    expires_at = instant()
    revoked_at = instant()


class NewEnrolmentTokenSchema(EnrolmentTokenSchema):
    """A new enrolment token, with the command to run on the appliance."""

    token = fields.String(metadata={"description": "Shown only now."})
    command = fields.String()


class EnrolmentTokenQuery(PageQuery):
    """Which tokens."""

    is_usable = fields.Boolean(
        load_default=False, metadata={"description": "Only those that can be used now."}
    )
    sort = sort_field(ENROLMENT_TOKEN_SORTS, default="-created_at")


@enrolment_tokens.operation("GET", query=EnrolmentTokenQuery, answer=page_of(EnrolmentTokenSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List the enrolment tokens of your tenant, the newest first."""
    usable_at = now() if query.pop("is_usable") else None
    with database() as session:
        return envelope(
            list_enrolment_tokens(session, current_scope(), usable_at=usable_at, **query)
        )


@enrolment_tokens.operation(
    "POST", body=EnrolmentRequestSchema, answer=NewEnrolmentTokenSchema, status=HTTPStatus.CREATED
)
def create_enrolment(body: dict[str, Any]) -> dict[str, Any]:
    """Make a token that lets appliances join your tenant."""
    lifetime = timedelta(hours=body.pop("lifetime_hours"))
    with database() as session:
        token, secret = create_enrolment_token(
            session, current_scope(), lifetime=lifetime, now=now(), **body
        )
    return _with_secret(token, secret)


@enrolment_tokens.operation("GET", "/<enrolment_token_id>", answer=EnrolmentTokenSchema)
def show(enrolment_token_id: str) -> EnrolmentToken:
    """Return an enrolment token, without its secret."""
    with database() as session:
        return get_enrolment_token(session, current_scope(), enrolment_token_id)


@enrolment_tokens.operation("POST", "/<enrolment_token_id>/revoke", answer=EnrolmentTokenSchema)
def revoke(enrolment_token_id: str) -> EnrolmentToken:
    """Let no more appliances join with a token; those that did stay."""
    with database() as session:
        return revoke_enrolment_token(session, current_scope(), enrolment_token_id, now=now())


@appliances.operation(
    "POST",
    "/<appliance_id>/enrolment-token",
    body=EnrolAgainSchema,
    answer=NewEnrolmentTokenSchema,
    status=HTTPStatus.CREATED,
)
def enrol_again(appliance_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """Make a token with which this appliance joins again, under a new identity.

    Its present identity stays good until the token is used.
    """
    lifetime = timedelta(hours=body["lifetime_hours"])
    with database() as session:
        token, secret = create_token_for_appliance(
            session, current_scope(), appliance_id, lifetime=lifetime, now=now()
        )
    return _with_secret(token, secret)


def _with_secret(token: EnrolmentToken, secret: str) -> dict[str, Any]:
    shaped: dict[str, Any] = EnrolmentTokenSchema().dump(token)
    times = {name: getattr(token, name) for name in ("created_at", "expires_at", "revoked_at")}
    command = enrol_command(secret, again=token.appliance_id is not None)
    return shaped | times | {"token": secret, "command": command}
