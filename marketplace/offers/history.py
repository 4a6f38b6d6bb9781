"""Earlier terms of an offer, from the audit log: what a customer who read them is shown."""

from collections.abc import Iterator
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from marketplace.models import Offer
from marketplace.terms import Terms, decoded
from tenants.models import AuditEntry

MAX_ENTRIES = 100


def offered_terms(session: Session, offer: Offer) -> list[Terms]:
    """Return the terms that an offer had before its last changes, the newest first."""
    return [terms for document in _documents(session, offer) if (terms := _terms(document))]


def _documents(session: Session, offer: Offer) -> Iterator[dict[str, Any]]:
    statement = (
        select(AuditEntry.before)
        .where(AuditEntry.chain == offer.tenant_id, AuditEntry.target_id == offer.id)
        .order_by(AuditEntry.number.desc())
        .limit(MAX_ENTRIES)
    )
    for before in session.scalars(statement):
        if document := (before or {}).get("terms"):
            yield document


def _terms(document: dict[str, Any]) -> Terms | None:
    try:
        return decoded(document)
    except msgspec.ValidationError:
        return None  # of an earlier version of the portal
