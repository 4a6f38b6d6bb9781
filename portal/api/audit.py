"""`/audit`: who did what, when and from where."""

from typing import Any

from flask import Response
from marshmallow import Schema, fields, post_load, validate

from core.paging import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import StrictSchema, about, file_response, instant, time_filter
from portal.context import current_scope, database
from portal.presenters.audit import audit_file
from tenants.auditing.log import SCAN_LIMIT, AuditFormat, AuditQuery, list_entries
from tenants.permissions import Permission

audit = APIBlueprint(
    "Audit", "/audit", "Who did what, when and from where.", reads=Permission.VIEW_AUDIT
)

MAX_TEXT_LENGTH = 254


class AuditEntrySchema(Schema):
    """An audit log entry; entries are immutable."""

    id = fields.String()
    chain = fields.String(**about("A tenant's id, or `platform`."))
    number = fields.Integer(**about("Sequence number in the chain, from 1."))
    at = instant()
    actor_id = fields.String(allow_none=True)
    actor_name = fields.String()
    via = fields.String(**about("Authentication method, such as `browser`."))
    action = fields.String(**about("`<kind>.<verb>`, such as `tenant.renamed`."))
    target_kind = fields.String()
    target_id = fields.String(allow_none=True)
    target_name = fields.String()
    before = fields.Dict(allow_none=True)
    after = fields.Dict(allow_none=True)
    reason = fields.String()
    address = fields.String(**about("Client IP address."))
    user_agent = fields.String()
    previous_hash = fields.String(**about("Hash of the previous entry."))
    hash = fields.String(**about("SHA-256 of all fields above."))


_NEXT = (
    "Cursor for older entries: send it as `before`. A page with a cursor may be short or empty, "
    f"because a search without an index scans {SCAN_LIMIT:,} entries per page."
)


class AuditPageSchema(Schema):
    """Entries, newest first."""

    items = fields.List(fields.Nested(AuditEntrySchema))
    next = fields.String(allow_none=True, **about(_NEXT))
    total = fields.Integer(
        allow_none=True, **about("Number of entries in the chain; null if not counted.")
    )


def _text(description: str) -> fields.String:
    return fields.String(
        load_default="", validate=validate.Length(max=MAX_TEXT_LENGTH), **about(description)
    )


class AuditFilterSchema(StrictSchema):
    """Filters of the log."""

    chain = _text("For the operator: a tenant's id, `platform` (the default) or `all`.")
    since = time_filter("Start time, inclusive.")
    until = time_filter("End time, exclusive.")
    actor = _text("An email address, or a name such as `scheduler`.")
    action = _text("An action such as `membership.role_changed`, or a kind: `membership`.")
    target = _text("Id or full name of the target.")
    text = _text("Text in names, action or reason.")
    before = _text("The `next` of the previous page.")

    @post_load
    def _query(self, values: dict[str, Any], **_options: object) -> dict[str, Any]:
        names = AuditQuery.__dataclass_fields__
        query = AuditQuery(**{name: values.pop(name) for name in names})
        return {**values, "query": query}


class AuditListSchema(AuditFilterSchema):
    """Filters and page size."""

    page_size = fields.Integer(
        load_default=DEFAULT_PAGE_SIZE, validate=validate.Range(min=1, max=MAX_PAGE_SIZE)
    )


class AuditExportSchema(AuditFilterSchema):
    """Filters and file format."""

    format = fields.Enum(AuditFormat, by_value=True, load_default=AuditFormat.CSV)


@audit.operation("GET", query=AuditListSchema, answer=AuditPageSchema)
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List the audit log, newest first."""
    with database() as session:
        page = list_entries(session, current_scope(), query["query"], page_size=query["page_size"])
    return {"items": page.items, "next": page.next, "total": page.total}


@audit.operation(
    "GET",
    "/export",
    query=AuditExportSchema,
    responses=file_response(
        "The matching entries, newest first.", "text/csv", "application/x-ndjson"
    ),
)
def export(query: dict[str, Any]) -> Response:
    """Export the audit log as CSV or JSON lines; the export is itself logged."""
    return audit_file(query["query"], query["format"])
