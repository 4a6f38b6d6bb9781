"""`/write-tokens`: secrets with which programs other than the agent send samples."""

from datetime import timedelta
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate

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
from portal.presenters.write_tokens import (
    WriteTokenState,
    configurations,
    write_token_progress,
)
from tenants.permissions import Permission
from tenants.write_tokens import (
    ANY_APPLIANCE,
    MAX_LIFETIME,
    WRITE_TOKEN_SORTS,
    create_write_token,
    get_write_token,
    list_write_tokens,
    revoke_write_token,
)

write_tokens = APIBlueprint(
    "Write tokens",
    "/write-tokens",
    "Secrets with which Telegraf, collectd, Prometheus and OpenTelemetry send samples.",
    reads=Permission.MANAGE_APPLIANCES,
    changes=Permission.MANAGE_APPLIANCES,
)

MAX_TEXT_LENGTH = 100


class WriteTokenRequestSchema(StrictSchema):
    """A new token, and what it may write."""

    name = fields.String(load_default="", validate=validate.Length(max=MAX_TEXT_LENGTH))
    appliance_pattern = fields.String(
        load_default=ANY_APPLIANCE,
        validate=validate.Length(min=1, max=MAX_TEXT_LENGTH),
        **about("The appliance that it writes samples of, or a shell pattern of names."),
    )
    lifetime_days = fields.Float(
        load_default=365.0,
        validate=validate.Range(min=0, min_inclusive=False, max=MAX_LIFETIME.days),
    )


class WriteTokenSchema(Schema):
    """A write token; its secret is never shown again."""

    id = fields.String()
    name = fields.String()
    appliance_pattern = fields.String()
    created_by = fields.String(allow_none=True)
    created_at = instant()
    expires_at = instant()
    last_used_at = instant()
    revoked_at = instant()


class ConfigurationSchema(Schema):
    """What to paste on a host, for one kind of sender."""

    name = fields.String()
    title = fields.String()
    path = fields.String(**about("Where the text belongs."))
    note = fields.String()
    text = fields.String()


class NewWriteTokenSchema(WriteTokenSchema):
    """A new write token with its secret."""

    token = fields.String(**about("The secret, shown only once."))
    configurations = fields.List(fields.Nested(ConfigurationSchema))


class ReportingHostSchema(Schema):
    """A host without an agent whose samples come with the token."""

    id = fields.String(**about("The appliance."))
    name = fields.String()
    status = fields.String()
    last_seen_at = instant()


class WriteTokenProgressSchema(Schema):
    """Whether samples have arrived with a token; the latest 100 hosts."""

    state = fields.Enum(WriteTokenState, by_value=True)
    last_used_at = instant()
    hosts = fields.List(fields.Nested(ReportingHostSchema))


class WriteTokenQuery(PageQuery):
    """Filters of the list."""

    is_usable = fields.Boolean(load_default=False, **about("Only tokens that can still be used."))
    sort = sort_field(WRITE_TOKEN_SORTS, default="-created_at")


@write_tokens.operation("GET", query=WriteTokenQuery, answer=page_of(WriteTokenSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List the write tokens of your tenant, newest first."""
    usable_at = now() if query.pop("is_usable") else None
    with database() as session:
        return envelope(list_write_tokens(session, current_scope(), usable_at=usable_at, **query))


@write_tokens.operation(
    "POST", body=WriteTokenRequestSchema, answer=NewWriteTokenSchema, status=HTTPStatus.CREATED
)
def create(body: dict[str, Any]) -> dict[str, Any]:
    """Create a token with which other programs send samples of hosts without an agent."""
    lifetime = timedelta(days=body.pop("lifetime_days"))
    with database() as session:
        token, secret = create_write_token(
            session, current_scope(), lifetime=lifetime, now=now(), **body
        )
    return values_of(WriteTokenSchema, token) | {
        "token": secret,
        "configurations": configurations(token, secret),
    }


objects = Objects(write_tokens, "/<write_token_id>", read=get_write_token, answer=WriteTokenSchema)
objects.shows("Return a write token, without its secret.")


@write_tokens.operation("GET", "/<write_token_id>/progress", answer=WriteTokenProgressSchema)
def show_progress(write_token_id: str) -> dict[str, Any]:
    """Return whether samples have arrived with a token, and the hosts that they are of.

    Appliances with an agent are not listed.
    """
    progress = write_token_progress(write_token_id)
    return {
        "state": progress.state,
        "last_used_at": progress.token.last_used_at,
        "hosts": [
            {
                "id": host.id,
                "name": host.name,
                "status": progress.statuses[host.id],
                "last_seen_at": host.last_seen_at,
            }
            for host in progress.hosts
        ],
    }


objects.acts(
    "Revoke a token: what is sent with it is refused at once. Its hosts become silent.",
    revoke_write_token,
    "revoke",
)
