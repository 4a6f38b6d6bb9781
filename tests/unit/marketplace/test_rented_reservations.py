"""Reservations of rented appliances: what is booked, for whom jobs start, and what it costs."""

# ruff: noqa: ANN401 - `reserve` passes any field on

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from core.db import SessionFactory
from core.errors import InvalidInputError
from jobqueue.holds.models import JobHold
from jobqueue.models import Job
from jobqueue.projects.models import Project
from jobqueue.queue.pending import explain_job
from jobqueue.reservations.bookings import bookings_under
from jobqueue.reservations.checks import ReservationRequest
from jobqueue.reservations.gaps import MAX_GAP
from jobqueue.reservations.models import Booking, Reservation
from jobqueue.reservations.service import create_reservation, delete_reservation, update_reservation
from jobqueue.reservations.views import booked_views, bookings_of
from jobqueue.states import AttemptState
from jobqueue.usage.measuring import Period
from marketplace.charges.models import BillingLine, LineKind
from marketplace.charges.replay import replay
from marketplace.charges.reserved import Cancellation, cancellations, reserved_in
from marketplace.charges.service import accrue
from marketplace.contracts.grants import refresh_contract, usable_contracts, write_grant
from marketplace.contracts.service import end_contract
from marketplace.models import Account, Contract
from marketplace.offers.coverage import refresh_provider
from marketplace.states import AccountState
from marketplace.terms import HourlyPrice, decoded, stored
from tenants.models import Appliance, ApplianceState
from tenants.models.rentals import Grant, OfferedAppliance
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, submit
from tests.unit.marketplace.builders import admit_sides, publish, take, terms
from tests.unit.marketplace.ledger import add_use, record_hour

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
BEGIN = NOON + 2 * HOUR
NIGHT = HourlyPrice(days=(0,), from_hour=15, until_hour=16, price=Decimal(3))


@pytest.fixture
def hosts(session: Session, cast: Cast) -> list[Appliance]:
    """Two appliances of acme's with eight GPUs each."""
    return [add_appliance(session, cast.acme, name) for name in ("dgx-01", "dgx-02")]


@pytest.fixture
def contract(session: Session, cast: Cast, hosts: list[Appliance]) -> Contract:
    """Globex's about both: EUR 2 an hour less 10 %, 3 in the fourth hour after noon."""
    admit_sides(session, cast)
    prices = terms(hourly_prices=(NIGHT,), discount_percent=Decimal(10))
    offer = publish(session, cast, *(host.name for host in hosts), terms=prices)
    return take(session, cast, offer)


@pytest.fixture
def project(session: Session, cast: Cast) -> Project:
    row = Project(tenant_id=cast.globex.id, name="vision", created_at=NOON)
    session.add(row)
    session.flush()
    return row


def reserve(session: Session, cast: Cast, **changes: Any) -> Reservation:
    """Let charlie reserve a rented appliance for Globex, from 14 to 16 o'clock."""
    return create_reservation(session, scope_of(cast.charlie), wanted(**changes), now=NOON)


def wanted(**changes: Any) -> ReservationRequest:
    fields: dict[str, Any] = {
        "name": "Peak",
        "project_id": "vision",
        "schedule": BEGIN.isoformat(),
        "duration_seconds": 7200,
        "appliance_count": 1,
        "max_gpu_hour_price": 5,
    }
    return ReservationRequest(**(fields | changes))


def refusal(session: Session, cast: Cast, **changes: Any) -> dict[str, list[str]]:
    """Return the errors of a request."""
    with pytest.raises(InvalidInputError) as caught:
        reserve(session, cast, **changes)
    return dict(caught.value.errors or {})


def waits(session: Session, cast: Cast, job: Job) -> str:
    """Return why a job waits, after placement."""
    dispatch(session, now=NOON)
    session.refresh(job)
    assert not is_starting(session, job)
    scope = scope_of(cast.charlie if job.tenant_id == cast.globex.id else cast.alice)
    explanation = explain_job(session, scope, job.id, now=NOON)
    assert explanation
    return str(explanation.decision)


def is_starting(session: Session, job: Job) -> bool:
    """Return whether a job has its GPUs."""
    session.refresh(job)
    return job.attempt is not None and job.attempt.state is AttemptState.STARTING


@pytest.mark.usefixtures("contract", "project")
def test_what_is_booked_is_kept_from_the_provider_and_other_projects(
    session: Session, cast: Cast, hosts: list[Appliance]
) -> None:
    reservation = reserve(session, cast, appliance_count=2)
    bookings = bookings_of(session, [reservation.id])[reservation.id]
    assert {booking.appliance_id for booking in bookings} == {host.id for host in hosts}
    assert {booking.gpus for booking in bookings} == {8}
    assert reservation.appliance_ids == []  # whose they are is the provider's business
    own = submit(session, cast.alice, gpus=1)
    assert "reserved by another tenant" in waits(session, cast, own)
    other = submit(session, cast.charlie, gpus=1, max_gpu_hour_price=5)
    assert "reserved for project vision" in waits(session, cast, other)
    vision = submit(session, cast.charlie, gpus=1, max_gpu_hour_price=5, project="vision")
    short = submit(session, cast.alice, gpus=1, time_limit_seconds=3600)
    dispatch(session, now=NOON)
    assert is_starting(session, vision)
    assert is_starting(session, short)
    # It is free again once the reservation is deleted.
    delete_reservation(session, scope_of(cast.charlie), reservation.id, now=NOON)
    dispatch(session, now=NOON)
    assert is_starting(session, own)


@pytest.mark.usefixtures("contract", "project")
def test_a_part_of_an_appliance_leaves_the_rest_to_its_provider(
    session: Session, cast: Cast, hosts: list[Appliance]
) -> None:
    reserve(session, cast, gpus=6)
    [booking] = session.scalars(select(Booking))
    [other] = [host for host in hosts if host.id != booking.appliance_id]
    booked = submit(session, cast.charlie, gpus=6, max_gpu_hour_price=5, project="vision")
    dispatch(session, now=NOON)
    assert is_starting(session, booked)
    assert booked.attempt
    assert booked.attempt.appliance_id == booking.appliance_id
    name = next(host.name for host in hosts if host.id == booking.appliance_id)
    beside = submit(session, cast.alice, gpus=2, appliance_id=name)
    dispatch(session, now=NOON)
    assert is_starting(session, beside)
    assert beside.attempt
    assert beside.attempt.appliance_id == booking.appliance_id != other.id


@pytest.mark.usefixtures("contract", "project")
def test_the_catalogue_has_no_gpus_that_are_booked_now(session: Session, cast: Cast) -> None:
    reserve(session, cast, appliance_count=2, gpus=5, schedule=(NOON + HOUR).isoformat())

    def free(now: datetime) -> list[int]:
        refresh_provider(session, cast.acme.id, now=now)
        return sorted(session.scalars(select(OfferedAppliance.free_gpus)))

    assert free(NOON) == [8, 8]
    assert free(NOON + HOUR) == [3, 3]


@pytest.mark.usefixtures("project")
def test_nothing_is_booked_that_does_not_meet_the_request(
    session: Session, cast: Cast, hosts: list[Appliance]
) -> None:
    assert refusal(session, cast) == {
        "appliance_count": ["There is no contract about an offer. Rent one first."]
    }
    admit_sides(session, cast)
    prices = terms(hourly_prices=(NIGHT,), max_gpus=8, region="eu-north")
    contract = take(session, cast, publish(session, cast, "dgx-01", "dgx-02", terms=prices))
    # The price of its most expensive hour counts, not that of now.
    [dear] = refusal(session, cast, max_gpu_hour_price=2.5)["appliance_count"]
    assert "3.00 an hour is above the highest price 2.50" in dear
    [elsewhere] = refusal(session, cast, rental={"region": "us-east"})["appliance_count"]
    assert "is in eu-north, us-east asked" in elsewhere
    assert "No other" in refusal(session, cast, gpu_model="B200")["appliance_count"][0]
    assert "8 GPUs at once" in refusal(session, cast, appliance_count=2)["appliance_count"][0]
    assert "16 requested" in refusal(session, cast, gpus=16)["appliance_count"][0]
    assert refusal(session, cast, project_id=None)["project_id"]
    assert refusal(session, cast, appliance_ids=["dgx-01"])["appliance_ids"]
    assert refusal(session, cast, rental={"regoin": "x"})["rental"]
    assert refusal(session, cast, max_gpu_hour_price=0, appliance_ids=[hosts[0].id])[
        "appliance_count"
    ]
    # The provider's own reservation is in the way, and the customer's in the provider's.
    alice = scope_of(cast.alice)
    for name in ("dgx-01", "dgx-02"):
        fields = {"project_id": None, "appliance_count": 0, "max_gpu_hour_price": 0}
        service = wanted(name=f"Service of {name}", appliance_ids=[name], **fields)
        create_reservation(session, alice, service, now=NOON)
    assert "its provider has it" in refusal(session, cast)["appliance_count"][0]
    session.execute(delete(Reservation))
    reserve(session, cast)
    [booking] = bookings_under(session, contract.id)
    fields = {"project_id": None, "appliance_count": 0, "max_gpu_hour_price": 0}
    service = wanted(name="Service", appliance_ids=[booking.appliance_id], **fields)
    with pytest.raises(InvalidInputError, match=r"Another tenant has it from .* nearest free time"):
        create_reservation(session, alice, service, now=NOON)


@pytest.mark.usefixtures("project", "hosts")
def test_a_contracts_gpus_at_once_count_over_all_of_its_bookings(
    session: Session, cast: Cast
) -> None:
    admit_sides(session, cast)
    take(session, cast, publish(session, cast, "dgx-01", "dgx-02", terms=terms(max_gpus=8)))
    reserve(session, cast, gpus=6)
    late = (BEGIN + HOUR).isoformat()
    [problem] = refusal(session, cast, name="Second", gpus=4, schedule=late)["appliance_count"]
    assert "another reservation has too many of the 8 GPUs that its contract allows" in problem
    reserve(session, cast, name="Beside", gpus=2, schedule=late)
    reserve(session, cast, name="After", gpus=8, schedule=(BEGIN + 3 * HOUR).isoformat())
    assert "8 GPUs" in refusal(session, cast, name="Third", gpus=1)["appliance_count"][0]


def test_what_no_job_used_is_charged_to_the_cent(
    sessions: SessionFactory, session: Session, cast: Cast, contract: Contract, project: Project
) -> None:
    session.get_one(Grant, contract.id).cancellation_hours = 0
    reservation = reserve(session, cast, gpus=4)
    [booking] = bookings_under(session, contract.id)
    facts: dict[str, Any] = {
        "contract": contract,
        "appliance_id": booking.appliance_id,
        "gpu_model": booking.gpu_model,
    }
    # One GPU for the first hour; in the second hour nothing.
    add_use(session, cast.globex.id, BEGIN, 3_600_000, **facts)
    for number in (-1, 1, 2):
        record_hour(session, BEGIN + number * HOUR)
    # It is given up in the middle of the second hour.
    delete_reservation(
        session, scope_of(cast.charlie), reservation.id, now=BEGIN + timedelta(minutes=90)
    )
    session.commit()
    accrue(sessions, now=NOON + 9 * HOUR)
    assert accrue(sessions, now=NOON + 9 * HOUR) == 0
    lines = session.scalars(
        select(BillingLine).where(BillingLine.kind == LineKind.RESERVATION).order_by(BillingLine.at)
    ).all()
    # Three GPUs at 2 less 10 %; then four for half an hour at 3 less 10 %.
    assert [(line.gpu_milliseconds, line.amount) for line in lines] == [
        (3 * 3_600_000, Decimal("5.40")),
        (2 * 3_600_000, Decimal("5.40")),
    ]
    assert {line.project_id for line in lines} == {project.id}
    assert {(line.tenant_id, line.provider_id) for line in lines} == {
        (cast.globex.id, cast.acme.id)
    }
    # A late row of the ledger corrects the hour.
    add_use(session, cast.globex.id, BEGIN, 1_800_000, **facts)
    session.commit()
    accrue(sessions, now=NOON + 10 * HOUR)
    later = session.scalars(
        select(BillingLine.amount)
        .where(BillingLine.kind == LineKind.RESERVATION)
        .order_by(BillingLine.at, BillingLine.amount)
    ).all()
    assert later == [Decimal("-0.90"), Decimal("5.40"), Decimal("5.40")]
    result = replay(sessions, Period(NOON, NOON + 24 * HOUR))
    assert result.is_equal, result.differences
    assert result.expected == Decimal("4.50") + Decimal("5.40") + Decimal("2.70")


@pytest.mark.usefixtures("project")
def test_what_is_cancelled_shortly_before_is_charged(
    sessions: SessionFactory, session: Session, cast: Cast, contract: Contract
) -> None:
    soon = reserve(session, cast, gpus=4)
    later = reserve(session, cast, name="Later", schedule=(NOON + 2 * DAY).isoformat())
    costs = cancellations(session, [soon.id, later.id], now=NOON)
    # Four GPUs from 14 to 16 o'clock at 2, then 3, less 10 %.
    assert costs[soon.id] == Cancellation(24, 8.0, Decimal(18))
    assert costs[later.id] == Cancellation(24, 0.0, Decimal(0))
    assert cancellations(session, [later.id], now=NOON + DAY)[later.id].gpu_hours == 0.0
    assert cancellations(session, [later.id], now=NOON + DAY + HOUR)[later.id].gpu_hours == 8.0
    for reservation in (soon, later):
        delete_reservation(session, scope_of(cast.charlie), reservation.id, now=NOON)
    assert not bookings_under(session, contract.id)
    assert not booked_views(session, {cast.acme.id}, now=NOON)
    # While its provider could not have given it, it is not.
    for number in range(2 * 24 + 4):
        record_hour(session, NOON + number * HOUR)
    host = session.get_one(Appliance, session.scalars(select(Booking.appliance_id)).first())
    host.drained_at = BEGIN
    refresh_contract(session, contract.id, now=BEGIN + timedelta(minutes=90))
    session.commit()
    accrue(sessions, now=NOON + 3 * DAY)
    lines = session.scalars(
        select(BillingLine.amount)
        .where(BillingLine.kind == LineKind.RESERVATION)
        .order_by(BillingLine.at)
    ).all()
    assert lines == [Decimal("7.20"), Decimal("5.40")]
    assert replay(sessions, Period(NOON, NOON + 4 * DAY)).is_equal


@pytest.mark.usefixtures("project")
def test_a_changed_reservation_is_charged_for_what_it_gave_up(
    session: Session, cast: Cast, contract: Contract
) -> None:
    reservation = reserve(session, cast, gpus=4)
    charlie = scope_of(cast.charlie)

    def change(**fields: Any) -> int:
        """Return the GPU-hours that are booked in its two hours after a change."""
        update_reservation(session, charlie, reservation.id, wanted(gpus=4, **fields), now=NOON)
        reserved = reserved_in(session, [BEGIN, BEGIN + HOUR]).values()
        return sum(place.gpu_milliseconds for place in reserved) // 3_600_000

    assert change(name="Peak hours") == 8
    assert change(duration_seconds=3 * 3600) == 8
    # Half of it is given up, but charged; what is booked now is in that.
    assert change(duration_seconds=3600) == 8
    assert change(schedule=(NOON + 2 * DAY).isoformat()) == 8
    [now_booked] = bookings_under(session, contract.id)
    assert now_booked.charged_until is None


def test_accepted_terms_of_before_say_nothing_about_cancellations() -> None:
    document = stored(terms())
    assert document.pop("cancellation_hours") == 24
    assert decoded(document).cancellation_hours == 0


@pytest.mark.usefixtures("project")
def test_a_booking_ends_with_what_it_rests_on(
    session: Session, cast: Cast, contract: Contract
) -> None:
    reservation = reserve(session, cast, appliance_count=2)
    assert len(bookings_under(session, contract.id)) == 2
    # A change books anew; what was booked before stays, for its charge.
    changed = wanted(name="Peak hours")
    update_reservation(session, scope_of(cast.charlie), reservation.id, changed, now=NOON + HOUR)
    ends = [row.until for row in session.scalars(select(Booking).order_by(Booking.id))]
    assert ends == [NOON + HOUR, NOON + HOUR, None]
    end_contract(session, scope_of(cast.olivia), contract.id, reason="test", now=NOON + HOUR)
    write_grant(session, contract, now=NOON + HOUR)
    refresh_contract(session, contract.id, now=NOON + 2 * HOUR)
    assert not bookings_under(session, contract.id)


@pytest.mark.usefixtures("project")
def test_a_booking_is_there_again_when_its_appliance_returns_to_the_offer(
    session: Session, cast: Cast, contract: Contract
) -> None:
    reserve(session, cast)
    [booking] = bookings_under(session, contract.id)
    offered = OfferedAppliance.appliance_id == booking.appliance_id
    session.execute(delete(OfferedAppliance).where(offered))
    refresh_contract(session, contract.id, now=BEGIN)
    assert not booked_views(session, {cast.acme.id}, now=BEGIN)
    # Nobody else gets its time meanwhile, not even its provider.
    fields = {"project_id": None, "appliance_count": 0, "max_gpu_hour_price": 0}
    service = wanted(name="Service", appliance_ids=[booking.appliance_id], **fields)
    with pytest.raises(InvalidInputError, match="Another tenant has it"):
        create_reservation(session, scope_of(cast.alice), service, now=NOON)
    refresh_provider(session, cast.acme.id, now=BEGIN + HOUR)
    assert booked_views(session, {cast.acme.id}, now=BEGIN + HOUR)  # before the task sees it
    refresh_contract(session, contract.id, now=BEGIN + HOUR)
    assert bookings_under(session, contract.id) == [booking]
    # The first hour is not charged; the second is.
    places = reserved_in(session, [BEGIN, BEGIN + HOUR])
    assert [place.hour_at for place, reserved in places.items() if reserved.gpu_milliseconds] == [
        BEGIN + HOUR
    ]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("outage", ["offline", "drained", "suspended"])
def test_an_outage_of_the_provider_is_not_charged(
    session: Session, cast: Cast, contract: Contract, hosts: list[Appliance], outage: str
) -> None:
    reserve(session, cast, gpus=4)
    for host in hosts:
        host.last_seen_at = BEGIN + timedelta(minutes=10)
        if outage == "offline":
            host.state = ApplianceState.UNREACHABLE
        if outage == "drained":
            host.drained_at = BEGIN
    account = session.get_one(Account, cast.acme.id)
    if outage == "suspended":
        account.provider_state = AccountState.SUSPENDED
    for minutes in (15, 16, 30):
        refresh_contract(session, contract.id, now=BEGIN + timedelta(minutes=minutes))
    is_kept = bool(booked_views(session, {cast.acme.id}, now=BEGIN))
    assert is_kept is (outage != "suspended")
    account.provider_state = AccountState.ACTIVE
    for host in hosts:
        host.state, host.drained_at = ApplianceState.ONLINE, None
    refresh_contract(session, contract.id, now=BEGIN + timedelta(minutes=45))
    assert booked_views(session, {cast.acme.id}, now=BEGIN)
    [reserved] = reserved_in(session, [BEGIN]).values()
    # Without its heartbeats it was away since the last of them.
    usable_minutes = 25 if outage == "offline" else 30
    assert reserved.gpu_milliseconds == 4 * usable_minutes * 60_000


@pytest.mark.usefixtures("project")
def test_a_booking_ends_if_its_appliance_does_not_return(
    session: Session, cast: Cast, contract: Contract
) -> None:
    reserve(session, cast)
    session.execute(delete(OfferedAppliance))
    refresh_contract(session, contract.id, now=NOON)
    refresh_contract(session, contract.id, now=NOON + MAX_GAP)
    assert bookings_under(session, contract.id)
    refresh_contract(session, contract.id, now=NOON + MAX_GAP + HOUR)
    assert not bookings_under(session, contract.id)


@pytest.mark.usefixtures("project")
def test_nothing_is_kept_for_who_has_used_up_its_credit(
    session: Session, cast: Cast, contract: Contract
) -> None:
    reserve(session, cast)
    hold = JobHold(
        source_id=cast.globex.id,
        tenant_id=cast.globex.id,
        is_for_rentals=True,
        reason="The credit is used up.",
        held_at=NOON,
    )
    session.add(hold)
    session.flush()
    refresh_contract(session, contract.id, now=NOON + HOUR)
    assert not bookings_under(session, contract.id)


@pytest.mark.usefixtures("project")
def test_nothing_is_booked_under_a_contract_that_was_ended(
    session: Session, cast: Cast, contract: Contract
) -> None:
    reserve(session, cast)
    end_contract(session, scope_of(cast.olivia), contract.id, reason="test", now=NOON + HOUR)
    # The periodic task only looks at contracts that can be used.
    assert contract.id not in usable_contracts(session)
    assert not bookings_under(session, contract.id)
