"""Liveness: the sweep marks appliances without heartbeats as stale, unreachable and lost.

The time since the last heartbeat counts on the portal's clock. Jobs on a *lost* appliance end as
lost, so the *mass-outage guard* protects a fleet that disappears at once: when more than half of
the appliances, and at least five, are unreachable together, the portal or its network is the more
likely cause, and no appliance is marked as lost until enough of them report again. An outage that
starts again soon after its end counts as the same outage, so that operators get one alert. An
operator who knows that the appliances are really down releases the guard.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, func, select, update
from sqlalchemy.orm import Session

from core.db import changed_one, chunked
from core.errors import NotFoundError
from core.quantities import format_duration
from tenants.auditing.recording import record
from tenants.fleet.events import EventKind, add_event
from tenants.fleet.nodes import follow_connectors
from tenants.fleet.states import (
    WITHOUT_AGENT,
    Thresholds,
    check_transition,
    has_no_connector,
    in_service,
    next_state,
)
from tenants.models import Appliance, ApplianceState, FleetOutage, User
from tenants.permissions import Permission
from tenants.scope import Scope

logger = logging.getLogger(__name__)

MASS_OUTAGE_MIN_COUNT: Final = 5
MASS_OUTAGE_RATIO: Final = 0.5
REOPENED_WITHIN: Final = timedelta(minutes=30)
_UNREACHABLE: Final = frozenset({ApplianceState.UNREACHABLE, ApplianceState.LOST})
# Appliances that were lost before have nothing to do with an outage.
_FLEET: Final = (
    in_service(),
    Appliance.state.not_in((ApplianceState.LOST, *WITHOUT_AGENT)),
    # Nodes of clusters follow their connector.
    has_no_connector(),
)


@dataclass(frozen=True, slots=True)
class ApplianceChange:
    """A change of state in a sweep."""

    appliance_id: str
    tenant_id: str
    name: str
    before: ApplianceState
    after: ApplianceState


@dataclass(frozen=True, slots=True)
class FleetReachability:
    """The number of unreachable appliances, and of all; those lost before count in neither."""

    unreachable_count: int
    fleet_count: int

    @property
    def is_mass_outage(self) -> bool:
        """Return whether the portal or its network is the more likely cause."""
        is_large = self.unreachable_count > MASS_OUTAGE_RATIO * self.fleet_count
        return is_large and self.unreachable_count >= MASS_OUTAGE_MIN_COUNT


def sweep_appliances(
    session: Session,
    *,
    now: datetime,
    stale_after: timedelta,
    unreachable_after: timedelta,
    lost_after: timedelta,
    listening_since: datetime | None = None,
) -> list[ApplianceChange]:
    """Update the states of appliances without recent heartbeats; return the changes.

    The portal's own downtime does not count: it started at `listening_since`.
    """
    thresholds = Thresholds(stale_after, unreachable_after, lost_after)
    planned = []
    for appliance in _overdue(session, before=now - stale_after):
        seen_at = appliance.last_seen_at or appliance.enrolled_at
        silence = now - max(seen_at, listening_since or seen_at)
        planned.append((appliance, next_state(appliance.state, silence, thresholds)))
    unreachable = sum(after in _UNREACHABLE for _, after in planned)
    fleet = session.scalar(select(func.count()).select_from(Appliance).where(*_FLEET)) or 0
    is_guarded = update_mass_outage_guard(session, FleetReachability(unreachable, fleet), now=now)
    due: dict[tuple[ApplianceState, ApplianceState], list[Row[Any]]] = defaultdict(list)
    for appliance, target in planned:
        is_protected = is_guarded and target is ApplianceState.LOST
        after = ApplianceState.UNREACHABLE if is_protected else target
        if appliance.state is not after:
            due[appliance.state, after].append(appliance)
    return [
        ApplianceChange(appliance.id, appliance.tenant_id, appliance.name, before, after)
        for (before, after), rows in due.items()
        for appliance in _set_state(
            session, rows, before, after, now=now, silent_since=now - stale_after
        )
    ]


def _overdue(session: Session, *, before: datetime) -> Sequence[Row[Any]]:
    statement: Any = select(
        Appliance.id,
        Appliance.tenant_id,
        Appliance.name,
        Appliance.state,
        Appliance.last_seen_at,
        Appliance.enrolled_at,
        Appliance.cluster_kind,
    ).where(*_FLEET, _is_silent(since=before))
    return session.execute(statement.order_by(Appliance.id)).all()


def _is_silent(*, since: datetime) -> ColumnElement[bool]:
    seen_at = func.coalesce(
        Appliance.last_seen_at, Appliance.enrolled_at, type_=Appliance.enrolled_at.type
    )
    return seen_at < since


def _set_state(
    session: Session,
    rows: Sequence[Row[Any]],
    before: ApplianceState,
    after: ApplianceState,
    *,
    now: datetime,
    silent_since: datetime,
) -> Iterator[Row[Any]]:
    """Move appliances from one state to another; yield those that no heartbeat has moved since."""
    check_transition(before, after)
    for batch in chunked(rows):
        overdue = (
            Appliance.id.in_([row.id for row in batch]),
            Appliance.state == before,
            _is_silent(since=silent_since),
        )
        # Locked until the end of the transaction: a concurrent heartbeat waits, or came first.
        locked = set(session.scalars(select(Appliance.id).where(*overdue).with_for_update()))
        session.execute(update(Appliance).where(Appliance.id.in_(locked)).values(state=after))
        connectors = [row.id for row in batch if row.id in locked and row.cluster_kind]
        follow_connectors(session, connectors, after)
        for row in batch:
            if row.id in locked:
                silence = format_duration(
                    (now - (row.last_seen_at or row.enrolled_at)).total_seconds()
                )
                message = f"{after.value.capitalize()}: no heartbeat for {silence}."
                details = {"before": before.value, "after": after.value}
                add_event(session, row, EventKind.STATE, message, details=details, now=now)
                yield row


def update_mass_outage_guard(
    session: Session, reachability: FleetReachability, *, now: datetime
) -> bool:
    """Start, continue or end an outage; return whether the mass-outage guard is active."""
    outage = _newest_outage(session, FleetOutage.ended_at.is_(None))
    if not reachability.is_mass_outage:
        if outage is not None:
            outage.ended_at = now
            logger.warning("Appliances report again: the mass-outage guard is off.")
        return False
    if outage is None:
        # A released outage has ended: appliances that disappear later are another one.
        reopened = (
            FleetOutage.ended_at >= now - REOPENED_WITHIN,
            FleetOutage.released_at.is_(None),
        )
        outage = _newest_outage(session, *reopened) or _started(session, reachability, now=now)
        outage.ended_at = None
    if reachability.unreachable_count > outage.unreachable_count:
        outage.unreachable_count = reachability.unreachable_count
        outage.fleet_count = reachability.fleet_count
    return outage.released_at is None


def current_outage(session: Session) -> FleetOutage | None:
    """Return the outage for which the mass-outage guard is active."""
    outage = _newest_outage(session, FleetOutage.ended_at.is_(None))
    return outage if outage is not None and outage.released_at is None else None


def release_mass_outage_guard(session: Session, scope: Scope, *, now: datetime) -> FleetOutage:
    """Release the guard: unreachable appliances may be marked as lost.

    Raises:
        NotFoundError: the guard is not active.
    """
    scope.require(Permission.OPERATE)
    outage = current_outage(session)
    if outage is None:
        raise NotFoundError("The mass-outage guard is not active. There is nothing to release.")
    outage.released_at = now
    outage.released_by = scope.user_id
    record(
        session,
        action="fleet_outage.released",
        target_id=outage.id,
        target_name=f"{outage.unreachable_count} of {outage.fleet_count} appliances",
        tenant_id=None,
        after={"released_at": now.isoformat()},
        now=now,
    )
    session.flush()
    return outage


def unreported_outage(session: Session) -> FleetOutage | None:
    """Return the current outage if the operators were not notified of it."""
    outage = current_outage(session)
    return outage if outage is not None and outage.notified_at is None else None


def mark_reported(session: Session, outage_id: str, *, now: datetime) -> bool:
    """Record that the operators were notified; return False if another process did it first."""
    return changed_one(
        session,
        update(FleetOutage)
        .where(FleetOutage.id == outage_id, FleetOutage.notified_at.is_(None))
        .values(notified_at=now),
    )


def operators(session: Session) -> list[User]:
    """Return the active operators."""
    statement = select(User).where(User.is_operator, User.is_active).order_by(User.email)
    return list(session.scalars(statement))


def _newest_outage(session: Session, *where: ColumnElement[bool]) -> FleetOutage | None:
    newest_first = select(FleetOutage).where(*where).order_by(FleetOutage.id.desc())
    return session.scalars(newest_first.limit(1)).first()


def _started(session: Session, reachability: FleetReachability, *, now: datetime) -> FleetOutage:
    unreachable, fleet = reachability.unreachable_count, reachability.fleet_count
    logger.critical(
        "%d of %d appliances are unreachable at once: the portal or its network may be the cause. "
        "No appliance is marked as lost until some of them report again.",
        unreachable,
        fleet,
    )
    outage = FleetOutage(began_at=now, unreachable_count=unreachable, fleet_count=fleet)
    session.add(outage)
    session.flush()
    return outage
