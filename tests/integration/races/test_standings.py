"""The policy, operators and a provider act on a standing at the same moment, on both databases."""

from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from marketplace.consequences.models import Appeal, Standing, StandingEvent
from marketplace.consequences.policies import current_policy, set_policy
from marketplace.consequences.policy import Policy
from marketplace.consequences.service import (
    accept_appeal,
    appeal,
    reinstate,
    reject_appeal,
    suspend,
)
from marketplace.consequences.standing import evaluate
from marketplace.consequences.states import AppealState, EventKind, StandingState
from marketplace.models import Account
from marketplace.states import AccountState
from tests.cast import NOON, Cast, scope_of
from tests.integration.races.contending import contend
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.marketplace.builders import add_late_starts, admit_sides, publish, take

pytestmark = pytest.mark.timeout(300)

ROUNDS = 3
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def provider_id(factory: SessionFactory, people: Cast) -> str:
    """acme, which is a provider."""
    with transaction(factory) as session:
        admit_sides(session, people)
    return people.acme.id


def test_a_provider_that_is_judged_twice_at_once_has_one_notice(
    factory: SessionFactory, people: Cast, provider_id: str
) -> None:
    with transaction(factory) as session:
        add_appliance(session, people.acme, "gpu-1")
        contract = take(session, people, publish(session, people, "gpu-1"))
        add_late_starts(session, contract, *(NOON - number * DAY for number in range(1, 6)))
    answers = contend(factory, [partial(evaluate, provider_id=provider_id, now=NOON)] * 4)
    assert sorted(map(str, answers)) == ["False", "False", "False", "True"]
    with transaction(factory) as session:
        assert session.get_one(Standing, provider_id).state is StandingState.NOTICED
        noticed = select(func.count()).where(StandingEvent.kind == EventKind.NOTICED)
        assert session.scalar(noticed) == 1
        reinstate(session, scope_of(people.olivia), provider_id, "A test.", now=NOON)


def test_an_appeal_is_accepted_or_rejected_never_both(
    factory: SessionFactory, people: Cast, provider_id: str
) -> None:
    alice, olivia = scope_of(people.alice), scope_of(people.olivia)

    def accept(session: Session, ident: str) -> AppealState:
        return accept_appeal(session, olivia, ident, "Yes.", now=NOON).state

    def reject(session: Session, ident: str) -> AppealState:
        return reject_appeal(session, olivia, ident, "No.", now=NOON).state

    for _ in range(ROUNDS):
        with transaction(factory) as session:
            suspend(session, olivia, provider_id, "A test.", now=NOON)
        answers = contend(factory, [lambda session: appeal(session, alice, "No.", now=NOON).id] * 2)
        (ident,) = [answer for answer in answers if answer != "conflict"]
        decided = contend(factory, [partial(accept, ident=ident), partial(reject, ident=ident)])
        (won,) = [answer for answer in decided if isinstance(answer, AppealState)]
        assert sorted(map(str, decided)) == sorted([won.value, "conflict"])
        with transaction(factory) as session:
            assert session.get_one(Appeal, ident).state is won
            is_back = session.get_one(Account, provider_id).provider_state is AccountState.ACTIVE
            assert is_back == (won is AppealState.ACCEPTED)
            if not is_back:
                reinstate(session, olivia, provider_id, "A test.", now=NOON)


def test_account_and_standing_agree_whoever_acts(
    factory: SessionFactory, people: Cast, provider_id: str
) -> None:
    olivia = scope_of(people.olivia)
    for _ in range(ROUNDS):
        contend(
            factory,
            [
                lambda session: suspend(session, olivia, provider_id, "x", now=NOON).state,
                lambda session: evaluate(session, provider_id, now=NOON),
                lambda session: reinstate(session, olivia, provider_id, "x", now=NOON).state,
            ],
        )
        with transaction(factory) as session:
            standing = session.get_one(Standing, provider_id)
            is_suspended = standing.state is StandingState.SUSPENDED
            state = session.get_one(Account, provider_id).provider_state
            assert is_suspended == (state is AccountState.SUSPENDED)
            assert is_suspended == (standing.suspension_id is not None)


def test_operators_that_save_the_policy_at_once_make_versions_of_their_own(
    factory: SessionFactory, people: Cast
) -> None:
    olivia = scope_of(people.olivia)
    answers = contend(
        factory, [lambda session: set_policy(session, olivia, Policy(), now=NOON).number] * 4
    )
    numbers = [answer for answer in answers if isinstance(answer, int)]
    assert len(set(numbers)) == len(numbers) >= 1
    with transaction(factory) as session:
        assert current_policy(session)[0] == max(numbers)
