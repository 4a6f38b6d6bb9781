"""Both sides of a contract, and several customers, act at the same moment, on both databases."""

from collections import Counter
from decimal import Decimal
from functools import partial

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from marketplace.contracts.service import (
    accept_version,
    get_contract,
    give_notice,
    propose_version,
    take_offer,
    withdraw_version,
)
from marketplace.models import Contract, Offer
from marketplace.offers.service import change_offer, create_offer, set_offer_state
from marketplace.states import ContractState, OfferState, VersionState
from marketplace.terms import terms_hash
from tenants.models.rentals import Grant, OfferedAppliance
from tests.cast import NOON, Cast, scope_of
from tests.integration.races.contending import contend
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.marketplace.builders import admit_sides, request, take, terms

pytestmark = pytest.mark.timeout(300)

ROUNDS = 3
OTHER = terms(price=Decimal(3))


@pytest.fixture(scope="module")
def offers(factory: SessionFactory, people: Cast) -> list[str]:
    """Published offers of acme, one for each test."""
    alice, idents = scope_of(people.alice), []
    with transaction(factory) as session:
        admit_sides(session, people)
        for name in ("gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-6"):
            add_appliance(session, people.acme, name)
            offer = create_offer(session, alice, request(name, name=name), now=NOON)
            set_offer_state(session, alice, offer.id, OfferState.PUBLISHED, now=NOON)
            idents.append(offer.id)
    return idents


@pytest.fixture
def contract_id(factory: SessionFactory, people: Cast, offers: list[str]) -> str:
    """A contract with a second version that acme proposes, which is open."""
    with transaction(factory) as session:
        offer = session.get_one(Offer, offers.pop())
        contract = take(session, people, offer)
        propose_version(session, scope_of(people.alice), contract.id, OTHER, now=NOON)
        return contract.id


def test_a_version_is_accepted_or_withdrawn_never_both(
    factory: SessionFactory, people: Cast, contract_id: str
) -> None:
    alice, charlie = scope_of(people.alice), scope_of(people.charlie)
    accepted = terms_hash(OTHER)

    def accept(session: Session, number: int) -> VersionState:
        return accept_version(
            session, charlie, contract_id, number, terms_hash=accepted, now=NOON
        ).state

    def withdraw(session: Session, number: int) -> VersionState:
        return withdraw_version(session, alice, contract_id, number, now=NOON).state

    for number in range(2, 2 + ROUNDS):
        racers = [partial(accept, number=number), partial(withdraw, number=number)]
        answers = contend(factory, racers)
        (won,) = [answer for answer in answers if isinstance(answer, VersionState)]
        assert sorted(map(str, answers)) == sorted([won.value, "conflict"])
        with transaction(factory) as session:
            contract = get_contract(session, alice, contract_id)
            assert contract.versions[number - 1].state is won
            assert contract.state is ContractState.ACTIVE
            propose_version(session, alice, contract_id, OTHER, now=NOON)


def test_terms_are_not_accepted_on_a_contract_that_ends(
    factory: SessionFactory, people: Cast, contract_id: str
) -> None:
    alice, charlie = scope_of(people.alice), scope_of(people.charlie)
    accepted = terms_hash(OTHER)
    contend(
        factory,
        [
            lambda session: (
                accept_version(
                    session, charlie, contract_id, 2, terms_hash=accepted, now=NOON
                ).state
            ),
            lambda session: give_notice(session, alice, contract_id, now=NOON).state,
        ],
    )
    with transaction(factory) as session:
        contract = get_contract(session, alice, contract_id)
        assert contract.state is ContractState.NOTICED
        # Whichever came first: notice follows the terms that applied when it was given.
        assert contract.ends_at == NOON
        assert session.get(Grant, contract_id) is not None


def test_both_sides_proposals_get_numbers_of_their_own(
    factory: SessionFactory, people: Cast, contract_id: str
) -> None:
    users = [people.alice, people.charlie] * 3

    answers = contend(
        factory,
        [
            partial(
                lambda session, user: (
                    propose_version(session, scope_of(user), contract_id, OTHER, now=NOON).number
                ),
                user=user,
            )
            for user in users
        ],
    )

    assert sorted(answers) == list(range(3, 3 + len(users)))
    with transaction(factory) as session:
        versions = get_contract(session, scope_of(people.alice), contract_id).versions
        states = Counter(version.state for version in versions)
        assert states[VersionState.PROPOSED] == 1
        assert versions[-1].state is VersionState.PROPOSED


def test_an_offer_is_taken_once_by_a_tenant(
    factory: SessionFactory, people: Cast, offers: list[str]
) -> None:
    ident, charlie = offers.pop(), scope_of(people.charlie)
    with transaction(factory) as session:
        accepted = terms_hash(session.get_one(Offer, ident).decoded_terms)
    answers = contend(
        factory,
        [
            lambda session: (
                take_offer(session, charlie, ident, terms_hash=accepted, now=NOON).state.value
            )
        ]
        * 6,
    )
    assert Counter(answers) == {"active": 1, "conflict": 5}
    with transaction(factory) as session:
        contracts = session.scalars(select(Contract).where(Contract.offer_id == ident)).all()
        assert len(contracts) == 1


def test_an_offer_that_changes_is_taken_with_its_old_terms_or_not_at_all(
    factory: SessionFactory, people: Cast, offers: list[str]
) -> None:
    ident = offers.pop()
    alice, charlie = scope_of(people.alice), scope_of(people.charlie)
    with transaction(factory) as session:
        offer = session.get_one(Offer, ident)
        name, before = offer.name, offer.decoded_terms
    changed = request(name, name=name, terms=OTHER)
    answers = contend(
        factory,
        [
            lambda session: change_offer(session, alice, ident, changed, now=NOON).name,
            lambda session: (
                take_offer(
                    session, charlie, ident, terms_hash=terms_hash(before), now=NOON
                ).state.value
            ),
        ],
    )
    assert answers[0] == name
    assert answers[1] in {"active", "terms_changed"}
    with transaction(factory) as session:
        for contract in session.scalars(select(Contract).where(Contract.offer_id == ident)):
            assert contract.versions[0].decoded_terms == before


def test_an_appliance_gets_into_one_of_two_offers(factory: SessionFactory, people: Cast) -> None:
    alice = scope_of(people.alice)
    with transaction(factory) as session:
        appliance = add_appliance(session, people.acme, "wanted")
        idents = [
            create_offer(session, alice, request("wanted", name=name), now=NOON).id
            for name in ("first", "second")
        ]
    answers = contend(
        factory,
        [
            partial(
                lambda session, ident: (
                    set_offer_state(
                        session, alice, ident, OfferState.PUBLISHED, now=NOON
                    ).state.value
                ),
                ident=ident,
            )
            for ident in idents
        ],
    )
    assert sorted(answers) == ["conflict", "published"]
    with transaction(factory) as session:
        row = session.get_one(OfferedAppliance, appliance.id)
        assert session.get_one(Offer, row.offer_id).state is OfferState.PUBLISHED
