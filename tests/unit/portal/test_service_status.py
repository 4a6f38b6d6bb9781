"""The status page: components, incidents and the last 90 days, from what the portal knows."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from core.db import SessionFactory
from core.leases import SCHEDULER_LEASE, Lease
from portal.presenters.service_status import DAYS, ComponentState, ServiceStatus, service_status
from tenants.models import FleetOutage
from tests.cast import NOON, FrozenClock
from tests.unit.portal.conftest import Browser
from timeseries.store import Store

HOUR = timedelta(hours=1)


def add_lease(session: Session) -> None:
    session.add(Lease(name=SCHEDULER_LEASE, holder="x", expires_at=NOON + HOUR))


def add_outage(session: Session, hours_ago: float, hours: float | None) -> None:
    began_at = NOON - hours_ago * HOUR
    session.add(
        FleetOutage(
            began_at=began_at,
            ended_at=None if hours is None else began_at + hours * HOUR,
            unreachable_count=9,
            fleet_count=10,
            notified_at=None,
            released_at=None,
            released_by=None,
        )
    )


def status_of(session: Session, store: Store) -> ServiceStatus:
    session.flush()
    return service_status(session, store, now=NOON)


def states(status: ServiceStatus) -> dict[str, ComponentState]:
    return {component.name: component.state for component in status.components}


def test_all_works(session: Session, store: Store) -> None:
    add_lease(session)
    status = status_of(session, store)
    assert set(states(status).values()) == {ComponentState.OPERATIONAL}
    assert (status.state, status.availability_percent) == (ComponentState.OPERATIONAL, 100.0)
    assert len(status.days) == DAYS
    assert status.days[-1].day == NOON.date()


def test_placement_is_down_without_a_scheduler(session: Session, store: Store) -> None:
    status = status_of(session, store)
    assert states(status)["Placement of jobs"] is ComponentState.DOWN
    assert status.state is ComponentState.DOWN


def test_a_mass_outage_is_an_incident_until_it_ends(session: Session, store: Store) -> None:
    add_lease(session)
    add_outage(session, hours_ago=3, hours=None)
    status = status_of(session, store)
    assert states(status)["Connections of appliances"] is ComponentState.DOWN
    # Of the twelve hours of today, three.
    assert status.days[-1].available_ratio == pytest.approx(0.75)
    assert status.incidents[0].ended_at is None


def test_outages_that_overlap_count_once(session: Session, store: Store) -> None:
    add_lease(session)
    for hours_ago, hours in ((60, 12), (54, 12), (24 * 200, 1)):
        add_outage(session, hours_ago, hours)
    status = status_of(session, store)
    assert status.state is ComponentState.OPERATIONAL
    assert len(status.incidents) == 2
    # 18 hours from midnight of the 28th of February, of 89.5 days.
    assert [day.available_ratio for day in status.days[-4:]] == pytest.approx([1, 0.25, 1, 1])
    assert status.availability_percent == pytest.approx(100 * (1 - 18 / (89.5 * 24)))


def test_the_page_shows_no_counts_of_appliances(
    nobody: Browser, sessions: SessionFactory, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        add_outage(session, hours_ago=3, hours=1)
    page = nobody.get("/market/status").text
    assert "Many appliances could not reach the portal" in page
    assert "9 of 10" not in page
    answer = nobody.get("/api/public/v1/status").json
    assert answer is not None
    assert set(answer["incidents"][0]) == {"began_at", "ended_at"}
    assert clock.now == NOON
