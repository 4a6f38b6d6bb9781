"""`/log-forwards`: where the lines of a tenant are forwarded to."""

from typing import Any

from marshmallow import Schema, fields, validate

from logs.forwarding.service import (
    FORWARD_SORTS,
    FORWARDED,
    ForwardRequest,
    create_forward,
    delete_forward,
    get_forward,
    list_forwards,
    update_forward,
)
from logs.lines import Source
from logs.models import ForwardKind, LogForward
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about, instant, page_query
from portal.context import current_scope, database, now, portal
from protocol.lines import LogLevel
from tenants.permissions import Permission

log_forwards = APIBlueprint(
    "Log forwards",
    "/log-forwards",
    "Targets of forwarded logs: OTLP, Loki, Elasticsearch, syslog.",
    changes=Permission.MANAGE_APPLIANCES,
)


class ForwardRequestSchema(StrictSchema):
    """A new target, or the replacement of one."""

    name = fields.String(required=True)
    kind = fields.Enum(ForwardKind, by_value=True, required=True)
    url = fields.String(
        required=True,
        **about(
            "`http://` or `https://`; for syslog `syslog://HOST:514`, or with TLS "
            "`syslogs://HOST:6514`."
        ),
    )
    token = fields.String(
        load_default="",
        **about(
            "A bearer token, or a whole value of `Authorization`; empty keeps the current one."
        ),
    )
    sources = fields.List(
        fields.Enum(Source, by_value=True),
        load_default=lambda: list(FORWARDED),
        validate=validate.Length(max=len(Source)),
        **about("`job`, `appliance` or both, which is the default."),
    )
    minimum_level = fields.Enum(LogLevel, by_value=True, load_default=LogLevel.DEBUG)
    is_enabled = fields.Boolean(load_default=True)


class ForwardChangeSchema(StrictSchema):
    """A change of a target; what is left out stays."""

    name = fields.String()
    kind = fields.Enum(ForwardKind, by_value=True)
    url = fields.String()
    token = fields.String()
    sources = fields.List(
        fields.Enum(Source, by_value=True), validate=validate.Length(max=len(Source))
    )
    minimum_level = fields.Enum(LogLevel, by_value=True)
    is_enabled = fields.Boolean()


class ForwardSchema(Schema):
    """A target, and how far it is."""

    id = fields.String()
    tenant_id = fields.String()
    name = fields.String()
    kind = fields.Enum(ForwardKind, by_value=True)
    sources = fields.List(fields.String(metadata={"enum": [source.value for source in FORWARDED]}))
    minimum_level = fields.Enum(LogLevel, by_value=True)
    is_enabled = fields.Boolean()
    url = fields.String(attribute="shown_url", **about("Without secrets: scheme and host."))
    sent_lines = fields.Integer()
    refused_lines = fields.Integer(**about("That the target does not accept."))
    dropped_lines = fields.Integer(**about("That were dropped because the queue was full."))
    failures = fields.Integer(**about("Since the last delivery."))
    last_error = fields.String()
    last_sent_at = instant()
    created_at = instant()


_SHOWN = ("name", "kind", "url", "sources", "minimum_level", "is_enabled")
objects = Objects(
    log_forwards,
    "/<forward_id>",
    read=get_forward,
    answer=ForwardSchema,
    model=LogForward,
    # Without what the scheduler changes.
    etag=ForwardSchema(only=("id", *_SHOWN)),
    body=ForwardRequestSchema,
    request=ForwardRequest,
)


@log_forwards.operation(
    "PATCH", "/<forward_id>", body=ForwardChangeSchema, answer=ForwardSchema, etag=objects.etag
)
def change(forward_id: str, body: dict[str, Any]) -> LogForward:
    """Change a log target; what is left out stays, its address and token included."""
    scope = current_scope()
    with database() as session:
        objects.check_if_match(session, forward_id)
        before = get_forward(session, scope, forward_id)
        current = {name: getattr(before, name) for name in ("name", "kind", "is_enabled")}
        current |= {"minimum_level": before.minimum_level, "url": ""}
        current["sources"] = [Source(source) for source in before.sources]
        wanted = ForwardRequest(**{**current, **body})
        box = portal().secrets
        return update_forward(session, scope, forward_id, wanted, box=box, now=now())


objects.lists("List log targets.", list_forwards, query=page_query(FORWARD_SORTS, default="name"))
objects.creates("Add a log target, which gets what arrives from now on.", create_forward)
objects.shows("Return a log target.")
objects.deletes("Delete a log target.", delete_forward)
