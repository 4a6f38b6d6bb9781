"""The mass-outage guard, with a fleet of 500."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from core.errors import ForbiddenError, NotFoundError
from core.ids import new_id
from tenants.fleet.events import list_events
from tenants.fleet.liveness import (
    REOPENED_WITHIN,
    ApplianceChange,
    FleetReachability,
    current_outage,
    mark_reported,
    release_mass_outage_guard,
    sweep_appliances,
    unreported_outage,
    update_mass_outage_guard,
)
from tenants.models import Appliance, ApplianceState, FleetOutage
from tests.cast import NOON, Cast, scope_of

S = ApplianceState
FLEET = 500


@pytest.fixture
def fleet(session: Session, cast: Cast) -> list[str]:
    """Ids of 500 appliances of two tenants, all heard at noon."""
    rows = [
        {
            "id": new_id(),
            "tenant_id": (cast.acme, cast.globex)[n % 2].id,
            "name": f"gpu-{n:03}",
            "state": S.ONLINE,
            "secret_hash": f"{n:064}",
            "enrolled_at": NOON,
            "last_seen_at": NOON,
        }
        for n in range(FLEET)
    ]
    session.execute(insert(Appliance), rows)
    return [str(row["id"]) for row in rows]


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def hear(session: Session, idents: list[str], seconds: float) -> None:
    session.execute(
        update(Appliance)
        .where(Appliance.id.in_(idents))
        .values(state=S.ONLINE, last_seen_at=at(seconds))
    )


def sweep(session: Session, seconds: float) -> list[ApplianceChange]:
    return sweep_appliances(
        session,
        now=at(seconds),
        stale_after=timedelta(seconds=30),
        unreachable_after=timedelta(seconds=90),
        lost_after=timedelta(seconds=600),
    )


def count(session: Session, state: ApplianceState) -> int:
    return len(session.scalars(select(Appliance.id).where(Appliance.state == state)).all())


def outages(session: Session) -> list[FleetOutage]:
    return list(session.scalars(select(FleetOutage).order_by(FleetOutage.id)))


def test_300_of_500_that_vanish_together_are_not_lost(session: Session, fleet: list[str]) -> None:
    for seconds in range(20, 1200, 60):
        hear(session, fleet[300:], seconds)
        sweep(session, seconds)
    assert (count(session, S.LOST), count(session, S.UNREACHABLE)) == (0, 300)
    assert current_outage(session) is not None


def test_a_mass_outage_is_one_outage_however_long_it_lasts(
    session: Session, fleet: list[str]
) -> None:
    for seconds in range(60, 3600, 60):
        hear(session, fleet[300:], seconds)
        sweep(session, seconds)
    (outage,) = outages(session)
    assert (outage.began_at, outage.ended_at) == (at(120), None)
    assert (outage.unreachable_count, outage.fleet_count) == (300, 500)


def test_the_guard_is_off_once_half_of_them_report_again_and_the_rest_is_lost(
    session: Session, fleet: list[str]
) -> None:
    hear(session, fleet[300:], 700)
    sweep(session, 700)
    hear(session, fleet[50:], 760)
    lost = [change for change in sweep(session, 760) if change.after is S.LOST]
    assert len(lost) == 50
    assert current_outage(session) is None
    assert outages(session)[0].ended_at == at(760)


def test_half_of_the_fleet_is_not_a_mass_outage(session: Session, fleet: list[str]) -> None:
    hear(session, fleet[250:], 700)
    assert len([change for change in sweep(session, 700) if change.after is S.LOST]) == 250
    assert outages(session) == []


def test_those_lost_before_have_no_part_in_an_outage(session: Session, fleet: list[str]) -> None:
    """190 are less than half of the 400 that are not lost: the 100 lost ones don't count."""
    session.execute(update(Appliance).where(Appliance.id.in_(fleet[:100])).values(state=S.LOST))
    hear(session, fleet[290:], 700)
    assert len([change for change in sweep(session, 700) if change.after is S.LOST]) == 190


def test_a_fleet_that_comes_and_goes_makes_one_outage(session: Session, fleet: list[str]) -> None:
    hear(session, fleet[300:], 100)
    sweep(session, 100)
    hear(session, fleet, 200)
    sweep(session, 200)
    hear(session, fleet[300:], 300)
    sweep(session, 300)
    (outage,) = outages(session)
    assert outage.ended_at is None


def test_an_outage_long_after_is_another_one(session: Session) -> None:
    suspect, well = FleetReachability(300, 500), FleetReachability(0, 500)
    assert update_mass_outage_guard(session, suspect, now=NOON)
    assert not update_mass_outage_guard(session, well, now=at(60))
    later = at(61) + REOPENED_WITHIN
    assert update_mass_outage_guard(session, suspect, now=later)
    assert [outage.began_at for outage in outages(session)] == [NOON, later]


def test_every_change_of_the_sweep_is_an_event(
    session: Session, cast: Cast, fleet: list[str]
) -> None:
    hear(session, fleet[1:], 700)
    for seconds in (40, 100, 700):
        sweep(session, seconds)
    page = list_events(session, scope_of(cast.alice), fleet[0])
    assert [event.message for event in reversed(page.items)] == [
        "Stale: no heartbeat for 40s.",
        "Unreachable: no heartbeat for 1m 40s.",
        "Lost: no heartbeat for 11m 40s.",
    ]


@pytest.mark.usefixtures("fleet")
def test_the_operator_releases_the_guard_and_the_unreachable_are_lost(
    session: Session, cast: Cast
) -> None:
    sweep(session, 700)
    release_mass_outage_guard(session, scope_of(cast.olivia), now=at(710))
    assert current_outage(session) is None
    assert len(sweep(session, 720)) == FLEET
    assert count(session, S.LOST) == FLEET


def test_a_new_mass_outage_after_a_release_activates_the_guard_again(
    session: Session, cast: Cast
) -> None:
    suspect, well = FleetReachability(300, 500), FleetReachability(0, 200)
    update_mass_outage_guard(session, suspect, now=NOON)
    release_mass_outage_guard(session, scope_of(cast.olivia), now=at(10))
    assert not update_mass_outage_guard(session, suspect, now=at(20))
    update_mass_outage_guard(session, well, now=at(30))
    assert update_mass_outage_guard(session, FleetReachability(150, 200), now=at(40))


def test_only_an_operator_releases_and_only_an_active_guard(session: Session, cast: Cast) -> None:
    with pytest.raises(ForbiddenError):
        release_mass_outage_guard(session, scope_of(cast.alice), now=NOON)
    with pytest.raises(NotFoundError):
        release_mass_outage_guard(session, scope_of(cast.olivia), now=NOON)


def test_an_outage_is_reported_once(session: Session) -> None:
    update_mass_outage_guard(session, FleetReachability(300, 500), now=NOON)
    outage = unreported_outage(session)
    assert outage is not None
    assert [mark_reported(session, outage.id, now=NOON) for _ in range(2)] == [True, False]
    assert unreported_outage(session) is None


@pytest.mark.parametrize(
    ("silent", "fleet_count", "suspect"),
    [(5, 5, True), (4, 4, False), (5, 10, False), (6, 10, True), (0, 0, False)],
)
def test_five_and_more_than_half_make_the_portal_suspect_itself(
    silent: int,
    fleet_count: int,
    suspect: bool,  # noqa: FBT001 - a table
) -> None:
    assert FleetReachability(silent, fleet_count).is_mass_outage is suspect
