"""`/enrollment-tokens`: secrets that enroll appliances."""

from datetime import timedelta
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate

from portal.api.appliances import appliances
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import (
    PageQuery,
    StrictSchema,
    about,
    envelope,
    instant,
    page_of,
    sort_field,
    values_of,
)
from portal.context import current_scope, database, now
from portal.installer.script import install_command
from portal.presenters.appliances import enroll_command
from portal.presenters.enrollment import EnrollmentState, HostState, enrollment_progress
from tenants.enrollment import (
    ENROLLMENT_TOKEN_SORTS,
    MAX_USES,
    create_enrollment_token,
    create_token_for_appliance,
    get_enrollment_token,
    list_enrollment_tokens,
    revoke_enrollment_token,
)
from tenants.models import EnrollmentToken
from tenants.permissions import Permission

enrollment_tokens = APIBlueprint(
    "Enrollment tokens",
    "/enrollment-tokens",
    "Secrets that enroll appliances.",
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


class EnrollmentRequestSchema(StrictSchema):
    """A new token, and the settings of the appliances that enroll with it."""

    name = _text()
    site = _text()
    region = _text()
    labels = fields.Dict(keys=fields.String(), values=fields.String(), load_default=dict)
    uses = fields.Integer(load_default=1, validate=validate.Range(min=1, max=MAX_USES))
    lifetime_hours = _lifetime()


class ReenrollSchema(StrictSchema):
    """Lifetime of the token for a re-enrollment."""

    lifetime_hours = _lifetime()


class EnrollmentTokenSchema(Schema):
    """An enrollment token; its secret is never shown again."""

    id = fields.String()
    name = fields.String()
    site = fields.String()
    region = fields.String()
    labels = fields.Dict(keys=fields.String(), values=fields.String())
    uses = fields.Integer(**about("Number of appliances it can enroll in total."))
    uses_left = fields.Integer()
    appliance_id = fields.String(
        allow_none=True, **about("The appliance that it re-enrolls; null for new appliances.")
    )
    created_by = fields.String(allow_none=True)
    created_at = instant()
    expires_at = instant()
    revoked_at = instant()


class NewEnrollmentTokenSchema(EnrollmentTokenSchema):
    """A new enrollment token with its secret."""

    token = fields.String(**about("The secret, shown only once."))
    install_command = fields.String(
        **about("The line that installs the agent on a host and enrolls it.")
    )
    command = fields.String(**about("The command that enrolls a host that has the agent already."))


class EnrolledHostSchema(Schema):
    """A host that has enrolled with the token."""

    id = fields.String(**about("The appliance."))
    name = fields.String()
    gpu_count = fields.Integer()
    enrolled_at = instant()
    state = fields.Enum(HostState, by_value=True)


class EnrollmentProgressSchema(Schema):
    """How far an enrollment is; the newest 100 hosts."""

    state = fields.Enum(EnrollmentState, by_value=True)
    uses_left = fields.Integer(**about("How many more hosts can enroll now."))
    hosts = fields.List(fields.Nested(EnrolledHostSchema))


class EnrollmentTokenQuery(PageQuery):
    """Filters of the list."""

    is_usable = fields.Boolean(load_default=False, **about("Only tokens that can still be used."))
    sort = sort_field(ENROLLMENT_TOKEN_SORTS, default="-created_at")


@enrollment_tokens.operation(
    "GET", query=EnrollmentTokenQuery, answer=page_of(EnrollmentTokenSchema)
)
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List the enrollment tokens of your tenant, newest first."""
    usable_at = now() if query.pop("is_usable") else None
    with database() as session:
        return envelope(
            list_enrollment_tokens(session, current_scope(), usable_at=usable_at, **query)
        )


@enrollment_tokens.operation(
    "POST", body=EnrollmentRequestSchema, answer=NewEnrollmentTokenSchema, status=HTTPStatus.CREATED
)
def create_enrollment(body: dict[str, Any]) -> dict[str, Any]:
    """Create a token that enrolls appliances in your tenant."""
    lifetime = timedelta(hours=body.pop("lifetime_hours"))
    with database() as session:
        token, secret = create_enrollment_token(
            session, current_scope(), lifetime=lifetime, now=now(), **body
        )
    return _with_secret(token, secret)


objects = Objects(
    enrollment_tokens,
    "/<enrollment_token_id>",
    read=get_enrollment_token,
    answer=EnrollmentTokenSchema,
)
objects.shows("Return an enrollment token, without its secret.")


@enrollment_tokens.operation(
    "GET", "/<enrollment_token_id>/progress", answer=EnrollmentProgressSchema
)
def show_progress(enrollment_token_id: str) -> dict[str, Any]:
    """Return which hosts have enrolled with a token, and whether the portal has their samples.

    A host is `connecting` until then, and `silent` if that takes longer than a minute. The state is
    `waiting` while the token can be used or a host is not `online`, then `complete`; it is
    `closed` if the token was never used and can't be used any longer.
    """
    return values_of(EnrollmentProgressSchema, enrollment_progress(enrollment_token_id))


objects.acts(
    "Revoke a token; appliances that enrolled with it stay enrolled.",
    revoke_enrollment_token,
    "revoke",
)


@appliances.operation(
    "POST",
    "/<appliance_id>/enrollment-token",
    body=ReenrollSchema,
    answer=NewEnrollmentTokenSchema,
    status=HTTPStatus.CREATED,
)
def reenroll(appliance_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """Create a token that re-enrolls this appliance under a new identity.

    Its current identity stays valid until the token is used.
    """
    lifetime = timedelta(hours=body["lifetime_hours"])
    with database() as session:
        token, secret = create_token_for_appliance(
            session, current_scope(), appliance_id, lifetime=lifetime, now=now()
        )
    return _with_secret(token, secret)


def _with_secret(token: EnrollmentToken, secret: str) -> dict[str, Any]:
    is_repeated = token.appliance_id is not None
    return values_of(EnrollmentTokenSchema, token) | {
        "token": secret,
        "install_command": install_command(secret, is_repeated=is_repeated),
        "command": enroll_command(secret, is_repeated=is_repeated),
    }
