"""Audit entries as text, and the audit log as a download, which is itself recorded."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from flask import Response
from sqlalchemy.orm import Session

from core.zones import SECONDS
from portal.context import current_scope, database, now, portal
from portal.downloads import stream_file
from portal.time_zone import time_text
from tenants.auditing.log import (
    EVERY_CHAIN,
    AuditFormat,
    AuditQuery,
    as_file,
    chain_for,
    export_entries,
    list_entries,
)
from tenants.auditing.recording import json_value, record
from tenants.models import PLATFORM_CHAIN, AuditEntry, Tenant
from tenants.tenants import tenant_names

NOTHING = "\N{EN DASH}"
# A UTC timestamp as JSON stores it.
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)")


@dataclass(frozen=True, slots=True)
class Difference:
    """One changed value; None if it was absent before or after."""

    name: str
    before: str | None
    after: str | None


def differences(entry: AuditEntry) -> list[Difference]:
    """Return the values that an entry changed, in recorded order."""
    before, after = entry.before or {}, entry.after or {}
    return [
        Difference(
            name=name.replace("_", " "),
            before=_text(before[name]) if name in before else None,
            after=_text(after[name]) if name in after else None,
        )
        for name in dict.fromkeys([*before, *after])
    ]


def audit_file(query: AuditQuery, wanted: AuditFormat) -> Response:
    """Record an export, then stream all entries that match a query as a file."""
    scope = current_scope()
    chain = chain_for(scope, query.chain)
    with database() as session:
        # Validates the query before the response starts.
        list_entries(session, scope, query, page_size=1)
        tenant = session.get(Tenant, chain) if chain not in {EVERY_CHAIN, PLATFORM_CHAIN} else None
        name = chain if tenant is None else tenant.slug
        filters = {key: json_value(value) for key, value in asdict(query).items() if value}
        record(
            session,
            action="audit.exported",
            target_name=name,
            tenant_id=None if chain in {EVERY_CHAIN, PLATFORM_CHAIN} else chain,
            after={**filters, "format": wanted.value},
            now=now(),
        )
    pieces = as_file(export_entries(portal().sessions, scope, query), wanted)
    file_name = f"audit_{name}_{now():%Y%m%dT%H%M%SZ}.{wanted.value}"
    return stream_file(pieces, media_type=wanted.media_type, file_name=file_name)


def chain_names(session: Session, chains: Sequence[str]) -> dict[str, str]:
    """Return the display names of chains; those of deleted tenants are missing."""
    return {PLATFORM_CHAIN: "Platform", **tenant_names(session, chains)}


def _text(value: Any) -> str:  # noqa: ANN401 - any JSON value
    if value is None or value in ("", [], {}):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_text(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    instant = _INSTANT.fullmatch(str(value))
    return time_text(datetime.fromisoformat(value), SECONDS) if instant else str(value)
