"""Contracts: acme offers GPUs, globex takes them, negotiates and leaves."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy.orm import Session

from core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
)
from marketplace.accounts import admit
from marketplace.contracts.grants import refresh_contract, usable_contracts
from marketplace.contracts.new_contracts import MAX_NEW_CONTRACTS
from marketplace.contracts.service import (
    accept_version,
    decline_version,
    end_contract,
    get_contract,
    give_notice,
    list_contracts,
    propose_contract,
    propose_version,
    take_offer,
    withdraw_version,
)
from marketplace.models import Contract, Offer
from marketplace.offers.service import change_offer, set_offer_state
from marketplace.states import (
    AccountState,
    ContractState,
    OfferState,
    Side,
    VersionState,
)
from marketplace.terms import terms_hash
from tenants.lifecycle.removal import set_tenant_state
from tenants.models import Tenant, TenantState
from tenants.models.rentals import Grant
from tests.cast import NOON, Cast, scope_of
from tests.conftest import Fill
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.marketplace.builders import admit_sides, publish, request, take, terms

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
CHEAPER = terms(price=Decimal("1.5"))


def publish_offer(session: Session, cast: Cast) -> str:
    admit_sides(session, cast)
    add_appliance(session, cast.acme, "dgx-01")
    return publish(session, cast, "dgx-01", terms=terms(notice_days=2)).id


@pytest.fixture
def offer(prefill: Callable[[Fill], str], session: Session) -> Offer:
    """An offer of acme's dgx-01 at EUR 2, ended with a notice of two days."""
    return session.get_one(Offer, prefill(publish_offer))


@pytest.fixture
def contract(session: Session, cast: Cast, offer: Offer) -> Contract:
    return take(session, cast, offer)


def test_a_taken_offer_is_a_contract_at_once(
    session: Session, cast: Cast, contract: Contract, offer: Offer
) -> None:
    assert (contract.state, contract.starts_at) == (ContractState.ACTIVE, NOON)
    assert (contract.provider_name, contract.customer_name) == ("Acme", "Globex")
    (version,) = contract.versions
    assert version.state is VersionState.ACCEPTED
    assert (version.proposed_side, version.proposed_by) == (Side.PROVIDER, "")
    assert (version.accepted_by, version.accepted_at) == (cast.charlie.email, NOON)
    assert version.terms_hash == terms_hash(offer.decoded_terms)
    grant = session.get_one(Grant, contract.id)
    assert (grant.tenant_id, grant.provider_id) == (cast.globex.id, cast.acme.id)
    assert (grant.offer_id, grant.offer_name) == (offer.id, "H100s in Oslo")
    assert (grant.price, grant.is_open) == (Decimal(2), True)


def test_both_sides_see_a_contract_and_nobody_else(
    session: Session, cast: Cast, contract: Contract
) -> None:
    for user, side in ((cast.alice, Side.PROVIDER), (cast.charlie, Side.CUSTOMER)):
        scope = scope_of(user)
        assert get_contract(session, scope, contract.id) is contract
        assert list_contracts(session, scope).items == [contract]
        assert list_contracts(session, scope, side=side).items == [contract]
        assert list_contracts(session, scope, side=side.other).items == []
    assert list_contracts(session, scope_of(cast.olivia)).items == [contract]
    contract.customer_id = contract.provider_id
    with pytest.raises(NotFoundError):
        get_contract(session, scope_of(cast.charlie), contract.id)


def test_an_offer_that_needs_approval_is_a_proposal(
    session: Session, cast: Cast, offer: Offer
) -> None:
    offer.needs_approval = True
    contract = take(session, cast, offer)
    assert contract.state == "proposed"
    assert session.get(Grant, contract.id) is None
    accepted = terms_hash(offer.decoded_terms)
    alice = scope_of(cast.alice)
    accept_version(session, alice, contract.id, 1, terms_hash=accepted, now=NOON + HOUR)
    assert contract.state is ContractState.ACTIVE
    assert contract.versions[0].accepted_by == cast.alice.email
    assert session.get(Grant, contract.id) is not None


def test_a_changed_offer_is_refused_with_what_changed(
    session: Session, cast: Cast, offer: Offer
) -> None:
    old = terms_hash(offer.decoded_terms)
    changed = terms(price=Decimal("2.50"), notice_days=2)
    change_offer(
        session, scope_of(cast.alice), offer.id, request("dgx-01", terms=changed), now=NOON
    )
    with pytest.raises(ConflictError, match="These are not the terms") as refused:
        take_offer(session, scope_of(cast.charlie), offer.id, terms_hash=old, now=NOON)
    assert refused.value.code == "terms_changed"
    assert terms_hash(changed) in refused.value.message


def test_a_changed_offer_does_not_change_contracts(
    session: Session, cast: Cast, offer: Offer, contract: Contract
) -> None:
    changed = request("dgx-01", terms=terms(price=Decimal(9)))
    change_offer(session, scope_of(cast.alice), offer.id, changed, now=NOON)
    refresh_contract(session, contract.id, now=NOON + DAY)
    assert session.get_one(Grant, contract.id).price == Decimal(2)


def test_a_second_contract_about_an_offer_is_refused(
    session: Session, cast: Cast, offer: Offer, contract: Contract
) -> None:
    with pytest.raises(ConflictError, match=f"has the contract {contract.id}"):
        take(session, cast, offer)


@pytest.mark.parametrize("state", [OfferState.PAUSED, OfferState.WITHDRAWN])
def test_what_is_not_published_cannot_be_taken(
    session: Session, cast: Cast, offer: Offer, state: OfferState
) -> None:
    set_offer_state(session, scope_of(cast.alice), offer.id, state, now=NOON)
    with pytest.raises(NotFoundError):
        take(session, cast, offer)


def test_a_tenant_that_is_not_admitted_cannot_rent(
    session: Session, cast: Cast, offer: Offer
) -> None:
    olivia = scope_of(cast.olivia)
    admit(session, olivia, cast.globex.id, Side.CUSTOMER, AccountState.SUSPENDED, now=NOON)
    with pytest.raises(ForbiddenError, match="The operator suspended it"):
        take(session, cast, offer)


def test_an_own_offer_needs_no_contract(session: Session, cast: Cast, offer: Offer) -> None:
    olivia, alice = scope_of(cast.olivia), scope_of(cast.alice)
    admit(session, olivia, cast.acme.id, Side.CUSTOMER, AccountState.ACTIVE, now=NOON)
    with pytest.raises(ConflictError, match="your own offer"):
        take_offer(session, alice, offer.id, terms_hash="x", now=NOON)


def test_members_may_not_rent(session: Session, cast: Cast, contract: Contract) -> None:
    with pytest.raises(ForbiddenError):
        propose_version(session, scope_of(cast.bob), contract.id, CHEAPER, now=NOON)


def test_a_negotiation_ends_with_the_version_that_is_accepted(
    session: Session, cast: Cast, offer: Offer
) -> None:
    charlie, alice = scope_of(cast.charlie), scope_of(cast.alice)
    wanted, countered = terms(price=Decimal(1)), CHEAPER
    contract = propose_contract(session, charlie, offer.id, wanted, "For a year", now=NOON)
    propose_version(session, alice, contract.id, countered, now=NOON + HOUR)
    assert [version.state for version in contract.versions] == [
        VersionState.DECLINED,
        VersionState.PROPOSED,
    ]
    accepted = terms_hash(countered)
    accept_version(session, charlie, contract.id, 2, terms_hash=accepted, now=NOON + DAY)
    assert contract.state is ContractState.ACTIVE
    assert contract.terms_at(NOON + DAY) == countered
    assert session.get_one(Grant, contract.id).price == Decimal("1.5")


def test_another_proposal_of_the_same_side_replaces_its_own(
    session: Session, cast: Cast, contract: Contract
) -> None:
    alice = scope_of(cast.alice)
    for price in (3, 4):
        propose_version(session, alice, contract.id, terms(price=Decimal(price)), now=NOON)
    assert [version.state for version in contract.versions] == [
        VersionState.ACCEPTED,
        VersionState.WITHDRAWN,
        VersionState.PROPOSED,
    ]


def test_a_new_version_applies_from_the_next_full_hour(
    session: Session, cast: Cast, contract: Contract
) -> None:
    now = NOON + DAY + timedelta(minutes=20)
    propose_version(session, scope_of(cast.alice), contract.id, CHEAPER, now=now)
    accepted, charlie = terms_hash(CHEAPER), scope_of(cast.charlie)
    accept_version(session, charlie, contract.id, 2, terms_hash=accepted, now=now)
    assert contract.versions[1].applies_from == NOON + DAY + HOUR
    for at, price in ((now, Decimal(2)), (NOON + DAY + HOUR, Decimal("1.5"))):
        refresh_contract(session, contract.id, now=at)
        assert session.get_one(Grant, contract.id).price == price


def test_the_first_hour_has_a_price(session: Session, cast: Cast, offer: Offer) -> None:
    contract = take(session, cast, offer, now=NOON + timedelta(minutes=50))
    assert contract.terms_at(NOON) is not None


def test_an_old_hash_is_refused_with_what_changed(
    session: Session, cast: Cast, contract: Contract
) -> None:
    alice, charlie = scope_of(cast.alice), scope_of(cast.charlie)
    propose_version(session, alice, contract.id, CHEAPER, now=NOON)
    with pytest.raises(ConflictError, match=r"price is 1\.5, was 2; notice_days is 0, was 2"):
        accept_version(
            session,
            charlie,
            contract.id,
            2,
            terms_hash=contract.versions[0].terms_hash,
            now=NOON,
        )
    assert contract.versions[1].state is VersionState.PROPOSED


def test_a_replaced_version_is_refused_with_the_one_that_is_open(
    session: Session, cast: Cast, contract: Contract
) -> None:
    alice, charlie = scope_of(cast.alice), scope_of(cast.charlie)
    propose_version(session, alice, contract.id, CHEAPER, now=NOON)
    propose_version(session, alice, contract.id, terms(price=Decimal(3)), now=NOON)
    accepted = terms_hash(CHEAPER)
    with pytest.raises(ConflictError, match="withdrawn, and version 3 is proposed now: price is 3"):
        accept_version(session, charlie, contract.id, 2, terms_hash=accepted, now=NOON)
    with pytest.raises(NotFoundError):
        accept_version(session, charlie, contract.id, 9, terms_hash=accepted, now=NOON)


def test_each_side_answers_only_what_the_other_proposed(
    session: Session, cast: Cast, contract: Contract
) -> None:
    alice, charlie = scope_of(cast.alice), scope_of(cast.charlie)
    propose_version(session, alice, contract.id, CHEAPER, now=NOON)
    with pytest.raises(ForbiddenError, match="The other side accepts it"):
        accept_version(session, alice, contract.id, 2, terms_hash="", now=NOON)
    with pytest.raises(ForbiddenError, match="Withdraw it"):
        decline_version(session, alice, contract.id, 2, now=NOON)
    with pytest.raises(ForbiddenError, match="Decline it"):
        withdraw_version(session, charlie, contract.id, 2, now=NOON)
    with pytest.raises(ForbiddenError, match="Operators belong to no tenant"):
        decline_version(session, scope_of(cast.olivia), contract.id, 2, now=NOON)


def test_a_declined_change_leaves_the_contract_as_it_is(
    session: Session, cast: Cast, contract: Contract
) -> None:
    propose_version(session, scope_of(cast.alice), contract.id, CHEAPER, now=NOON)
    decline_version(session, scope_of(cast.charlie), contract.id, 2, now=NOON)
    assert contract.state is ContractState.ACTIVE
    assert session.get_one(Grant, contract.id).price == Decimal(2)


@pytest.mark.parametrize("is_withdrawn", [True, False])
def test_a_proposed_contract_ends_with_its_version(
    session: Session, cast: Cast, offer: Offer, *, is_withdrawn: bool
) -> None:
    charlie, alice = scope_of(cast.charlie), scope_of(cast.alice)
    contract = propose_contract(session, charlie, offer.id, CHEAPER, now=NOON)
    if is_withdrawn:
        withdraw_version(session, charlie, contract.id, 1, now=NOON)
    else:
        decline_version(session, alice, contract.id, 1, now=NOON)
    wanted = ContractState.WITHDRAWN if is_withdrawn else ContractState.DECLINED
    assert contract.state is wanted
    assert take(session, cast, offer).state is ContractState.ACTIVE


@pytest.mark.parametrize("side", list(Side))
def test_notice_ends_a_contract_after_the_notice_period(
    session: Session, cast: Cast, contract: Contract, side: Side
) -> None:
    scope = scope_of(cast.alice if side is Side.PROVIDER else cast.charlie)
    with pytest.raises(ConflictError, match="Give notice first"):
        end_contract(session, scope, contract.id, now=NOON)
    give_notice(session, scope, contract.id, now=NOON)
    assert (contract.noticed_by, contract.ends_at) == (side, NOON + 2 * DAY)
    refresh_contract(session, contract.id, now=NOON + DAY)
    assert session.get(Grant, contract.id) is not None
    with pytest.raises(ConflictError, match="ends at 2026-03-04 12:00 UTC"):
        end_contract(session, scope, contract.id, now=NOON + DAY)
    refresh_contract(session, contract.id, now=NOON + 2 * DAY)
    assert contract.state is ContractState.ENDED
    assert session.get(Grant, contract.id) is None
    assert usable_contracts(session) == []


def test_a_contract_that_ends_takes_no_other_terms(
    session: Session, cast: Cast, contract: Contract
) -> None:
    alice, charlie = scope_of(cast.alice), scope_of(cast.charlie)
    propose_version(session, alice, contract.id, CHEAPER, now=NOON)
    give_notice(session, charlie, contract.id, now=NOON)
    accepted = terms_hash(CHEAPER)
    with pytest.raises(ConflictError, match="The contract ends"):
        accept_version(session, charlie, contract.id, 2, terms_hash=accepted, now=NOON)
    with pytest.raises(ConflictError, match="its terms can't change"):
        propose_version(session, alice, contract.id, CHEAPER, now=NOON)


def test_a_fixed_term_ends_by_itself(session: Session, cast: Cast, offer: Offer) -> None:
    fixed = request("dgx-01", terms=terms(term_days=30, notice_days=90))
    change_offer(session, scope_of(cast.alice), offer.id, fixed, now=NOON)
    contract = take(session, cast, offer)
    assert contract.ends_at == NOON + 30 * DAY
    give_notice(session, scope_of(cast.charlie), contract.id, now=NOON)
    assert contract.ends_at == NOON + 30 * DAY


def test_a_version_renews_the_term(session: Session, cast: Cast, contract: Contract) -> None:
    longer, at = terms(term_days=30), NOON + 10 * DAY
    propose_version(session, scope_of(cast.alice), contract.id, longer, now=at)
    accepted, charlie = terms_hash(longer), scope_of(cast.charlie)
    accept_version(session, charlie, contract.id, 2, terms_hash=accepted, now=at)
    assert contract.ends_at == at + 30 * DAY


def test_the_operator_ends_a_contract_at_once_with_a_reason(
    session: Session, cast: Cast, contract: Contract
) -> None:
    olivia = scope_of(cast.olivia)
    with pytest.raises(InvalidInputError, match="Enter a reason"):
        end_contract(session, olivia, contract.id, now=NOON)
    end_contract(session, olivia, contract.id, reason="Fraud", now=NOON)
    assert (contract.state, contract.ends_at) == (ContractState.ENDED, NOON)
    with pytest.raises(ConflictError, match="The contract is ended"):
        end_contract(session, olivia, contract.id, reason="Fraud", now=NOON)


def test_terms_in_another_currency_are_refused(
    session: Session, cast: Cast, contract: Contract
) -> None:
    alice = scope_of(cast.alice)
    with pytest.raises(InvalidInputError, match="are in EUR, not USD"):
        propose_version(session, alice, contract.id, terms(currency="USD"), now=NOON)
    with pytest.raises(InvalidInputError, match="The note has 2,001 characters"):
        propose_version(session, alice, contract.id, CHEAPER, "x" * 2001, now=NOON)


def test_a_suspended_side_closes_the_grant(
    session: Session, cast: Cast, contract: Contract
) -> None:
    olivia = scope_of(cast.olivia)
    for tenant, side in ((cast.acme, Side.PROVIDER), (cast.globex, Side.CUSTOMER)):
        admit(session, olivia, tenant.id, side, AccountState.SUSPENDED, now=NOON)
        refresh_contract(session, contract.id, now=NOON)
        assert not session.get_one(Grant, contract.id).is_open
        admit(session, olivia, tenant.id, side, AccountState.ACTIVE, now=NOON)
        refresh_contract(session, contract.id, now=NOON)
        assert session.get_one(Grant, contract.id).is_open


def test_a_withdrawn_offer_leaves_contracts_usable(
    session: Session, cast: Cast, offer: Offer, contract: Contract
) -> None:
    set_offer_state(session, scope_of(cast.alice), offer.id, OfferState.WITHDRAWN, now=NOON)
    refresh_contract(session, contract.id, now=NOON)
    assert session.get_one(Grant, contract.id).is_open


def test_a_tenant_that_was_removed_ends_its_contracts(
    session: Session, cast: Cast, contract: Contract
) -> None:
    session.delete(session.get_one(Tenant, cast.globex.id))
    session.flush()
    session.expire_all()
    refresh_contract(session, contract.id, now=NOON + HOUR)
    assert (contract.state, contract.ends_at) == (ContractState.ENDED, NOON + HOUR)
    assert usable_contracts(session) == []


def test_a_tenant_that_was_closed_ends_its_contracts(
    session: Session, cast: Cast, contract: Contract
) -> None:
    olivia = scope_of(cast.olivia)
    set_tenant_state(session, olivia, cast.globex.id, TenantState.SUSPENDED, now=NOON)
    refresh_contract(session, contract.id, now=NOON + HOUR)
    assert contract.state is ContractState.ACTIVE
    set_tenant_state(session, olivia, cast.globex.id, TenantState.CLOSED, now=NOON)
    refresh_contract(session, contract.id, now=NOON + HOUR)
    assert (contract.state, contract.ends_at) == (ContractState.ENDED, NOON + HOUR)


def test_contracts_are_not_made_without_end(session: Session, cast: Cast, offer: Offer) -> None:
    charlie = scope_of(cast.charlie)
    for _ in range(MAX_NEW_CONTRACTS):
        made = propose_contract(session, charlie, offer.id, CHEAPER, now=NOON)
        withdraw_version(session, charlie, made.id, 1, now=NOON)
    with pytest.raises(OverloadedError, match="50 contracts within a day"):
        take(session, cast, offer)
    assert take(session, cast, offer, now=NOON + DAY).state is ContractState.ACTIVE


def test_a_suspended_provider_accepts_nothing(session: Session, cast: Cast, offer: Offer) -> None:
    contract = propose_contract(session, scope_of(cast.charlie), offer.id, CHEAPER, now=NOON)
    olivia = scope_of(cast.olivia)
    admit(session, olivia, cast.acme.id, Side.PROVIDER, AccountState.SUSPENDED, now=NOON)
    alice, accepted = scope_of(cast.alice), terms_hash(CHEAPER)
    with pytest.raises(ForbiddenError, match="The operator suspended it"):
        accept_version(session, alice, contract.id, 1, terms_hash=accepted, now=NOON)
