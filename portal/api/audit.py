"""`/audit`: who did what, when and from where."""

from datetime import UTC
from typing import Any

from flask import Response
from marshmallow import Schema, fields, post_load, validate

from core.paging import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from portal.api.blueprint import resource
from portal.api.schemas import StrictSchema, instant
from portal.context import current_scope, database
from portal.showing.audit_files import audit_file
from tenants.auditing.export import AuditFormat
from tenants.auditing.log import REACH, AuditQuery, list_entries
from tenants.permissions import Permission

audit = resource(
    "Audit", "/audit", "Who did what, when and from where.", reads=Permission.VIEW_AUDIT
)

MAX_TEXT_LENGTH = 254


class AuditEntrySchema(Schema):
    """An entry; it is never changed."""

    id = fields.String()
    chain = fields.String(metadata={"description": "A tenant's id, or `platform`."})
    number = fields.Integer(metadata={"description": "Its place in the chain, from 1."})
    at = instant()
    actor_id = fields.String(allow_none=True)
    actor_name = fields.String()
    via = fields.String(metadata={"description": "The way in, such as `browser`."})
    action = fields.String(metadata={"description": "`<kind>.<verb>`, as `tenant.renamed`."})
    target_kind = fields.String()
    target_id = fields.String(allow_none=True)
    target_name = fields.String()
    before = fields.Dict(allow_none=True)
    after = fields.Dict(allow_none=True)
    reason = fields.String()
    address = fields.String(metadata={"description": "The network address that asked."})
    user_agent = fields.String()
    previous_hash = fields.String(metadata={"description": "The hash of the entry before it."})
    hash = fields.String(metadata={"description": "SHA-256 over all of the above."})


_NEXT = (
    "Send it as `before` for older entries. A page may be short, or empty, and have it: where no "
    f"index helps, {REACH:,} entries are looked at for one page."
)


class AuditPageSchema(Schema):
    """Entries, newest first."""

    items = fields.List(fields.Nested(AuditEntrySchema))
    next = fields.String(
        allow_none=True,
        metadata={"description": _NEXT},
    )
    total = fields.Integer(
        allow_none=True,
        metadata={"description": "How many the whole chain has; null where that is not counted."},
    )


def _text(description: str) -> fields.String:
    return fields.String(
        load_default="",
        validate=validate.Length(max=MAX_TEXT_LENGTH),
        metadata={"description": description},
    )


def _time(description: str) -> fields.AwareDateTime:
    return fields.AwareDateTime(
        format="iso",
        default_timezone=UTC,
        load_default=None,
        metadata={"description": description},
    )


class AuditFilterSchema(StrictSchema):
    """Which entries."""

    chain = _text("For the operator: a tenant's id, `platform` (the default) or `all`.")
    since = _time("The first instant.")
    until = _time("The instant to stop before.")
    actor = _text("Who did it: an email address, or a name such as `scheduler`.")
    action = _text("Such as `membership.role_changed`, or all of a kind: `membership`.")
    target = _text("What it was done to: its id, or its whole name.")
    text = _text("Somewhere in the names, the action or the reason.")
    before = _text("The `next` of the page before.")

    @post_load
    def _query(self, values: dict[str, Any], **_options: object) -> dict[str, Any]:
        names = AuditQuery.__dataclass_fields__
        query = AuditQuery(**{name: values.pop(name) for name in names})
        return {**values, "query": query}


class AuditListSchema(AuditFilterSchema):
    """Which entries, and how many at once."""

    page_size = fields.Integer(
        load_default=DEFAULT_PAGE_SIZE, validate=validate.Range(min=1, max=MAX_PAGE_SIZE)
    )


class AuditExportSchema(AuditFilterSchema):
    """Which entries, and in which form."""

    format = fields.Enum(AuditFormat, by_value=True, load_default=AuditFormat.CSV)


_FILE = {"schema": {"type": "string", "format": "binary"}}


@audit.operation("GET", query=AuditListSchema, answer=AuditPageSchema)
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List the audit log, newest first."""
    with database() as session:
        page = list_entries(session, current_scope(), query["query"], page_size=query["page_size"])
    return {"items": page.items, "next": page.next, "total": page.total}


@audit.operation("GET", "/export", query=AuditExportSchema)
@audit.doc(  # type: ignore[untyped-decorator] # flask-smorest
    responses={
        "200": {
            "description": "All entries that were asked for, newest first.",
            "content": {"text/csv": _FILE, "application/x-ndjson": _FILE},
        }
    }
)
def export(query: dict[str, Any]) -> Response:
    """Return the audit log as a file: CSV or JSON lines. The export becomes an entry itself."""
    return audit_file(query["query"], query["format"])
