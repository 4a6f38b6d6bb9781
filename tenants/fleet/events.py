"""Events of appliances: what happened to one, for its page and its history.

They are of use to whoever asks what became of an appliance, and go after a while; who changed what
is kept by the audit log.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from core.sorting import Columns, sorted_by
from tenants.auditing.drafts import actor_of
from tenants.models import Appliance, ApplianceEvent
from tenants.permissions import Permission
from tenants.scope import Scope

EVENT_SORTS: Columns = {
    "at": ApplianceEvent.at,
    "kind": ApplianceEvent.kind,
}

MAX_MESSAGE_LENGTH = 500
PRUNED_AT_ONCE = 5000


class EventKind(StrEnum):
    """What an event is about, for programs; those of identity are made where identities are."""

    ENROLLED = "enrolled"
    ENROLLED_AGAIN = "enrolled_again"
    STATE = "state"
    HEALTH = "health"
    CLOCK = "clock"
    AGENT = "agent"
    REBOOT = "reboot"
    INVENTORY = "inventory"
    DRAINED = "drained"
    UNDRAINED = "undrained"
    CHANGED = "changed"
    RETIRED = "retired"
    REINSTATED = "reinstated"
    REVOKED = "revoked"
    FENCED = "fenced"
    FENCE_LIFTED = "fence_lifted"
    CERTIFICATE_ISSUED = "certificate_issued"
    CERTIFICATE_REVOKED = "certificate_revoked"
    LET_IN = "let_in"


class Whose(Protocol):
    """What an event must know of the appliance that it is of."""

    @property
    def id(self) -> str:
        """The appliance's id."""

    @property
    def tenant_id(self) -> str:
        """Its tenant's."""


def add_event(
    session: Session,
    appliance: Appliance | Whose,
    kind: str,
    message: str,
    *,
    now: datetime,
    details: dict[str, Any] | None = None,
) -> None:
    """Note what happened to an appliance; `kind` is a word for programs, one of `EventKind`."""
    session.add(
        ApplianceEvent(
            tenant_id=appliance.tenant_id,
            appliance_id=appliance.id,
            at=now,
            kind=str(kind),
            message=message[:MAX_MESSAGE_LENGTH],
            details=details or {},
        )
    )


def by_whom(session: Session) -> dict[str, str]:
    """Return the details that say who acts on a session, where it is known."""
    actor = actor_of(session)
    return {} if actor is None else {"by": actor.name}


def last_details(session: Session, appliance_id: str, kind: EventKind) -> dict[str, Any]:
    """Return the details of an appliance's newest event of a kind; none where there is none."""
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
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[ApplianceEvent]:
    """Return what happened to an appliance, the newest first.

    Args:
        session: the database session.
        scope: who asks.
        appliance_id: whose events; another tenant's is as good as missing.
        kind: only those of this kind.
        sort: names of `EVENT_SORTS`, see `core.sorting`.
        page: the page's number, from 1.
        page_size: how many on a page.
    """
    scope.require(Permission.VIEW)
    appliance = scope.get(session, Appliance, appliance_id, kind="appliance")
    statement = select(ApplianceEvent).where(ApplianceEvent.appliance_id == appliance.id)
    if kind is not None:
        statement = statement.where(ApplianceEvent.kind == kind.value)
    statement = statement.order_by(ApplianceEvent.at.desc(), ApplianceEvent.id.desc())
    return paginate(
        session,
        sorted_by(statement, sort, EVENT_SORTS, last=ApplianceEvent.id),
        number=page,
        size=page_size,
    )


def prune_events(session: Session, *, before: datetime) -> int:
    """Delete the oldest events from before an instant, some thousands at a time.

    Returns:
        How many went; 0 says that none is left.
    """
    oldest = (
        select(ApplianceEvent.id)
        .where(ApplianceEvent.at < before)
        .order_by(ApplianceEvent.at)
        .limit(PRUNED_AT_ONCE)
    )
    idents = list(session.scalars(oldest))
    if idents:
        session.execute(
            delete(ApplianceEvent).where(ApplianceEvent.id.in_(idents)),
            execution_options={"synchronize_session": False},
        )
    return len(idents)
