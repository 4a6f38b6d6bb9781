"""`/audit`: who did what, when and from where; its filters stay in the address."""

from datetime import UTC, datetime

from flask import Blueprint, render_template, request
from flask.typing import ResponseReturnValue
from sqlalchemy import select

from core.errors import InvalidInputError
from portal.context import current_scope, database
from portal.pages.paging import PAGE_SIZE, chosen
from portal.showing.audit_files import audit_file, chain_names
from portal.showing.audit_text import differences
from tenants.auditing.export import AuditFormat
from tenants.auditing.log import EVERY_CHAIN, REACH, AuditQuery, chain_for, list_entries
from tenants.models import PLATFORM_CHAIN, Tenant

pages = Blueprint("audit", __name__)

# So many tenants are offered by name; others are found by their page.
_MAX_CHOICES = 500
_MAX_TEXT_LENGTH = 254
KINDS = (
    "session", "user", "membership", "invitation", "identity", "token", "enrolment_token",
    "appliance", "certificate", "job", "rule", "receiver", "tenant", "quota", "support_visit",
    "audit",
)  # fmt: skip


@pages.get("/audit")
def index() -> ResponseReturnValue:
    """List the log, newest first."""
    scope = current_scope()
    query = _query()
    with database() as session:
        page = list_entries(session, scope, query, page_size=PAGE_SIZE)
        names = chain_names(session, [entry.chain for entry in page.items])
        choices = [] if scope.tenant_id else session.execute(
            select(Tenant.id, Tenant.name).order_by(Tenant.name).limit(_MAX_CHOICES)
        ).all()  # fmt: skip
    return render_template(
        "audit/index.html",
        page=page,
        query=query,
        chain=chain_for(scope, query.chain),
        names=names,
        choices=choices,
        kinds=KINDS,
        differences=differences,
        PLATFORM=PLATFORM_CHAIN,
        EVERY=EVERY_CHAIN,
        reach=f"{REACH:,}",
    )


@pages.get("/audit/export")
def export() -> ResponseReturnValue:
    """Return what the filters find as a file."""
    return audit_file(_query(), chosen(AuditFormat, "format") or AuditFormat.CSV)


def _query() -> AuditQuery:
    names = ("chain", "actor", "action", "target", "text", "before")
    texts = {name: request.args.get(name, "").strip()[:_MAX_TEXT_LENGTH] for name in names}
    return AuditQuery(since=_instant("since"), until=_instant("until"), **texts)


def _instant(name: str) -> datetime | None:
    text = request.args.get(name, "").strip()
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        fault = f"{text!r} is no time. Write it like 2026-03-02T12:00; it is taken as UTC."
        raise InvalidInputError(fault, errors={name: [fault]}) from error
