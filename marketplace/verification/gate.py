"""Which appliances may be on offer, by their verification."""

from collections.abc import Collection, Iterable
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import chunked
from tenants.models import Verification, VerificationState

NOT_CHECKED = "It was not verified yet."


def begin(
    session: Session, tenant_id: str, appliance_ids: Collection[str], *, now: datetime
) -> None:
    """Let appliances that an offer covers be verified, if they are not yet."""
    known_ids = _rows(session, appliance_ids).keys()
    for ident in sorted(set(appliance_ids) - known_ids):
        session.add(Verification(appliance_id=ident, tenant_id=tenant_id, since=now, next_at=now))
    session.flush()


def kept_out(
    session: Session, appliance_ids: Collection[str], *, requires: bool, now: datetime
) -> dict[str, str]:
    """Return the appliances that may not be on offer, with the reason.

    Args:
        session: the session.
        appliance_ids: of which appliances.
        requires: whether an appliance must have passed; otherwise it must not have failed.
        now: the time.
    """
    rows = _rows(session, appliance_ids)
    reasons = {}
    for ident in appliance_ids:
        row = rows.get(ident)
        if row is not None and row.state is VerificationState.FAILED:
            reasons[ident] = row.reason
        elif requires and not (row is not None and is_admitted(row, now=now)):
            reasons[ident] = (row.reason if row is not None else "") or NOT_CHECKED
    return reasons


def is_admitted(row: Verification, *, now: datetime) -> bool:
    """Return whether an appliance has passed, or has time until it must have."""
    has_grace = row.grace_until is not None and now < row.grace_until
    return row.state is VerificationState.PASSED or (
        has_grace and row.state is not VerificationState.FAILED
    )


def _rows(session: Session, appliance_ids: Iterable[str]) -> dict[str, Verification]:
    rows: dict[str, Verification] = {}
    for part in chunked(sorted(appliance_ids)):
        chosen = select(Verification).where(Verification.appliance_id.in_(part))
        rows |= {row.appliance_id: row for row in session.scalars(chosen)}
    return rows
