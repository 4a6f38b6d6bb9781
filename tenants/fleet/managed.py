"""Appliances that somebody may change: found, and what was done to them told."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from tenants.fleet.events import EventKind, add_event, by_whom
from tenants.models import Appliance
from tenants.permissions import Permission
from tenants.scope import Scope


def managed_appliance(session: Session, scope: Scope, appliance_id: str) -> Appliance:
    """Return an appliance that the scope may change; another tenant's is as good as missing."""
    scope.require(Permission.MANAGE_APPLIANCES)
    return scope.get(session, Appliance, appliance_id, kind="appliance")


def managed_appliances(
    session: Session, scope: Scope, appliance_ids: Sequence[str]
) -> list[Appliance]:
    """Return several, in the order in which they are named.

    Raises:
        NotFoundError: names by id those that are not there.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    statement = scope.select(select(Appliance).where(Appliance.id.in_(appliance_ids)), Appliance)
    found = {one.id: one for one in session.scalars(statement)}
    missing = {
        ident: NotFoundError.of("appliance", ident).message
        for ident in appliance_ids
        if ident not in found
    }
    if missing:
        raise NotFoundError(
            next(iter(missing.values())), errors={ident: [text] for ident, text in missing.items()}
        )
    return [found[ident] for ident in dict.fromkeys(appliance_ids)]


def tell_change(
    session: Session, appliance: Appliance, kind: EventKind, message: str, *, now: datetime
) -> None:
    """Keep what was done to an appliance, and by whom, among its events."""
    add_event(session, appliance, kind, message, details=by_whom(session), now=now)
