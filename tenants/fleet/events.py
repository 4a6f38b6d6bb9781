"""Events of appliances: their history, pruned after a while. The audit log records who did what."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Unpack

from sqlalchemy import Row, delete, select
from sqlalchemy.orm import Session

from core.paging import Columns, Page, Paging, list_page
from tenants.auditing.drafts import actor_of
from tenants.models import Appliance, ApplianceEvent
from tenants.permissions import Permission
from tenants.scope import Scope

EVENT_SORTS: Columns = {"at": ApplianceEvent.at, "kind": ApplianceEvent.kind}

MAX_MESSAGE_LENGTH = 500
# Deleting so many takes about 20 ms.
PRUNE_BATCH = 500


class EventKind(StrEnum):
    """The kind of an event."""

    ENROLLED = "enrolled"
    ENROLLED_AGAIN = "enrolled_again"
    REPORTING = "reporting"
    ADDED = "added"
    NODES = "nodes"
    STATE = "state"
    HEALTH = "health"
    CLOCK = "clock"
    AGENT = "agent"
    REBOOT = "reboot"
    INVENTORY = "inventory"
    DRAINED = "drained"
    UNDRAINED = "undrained"
    QUARANTINED = "quarantined"
    RELEASED = "released"
    CHANGED = "changed"
    CLEANED_UP = "cleaned_up"
    RETIRED = "retired"
    REINSTATED = "reinstated"
    REVOKED = "revoked"
    FENCED = "fenced"
    FENCE_LIFTED = "fence_lifted"
    CERTIFICATE_ISSUED = "certificate_issued"
    CERTIFICATE_REVOKED = "certificate_revoked"
    READMITTED = "readmitted"
    SAMPLES_REJECTED = "samples_rejected"
    VERIFICATION = "verification"


def add_event(
    session: Session,
    appliance: Appliance | Row[Any],
    kind: EventKind,
    message: str,
    *,
    now: datetime,
    details: dict[str, Any] | None = None,
) -> None:
    """Add an event to an appliance's history."""
    session.add(
        ApplianceEvent(
            tenant_id=appliance.tenant_id,
            appliance_id=appliance.id,
            at=now,
            kind=kind.value,
            message=message[:MAX_MESSAGE_LENGTH],
            details=details or {},
        )
    )


def actor_details(session: Session) -> dict[str, str]:
    """Return event details that name the actor of a session."""
    actor = actor_of(session)
    return {} if actor is None else {"by": actor.name}


def last_details(session: Session, appliance_id: str, kind: EventKind) -> dict[str, Any]:
    """Return the details of an appliance's newest event of a kind; empty without one."""
    statement = select(ApplianceEvent.details).where(
        ApplianceEvent.appliance_id == appliance_id, ApplianceEvent.kind == kind.value
    )
    newest_first = statement.order_by(ApplianceEvent.at.desc(), ApplianceEvent.id.desc())
    return session.scalars(newest_first.limit(1)).first() or {}


def list_events(
    session: Session,
    scope: Scope,
    appliance_id: str,
    *,
    kind: EventKind | None = None,
    **paging: Unpack[Paging],
) -> Page[ApplianceEvent]:
    """Return an appliance's events, newest first."""
    scope.require(Permission.VIEW)
    appliance = scope.get(session, Appliance, appliance_id, kind="appliance")
    statement = select(ApplianceEvent).where(ApplianceEvent.appliance_id == appliance.id)
    if kind is not None:
        statement = statement.where(ApplianceEvent.kind == kind.value)
    statement = statement.order_by(ApplianceEvent.at.desc(), ApplianceEvent.id.desc())
    return list_page(session, statement, EVENT_SORTS, last=ApplianceEvent.id, **paging)


def prune_events(session: Session, *, before: datetime) -> int:
    """Delete a batch of the oldest events; return how many were deleted."""
    oldest = (
        select(ApplianceEvent.id)
        .where(ApplianceEvent.at < before)
        .order_by(ApplianceEvent.at)
        .limit(PRUNE_BATCH)
    )
    idents = list(session.scalars(oldest))
    if idents:
        session.execute(
            delete(ApplianceEvent).where(ApplianceEvent.id.in_(idents)),
            execution_options={"synchronize_session": False},
        )
    return len(idents)
