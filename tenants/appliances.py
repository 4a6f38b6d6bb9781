"""Appliances: heartbeats, lists, drained and revoked ones.

How they join is in `tenants.enrolment`, how their silence is judged in `tenants.liveness`; both
are offered here too, so that callers find all of it in one place.
"""

from datetime import datetime
from typing import Any, Literal

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from core.errors import ConflictError, NotFoundError
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from tenants.enrolment import (
    authenticate_agent,
    check_appliance_name,
    create_enrolment_token,
    enrol_appliance,
)
from tenants.liveness import ApplianceChange, sweep_appliances
from tenants.models import Appliance, ApplianceState, HealthState
from tenants.permissions import Permission
from tenants.scope import Scope

__all__ = [
    "ApplianceChange",
    "appliance_names",
    "authenticate_agent",
    "bump_generation",
    "create_enrolment_token",
    "drain_appliance",
    "enrol_appliance",
    "get_appliance",
    "list_appliances",
    "record_heartbeat",
    "rename_appliance",
    "revoke_appliance",
    "sweep_appliances",
    "undrain_appliance",
]


def record_heartbeat(
    session: Session,
    appliance_id: str,
    *,
    inventory: dict[str, Any],
    agent_version: str,
    sent_at: datetime,
    now: datetime,
    health: dict[str, Any] | None = None,
) -> None:
    """Note that an appliance is alive: online, with this inventory and this health.

    An agent that tells no `health` leaves it unknown. `sent_at` is the agent's clock and `now` the
    portal's; their difference is kept as the skew, positive where the agent's clock is ahead.
    """
    session.execute(
        update(Appliance)
        .where(Appliance.id == appliance_id, Appliance.revoked_at.is_(None))
        .values(
            state=ApplianceState.ONLINE,
            inventory=inventory,
            health=health,
            health_state=None if health is None else HealthState(health["state"]),
            agent_version=agent_version,
            clock_skew_seconds=(sent_at - now).total_seconds(),
            last_seen_at=now,
        )
    )


def list_appliances(
    session: Session,
    scope: Scope,
    *,
    state: ApplianceState | None = None,
    health: HealthState | Literal["unknown"] | None = None,
    search: str = "",
    is_revoked: bool = False,
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[Appliance]:
    """Return the appliances that the scope may see, by name.

    Args:
        session: the database session.
        scope: who asks.
        state: only those in this state.
        health: only those of this health; `unknown` for those whose agents tell none.
        search: only those with this text in their name, site or region.
        is_revoked: those revoked, instead of those in service.
        page: the page's number, from 1.
        page_size: how many on a page.
    """
    scope.require(Permission.VIEW)
    statement = scope.select(select(Appliance).order_by(Appliance.name, Appliance.id), Appliance)
    revoked_at = Appliance.revoked_at
    statement = statement.where(revoked_at.is_not(None) if is_revoked else revoked_at.is_(None))
    if state is not None:
        statement = statement.where(Appliance.state == state)
    if health == "unknown":
        statement = statement.where(Appliance.health_state.is_(None))
    elif health is not None:
        statement = statement.where(Appliance.health_state == health)
    if search:
        columns = (Appliance.name, Appliance.site, Appliance.region)
        statement = statement.where(or_(*(c.icontains(search, autoescape=True) for c in columns)))
    return paginate(session, statement, number=page, size=page_size)


def get_appliance(session: Session, scope: Scope, appliance_id: str) -> Appliance:
    """Return an appliance; another tenant's is as good as missing."""
    scope.require(Permission.VIEW)
    return scope.get(session, Appliance, appliance_id, kind="appliance")


def appliance_names(session: Session, tenants: tuple[str, ...] | None) -> dict[str, str]:
    """Return id to name of these tenants' appliances (None: everyone's), revoked ones included."""
    statement = select(Appliance.id, Appliance.name)
    if tenants is not None:
        statement = statement.where(Appliance.tenant_id.in_(tenants))
    return {row[0]: row[1] for row in session.execute(statement)}


def rename_appliance(session: Session, scope: Scope, appliance_id: str, *, name: str) -> Appliance:
    """Give an appliance another name.

    Raises:
        InvalidInputError: the name has other characters than host names have.
        ConflictError: another appliance of the tenant has it.
    """
    appliance = _managed(session, scope, appliance_id)
    check_appliance_name(name)
    others = select(Appliance.id).where(
        Appliance.tenant_id == appliance.tenant_id,
        Appliance.name == name,
        Appliance.id != appliance.id,
    )
    if session.scalar(others) is not None:
        taken = f"Another appliance is called {name!r}. Choose another name."
        raise ConflictError(taken, code="name_taken", errors={"name": [taken]})
    appliance.name = name
    session.flush()
    return appliance


def drain_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Place no more jobs on an appliance; doing it twice keeps the first instant."""
    appliance = _managed(session, scope, appliance_id)
    appliance.drained_at = appliance.drained_at or now
    session.flush()
    return appliance


def undrain_appliance(session: Session, scope: Scope, appliance_id: str) -> Appliance:
    """Let jobs be placed on an appliance again."""
    appliance = _managed(session, scope, appliance_id)
    appliance.drained_at = None
    session.flush()
    return appliance


def revoke_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Shut an appliance out for good: its agent's secret is refused and its jobs count as lost."""
    appliance = _managed(session, scope, appliance_id)
    appliance.revoked_at = appliance.revoked_at or now
    appliance.state = ApplianceState.LOST
    session.flush()
    return appliance


def bump_generation(session: Session, appliance_id: str) -> None:
    """Count a change of what should run on an appliance, so that its agent asks again."""
    bumped = session.execute(
        update(Appliance)
        .where(Appliance.id == appliance_id)
        .values(desired_generation=Appliance.desired_generation + 1)
    )
    if not bumped.rowcount:  # type: ignore[attr-defined] # an UPDATE gives a CursorResult
        raise NotFoundError.of("appliance", appliance_id)


def _managed(session: Session, scope: Scope, appliance_id: str) -> Appliance:
    scope.require(Permission.MANAGE_APPLIANCES)
    return get_appliance(session, scope, appliance_id)
