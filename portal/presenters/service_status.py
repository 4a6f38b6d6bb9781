"""Whether the portal works, for its public status page: components, incidents and last days.

Nothing of a tenant is in it: neither names nor counts of appliances.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.leases import SCHEDULER_LEASE, Lease
from tenants.fleet.access_points import access_point_problems
from tenants.models import FleetOutage
from timeseries.store import Store, damage_notice

DAYS = 90
MAX_INCIDENTS = 500
_DAY = timedelta(days=1)


class ComponentState(StrEnum):
    """The state of a component."""

    OPERATIONAL = "operational"
    DEGRADED = "degraded"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Component:
    """A part of the portal: its name, its state now, and what that means for users."""

    name: str
    state: ComponentState
    note: str


@dataclass(frozen=True, slots=True)
class Incident:
    """A time in which many appliances could not reach the portal; it goes on without an end."""

    began_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Day:
    """A day in UTC, and the share of it without an incident."""

    day: date
    available_ratio: float


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """What the status page shows; `availability_percent` is of the last 90 days."""

    at: datetime
    state: ComponentState
    components: Sequence[Component]
    days: Sequence[Day]
    availability_percent: float
    incidents: Sequence[Incident]


def service_status(session: Session, store: Store, *, now: datetime) -> ServiceStatus:
    """Return the status of the portal."""
    since = datetime.combine(now.astimezone(UTC).date(), time(), UTC) - (DAYS - 1) * _DAY
    statement = (
        select(FleetOutage.began_at, FleetOutage.ended_at)
        .where(or_(FleetOutage.ended_at.is_(None), FleetOutage.ended_at > since))
        .order_by(FleetOutage.began_at.desc())
        .limit(MAX_INCIDENTS)
    )
    incidents = [Incident(*row) for row in session.execute(statement)]
    components = _components(session, store, incidents, now=now)
    states = [component.state for component in components]
    return ServiceStatus(
        at=now,
        state=max(states, key=list(ComponentState).index),
        components=components,
        days=[
            Day((since + number * _DAY).date(), _ratio(incidents, since + number * _DAY, now=now))
            for number in range(DAYS)
        ],
        availability_percent=100 * _ratio(incidents, since, now=now, length=DAYS * _DAY),
        incidents=incidents,
    )


def _components(
    session: Session, store: Store, incidents: Sequence[Incident], *, now: datetime
) -> list[Component]:
    lease = session.get(Lease, SCHEDULER_LEASE)
    is_placing = lease is not None and lease.expires_at > now
    is_out = any(incident.ended_at is None for incident in incidents)
    has_problem = bool(access_point_problems(session, now=now))
    connections = ComponentState.OPERATIONAL
    if is_out or has_problem:
        connections = ComponentState.DOWN if is_out else ComponentState.DEGRADED
    good, degraded, down = ComponentState
    return [
        # This page answers.
        Component("Web portal and API", good, "Pages and API answer."),
        Component(
            "Placement of jobs",
            good if is_placing else down,
            "Jobs start as soon as there is room."
            if is_placing
            else "New jobs wait; those that run go on.",
        ),
        Component(
            "Connections of appliances",
            connections,
            {
                good: "Appliances report.",
                degraded: "An access point doesn't answer; appliances use others.",
                down: "Many appliances can't reach the portal; their jobs go on.",
            }[connections],
        ),
        Component(
            "Metrics",
            degraded if damage_notice(store) else good,
            "Some older samples may be missing."
            if damage_notice(store)
            else "Samples are stored and shown.",
        ),
    ]


def _ratio(
    incidents: Sequence[Incident], since: datetime, *, now: datetime, length: timedelta = _DAY
) -> float:
    """Return the share of a period, until now, in which there was no incident."""
    until = min(since + length, now)
    if until <= since:
        return 1.0
    away, last_at = timedelta(), since
    for incident in sorted(incidents, key=lambda row: row.began_at):
        start, end = max(incident.began_at, last_at), min(incident.ended_at or now, until)
        if end > start:
            away += end - start
            last_at = end
    return 1.0 - away / (until - since)
