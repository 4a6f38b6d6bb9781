"""Contracts whose terms can't be read: their use waits for its charge, that of others doesn't.

`Contract.uncharged_since` has the first hour that waits. Once the terms can be read, all hours from
it on are looked at again, which adds what is missing.
"""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from marketplace.charges.models import ChargedHour
from marketplace.charges.pricing import Pricing
from marketplace.models import Contract

# Less than any count of the ledger.
_NEVER = -1


def note_uncharged(session: Session, contract_ids: Collection[str], *, since: datetime) -> None:
    """Record that hours since a time are charged without these contracts."""
    if not contract_ids:
        return
    waits_later = or_(Contract.uncharged_since.is_(None), Contract.uncharged_since > since)
    session.execute(
        update(Contract)
        .where(Contract.id.in_(sorted(contract_ids)), waits_later)
        .values(uncharged_since=since)
    )


def resume_repaired(session: Session, pricing: Pricing) -> None:
    """Let hours be charged again that waited for contracts whose terms can be read now."""
    waiting = select(Contract.id, Contract.uncharged_since).where(
        Contract.uncharged_since.is_not(None)
    )
    times = {row[0]: row[1] for row in session.execute(waiting)}
    pricing.read(session, (("", ident) for ident in times))
    repaired = {ident: at for ident, at in times.items() if ident not in pricing.unreadable}
    if not repaired:
        return
    first = min(at for at in repaired.values() if at is not None)
    session.execute(update(ChargedHour).where(ChargedHour.hour_at >= first).values(appends=_NEVER))
    session.execute(
        update(Contract).where(Contract.id.in_(sorted(repaired))).values(uncharged_since=None)
    )
