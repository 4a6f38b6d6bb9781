"""The audit log as a download; that it was taken is itself an entry."""

from collections.abc import Sequence
from dataclasses import asdict

from flask import Response
from sqlalchemy.orm import Session

from portal.context import current_scope, database, now, portal
from tenants.audit import record
from tenants.auditing.changes import told
from tenants.auditing.export import AuditFormat, as_file
from tenants.auditing.log import EVERY_CHAIN, AuditQuery, chain_for, export_entries, list_entries
from tenants.models import PLATFORM_CHAIN, Tenant


def audit_file(query: AuditQuery, wanted: AuditFormat) -> Response:
    """Return all that a query finds as a file, streamed; the export is told in the log first."""
    scope = current_scope()
    chain = chain_for(scope, query.chain)
    with database() as session:
        # What is wrong with the query is said before the file begins.
        list_entries(session, scope, query, page_size=1)
        name = chain_name(session, chain)
        asked = {key: told(value) for key, value in asdict(query).items() if value}
        record(
            session,
            action="audit.exported",
            target_kind="audit",
            target_id=None,
            target_name=name,
            tenant_id=None if chain in {EVERY_CHAIN, PLATFORM_CHAIN} else chain,
            after={**asked, "format": wanted.value},
            now=now(),
        )
    pieces = as_file(export_entries(portal().sessions, scope, query), wanted)
    response = Response(pieces, content_type=wanted.media_type)
    file_name = f"audit_{name}_{now():%Y%m%dT%H%M%SZ}.{wanted.value}"
    response.headers["Content-Disposition"] = f'attachment; filename="{file_name}"'
    return response


def chain_name(session: Session, chain: str) -> str:
    """Return the short name of a chain: a tenant's slug where the tenant is still there."""
    tenant = session.get(Tenant, chain) if chain not in {EVERY_CHAIN, PLATFORM_CHAIN} else None
    return chain if tenant is None else tenant.slug


def chain_names(session: Session, chains: Sequence[str]) -> dict[str, str]:
    """Return what people call the chains of a page; removed tenants keep their id."""
    from_rows = session.query(Tenant.id, Tenant.name).filter(Tenant.id.in_(set(chains)))
    return {PLATFORM_CHAIN: "Platform", **{row[0]: row[1] for row in from_rows}}
