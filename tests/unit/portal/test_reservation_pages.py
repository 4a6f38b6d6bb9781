"""The page and the command of reservations: add, change and delete one; what is refused."""

from datetime import timedelta
from decimal import Decimal

import pytest

from core.db import SessionFactory
from jobqueue.projects.models import Project
from jobqueue.reservations.models import Booking, BookingGap, GapReason, Reservation
from tests.cast import NOON, Cast, FrozenClock
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.portal.conftest import Browser
from tests.unit.portal.market import make_market

FORM = {
    "name": "Nightly",
    "appliance_ids": "dgx-01\ndgx-02",
    "gpus": "",
    "schedule": "0 22 * * *",
    "time_zone": "Europe/Oslo",
    "duration_seconds": "8h",
}


@pytest.fixture
def project_id(sessions: SessionFactory, cast: Cast) -> str:
    with sessions.begin() as session:
        for name in ("dgx-01", "dgx-02"):
            add_appliance(session, cast.acme, name)
        project = Project(tenant_id=cast.acme.id, name="vision", created_at=NOON)
        session.add(project)
    return project.id


def test_a_reservation_is_added_changed_and_deleted(
    project_id: str, alice: Browser, bob: Browser
) -> None:
    assert "No reservations" in alice.get("/jobs/reservations").text
    assert alice.post("/jobs/reservations", FORM | {"project_id": project_id}).status_code == 302
    [listed] = bob.get("/api/v1/reservations").get_json()["items"]
    assert (listed["name"], listed["project_id"], listed["gpus"]) == ("Nightly", project_id, None)
    # Ten in the evening in Oslo, in March.
    assert listed["periods"][0] == {
        "begins_at": "2026-03-02T21:00:00+00:00",
        "ends_at": "2026-03-03T05:00:00+00:00",
    }
    page = bob.get("/jobs/reservations").text
    assert "vision" in page
    assert "Add reservation" not in page
    path = f"/jobs/reservations/{listed['id']}"
    assert "dgx-01\ndgx-02" in alice.get(path).text
    assert alice.post(path, FORM | {"gpus": "4", "project_id": ""}).status_code == 302
    shown = alice.get(f"/api/v1/reservations/{listed['id']}").get_json()
    assert (shown["gpus"], shown["project_id"]) == (4, None)
    assert alice.post(f"{path}/delete").status_code == 302
    assert alice.get("/api/v1/reservations").get_json()["total"] == 0


def test_what_is_wrong_stands_at_its_field(project_id: str, alice: Browser) -> None:
    alice.post("/jobs/reservations", FORM | {"project_id": project_id})
    refused = alice.post(
        "/jobs/reservations",
        FORM | {"project_id": project_id, "name": "Other", "schedule": "2026-03-03T05:00"},
    )
    assert refused.status_code == 422
    assert "The nearest free time is from" in refused.text
    unknown = alice.post("/jobs/reservations", FORM | {"project_id": "", "appliance_ids": "dgx-99"})
    assert "There is no appliance" in unknown.text


def test_the_page_says_what_of_a_rented_reservation_is_not_available(
    project_id: str, sessions: SessionFactory, cast: Cast, alice: Browser
) -> None:
    times = {"schedule": "0 22 * * *", "time_zone": "UTC", "duration_seconds": 3600}
    with sessions.begin() as session:
        reservation = Reservation(
            tenant_id=cast.acme.id,
            name="Peak",
            project_id=project_id,
            appliance_ids=[],
            appliance_count=2,
            max_gpu_hour_price=3,
            created_at=NOON,
            **times,
        )
        session.add(reservation)
        session.flush()
        for number in (1, 2):
            booking = Booking(
                reservation_id=reservation.id,
                tenant_id=cast.acme.id,
                project_id=project_id,
                provider_id=cast.globex.id,
                contract_id="contract",
                offer_name="H100 in Oslo",
                appliance_id=f"appliance-{number}",
                gpus=8,
                gpu_model="H100",
                since=NOON,
                **times,
            )
            session.add(booking)
        session.flush()
        gap = BookingGap(booking_id=booking.id, reason=GapReason.UNAVAILABLE, since=NOON)
        session.add(gap)
    page = alice.get("/jobs/reservations").text
    assert "2 rented, up to EUR 3.00 per GPU-hour" in page
    assert "1 not available now, so not charged" in page


def test_what_a_cancellation_costs_is_shown_before_it_is_confirmed(
    sessions: SessionFactory, cast: Cast, clock: FrozenClock, charlie: Browser
) -> None:
    with sessions.begin() as session:
        make_market(session, cast, now=clock.now)
        session.add(Project(tenant_id=cast.globex.id, name="vision", created_at=NOON))
    body = {
        "name": "Peak",
        "project_id": "vision",
        "schedule": (clock.now + timedelta(hours=2)).isoformat(),
        "duration_seconds": 3600,
        "gpus": 4,
        "appliance_count": 1,
        "max_gpu_hour_price": 5,
    }
    made = charlie.call("POST", "/api/v1/reservations", body).get_json()
    cost = made["cancellation"]
    assert (cost["hours"], cost["gpu_hours"]) == (24, 4.0)
    assert Decimal(cost["amount"]) == Decimal("12.40")
    shown = charlie.get("/jobs/reservations").text
    assert "within the next 24 hours is charged: 4.0 GPU-hours, 12.40" in shown.replace("EUR ", "")
    [listed] = charlie.get("/api/v1/reservations").get_json()["items"]
    assert listed == made
