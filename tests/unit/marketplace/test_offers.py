"""Offers: drafts, what they cover, publication, and what is free."""

from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from jobqueue.models import Attempt
from jobqueue.partitions.checks import PolicyRequest
from jobqueue.partitions.service import create_policy
from jobqueue.reservations.checks import ReservationRequest
from jobqueue.reservations.service import create_reservation
from marketplace.accounts import admit
from marketplace.offers.coverage import refresh_provider
from marketplace.offers.service import (
    change_offer,
    create_offer,
    get_offer,
    list_offered,
    list_offers,
    set_offer_state,
)
from marketplace.states import AccountState, OfferState, Side
from marketplace.terms import ComplianceFact, HourlyPrice
from protocol.gpu_slices import PartitionMode
from tenants.models import ApplianceState
from tenants.models.rentals import OfferedAppliance
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import GIB, add_appliance, dispatch, submit
from tests.unit.marketplace.builders import admit_sides, publish, request, take, terms


@pytest.fixture(autouse=True)
def admitted(session: Session, cast: Cast) -> None:
    admit_sides(session, cast)


def covered(session: Session) -> dict[str, OfferedAppliance]:
    session.expire_all()
    return {row.appliance_id: row for row in session.scalars(select(OfferedAppliance))}


def refresh(session: Session, cast: Cast) -> dict[str, OfferedAppliance]:
    refresh_provider(session, cast.acme.id, now=NOON)
    return covered(session)


def test_an_offer_is_a_draft_until_it_is_published(session: Session, cast: Cast) -> None:
    appliance = add_appliance(session, cast.acme, "dgx-01")
    alice = scope_of(cast.alice)
    offer = create_offer(session, alice, request("dgx-01"), now=NOON, currency="EUR")
    assert (offer.state, offer.appliance_ids) == (OfferState.DRAFT, [appliance.id])
    assert covered(session) == {}
    set_offer_state(session, alice, offer.id, OfferState.PUBLISHED, now=NOON)
    row = covered(session)[appliance.id]
    assert (row.offer_id, row.provider_id, row.is_open) == (offer.id, cast.acme.id, True)
    assert (row.gpu_model, row.gpu_memory_bytes) == ("NVIDIA H100 80GB HBM3", 80 * GIB)
    assert (row.gpu_count, row.free_gpus, row.free_gpu_milli) == (8, 8, 8000)
    assert row.price == Decimal(2)
    (shown,) = list_offered(session, alice, offer.id).items
    assert (shown.name, shown.free_gpus) == ("dgx-01", 8)


def test_paused_and_withdrawn_offers_cover_nothing(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    offer, alice = publish(session, cast, "dgx-01"), scope_of(cast.alice)
    set_offer_state(session, alice, offer.id, OfferState.PAUSED, now=NOON)
    assert covered(session) == {}
    set_offer_state(session, alice, offer.id, OfferState.PUBLISHED, now=NOON)
    assert len(covered(session)) == 1
    set_offer_state(session, alice, offer.id, OfferState.WITHDRAWN, now=NOON)
    assert covered(session) == {}
    with pytest.raises(ConflictError, match="is withdrawn: it can't be published"):
        set_offer_state(session, alice, offer.id, OfferState.PUBLISHED, now=NOON)
    with pytest.raises(ConflictError, match="Create a new one"):
        change_offer(session, alice, offer.id, request("dgx-01"), now=NOON)


def test_an_offer_in_use_covers_its_appliances_after_its_withdrawal(
    session: Session, cast: Cast
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    offer = publish(session, cast, "dgx-01")
    take(session, cast, offer)
    set_offer_state(session, scope_of(cast.alice), offer.id, OfferState.WITHDRAWN, now=NOON)
    assert len(covered(session)) == 1


def test_labels_cover_appliances_that_come_and_go(session: Session, cast: Cast) -> None:
    first = add_appliance(session, cast.acme, "dgx-01")
    second = add_appliance(session, cast.acme, "dgx-02")
    first.labels = {"pool": "rent", "rack": "4"}
    session.flush()
    publish(session, cast, labels={"pool": "rent"})
    assert covered(session).keys() == {first.id}
    first.labels, second.labels = {}, {"pool": "rent"}
    session.flush()
    assert refresh(session, cast).keys() == {second.id}
    second.retired_at = NOON
    session.flush()
    assert refresh(session, cast) == {}


def test_an_appliance_is_in_one_offer(session: Session, cast: Cast) -> None:
    first = add_appliance(session, cast.acme, "dgx-01")
    second = add_appliance(session, cast.acme, "dgx-02")
    named = publish(session, cast, "dgx-01")
    with pytest.raises(ConflictError, match=r"Already in another offer: dgx-01 \(H100s in Oslo\)"):
        publish(session, cast, "dgx-01", "dgx-02", name="Other")
    second.labels = {"pool": "rent"}
    session.flush()
    other = publish(session, cast, labels={"pool": "rent"}, name="Labels")
    first.labels = {"pool": "rent"}
    session.flush()
    rows = refresh(session, cast)
    assert rows[first.id].offer_id == named.id
    assert rows[second.id].offer_id == other.id


def test_an_offer_that_covers_nothing_is_not_published(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01", gpus=0)
    with pytest.raises(ConflictError, match="covers no appliance with GPUs"):
        publish(session, cast, "dgx-01")


def test_only_admitted_providers_publish(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    olivia = scope_of(cast.olivia)
    admit(session, olivia, cast.acme.id, Side.PROVIDER, AccountState.NONE, now=NOON)
    with pytest.raises(ForbiddenError, match="Ask for admission as a provider"):
        publish(session, cast, "dgx-01")


def test_a_suspended_provider_is_closed(session: Session, cast: Cast) -> None:
    appliance = add_appliance(session, cast.acme, "dgx-01")
    publish(session, cast, "dgx-01")
    olivia = scope_of(cast.olivia)
    admit(session, olivia, cast.acme.id, Side.PROVIDER, AccountState.SUSPENDED, now=NOON)
    assert not refresh(session, cast)[appliance.id].is_open


def test_other_tenants_and_members_have_no_access(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    offer, charlie = publish(session, cast, "dgx-01"), scope_of(cast.charlie)
    for change in (
        lambda: get_offer(session, charlie, offer.id),
        lambda: change_offer(session, charlie, offer.id, request("dgx-01"), now=NOON),
        lambda: set_offer_state(session, charlie, offer.id, OfferState.PAUSED, now=NOON),
        lambda: list_offered(session, charlie, offer.id),
    ):
        with pytest.raises(NotFoundError):
            change()
    assert list_offers(session, charlie).items == []
    with pytest.raises(ForbiddenError):
        create_offer(session, scope_of(cast.bob), request("dgx-01"), now=NOON)


def test_wrong_offers_are_refused_with_the_fields(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.globex, "theirs")
    add_appliance(session, cast.acme, "dgx-01")
    publish(session, cast, "dgx-01")
    wrong = request("theirs", name="H100s in Oslo", terms=terms(currency="USD"))
    with pytest.raises(InvalidInputError) as refused:
        create_offer(session, scope_of(cast.alice), wrong, now=NOON, currency="EUR")
    assert refused.value.errors == {
        "name": ["An offer named 'H100s in Oslo' already exists."],
        "appliance_ids": ["There is no appliance 'theirs'."],
        "terms.currency": ["All prices of this portal are in EUR, not USD."],
    }


def test_what_jobs_of_any_tenant_have_is_not_free(session: Session, cast: Cast) -> None:
    appliance = add_appliance(session, cast.acme, "dgx-01")
    publish(session, cast, "dgx-01")
    submit(session, cast.alice, gpus=3)
    dispatch(session, now=NOON)
    row = refresh(session, cast)[appliance.id]
    assert (row.free_gpus, row.free_gpu_milli) == (5, 5000)
    session.execute(update(Attempt).values(tenant_id=cast.globex.id))
    assert refresh(session, cast)[appliance.id].free_gpus == 5


@pytest.mark.parametrize("name", ["drained_at", "quarantined_at", "state"])
def test_nothing_is_free_where_no_jobs_start(session: Session, cast: Cast, name: str) -> None:
    appliance = add_appliance(session, cast.acme, "dgx-01")
    publish(session, cast, "dgx-01")
    setattr(appliance, name, ApplianceState.STALE if name == "state" else NOON)
    appliance.quarantine_reason = "Jobs don't start" if name == "quarantined_at" else ""
    session.flush()
    row = refresh(session, cast)[appliance.id]
    assert (row.gpu_count, row.free_gpus, row.free_gpu_milli) == (8, 0, 0)


@pytest.mark.parametrize(("gpus", "free"), [(None, 0), (6, 2)])
def test_what_a_reservation_of_the_provider_keeps_is_not_free(
    session: Session, cast: Cast, gpus: int | None, free: int
) -> None:
    appliance = add_appliance(session, cast.acme, "dgx-01")
    publish(session, cast, "dgx-01")
    reservation = ReservationRequest(
        name="Service",
        appliance_ids=["dgx-01"],
        schedule=NOON.isoformat(),
        duration_seconds=3600,
        gpus=gpus,
    )
    create_reservation(session, scope_of(cast.alice), reservation, now=NOON - timedelta(hours=1))
    assert refresh(session, cast)[appliance.id].free_gpus == free


def test_shared_gpus_are_free_in_parts(session: Session, cast: Cast) -> None:
    appliance = add_appliance(session, cast.acme, "dgx-01", gpus=2, partition_modes=["mps"])
    publish(session, cast, "dgx-01", terms=terms(allows_slices=True))
    shared = PolicyRequest(name="Shared", mode=PartitionMode.MPS, shares=4)
    create_policy(session, scope_of(cast.alice), shared, now=NOON)
    row = refresh(session, cast)[appliance.id]
    assert (row.free_gpus, row.free_gpu_milli, row.allows_slices) == (0, 2000, True)


def test_prices_and_facts_follow_the_time(session: Session, cast: Cast) -> None:
    appliance = add_appliance(session, cast.acme, "dgx-01")
    special = HourlyPrice(days=(0,), from_hour=13, until_hour=14, price=Decimal(1))
    facts = (ComplianceFact(name="gdpr", valid_until="2026-03-02"), ComplianceFact(name="iso27001"))
    agreed = terms(hourly_prices=(special,), discount_percent=Decimal(10), facts=facts)
    publish(session, cast, "dgx-01", terms=agreed)
    row = covered(session)[appliance.id]
    assert (row.price, row.facts) == (Decimal("1.8"), ",gdpr,iso27001,")
    refresh_provider(session, cast.acme.id, now=NOON + timedelta(hours=1))
    assert covered(session)[appliance.id].price == Decimal("0.9")
    refresh_provider(session, cast.acme.id, now=NOON + timedelta(days=1))
    row = covered(session)[appliance.id]
    assert (row.price, row.facts) == (Decimal("1.8"), ",iso27001,")
