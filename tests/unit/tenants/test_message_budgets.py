"""Budgets of messages of users and tenants, within an hour."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from core.errors import OverloadedError
from tenants.lifecycle.message_budgets import (
    MESSAGES,
    MessageBudgets,
    charge_user,
    count_message,
    full_until,
    sent_messages,
)
from tests.cast import NOON, Cast, scope_of

BUDGETS = MessageBudgets(of_user=2, of_tenant=5)
HOUR = timedelta(hours=1)


def test_the_messages_that_a_user_causes_within_an_hour_are_limited(
    session: Session, cast: Cast
) -> None:
    bob, alice = scope_of(cast.bob), scope_of(cast.alice)
    for minutes in (0, 10):
        charge_user(session, bob, BUDGETS, now=NOON + timedelta(minutes=minutes))
    with pytest.raises(OverloadedError, match="You have sent 2 messages") as refused:
        charge_user(session, bob, BUDGETS, now=NOON + timedelta(minutes=20))
    assert refused.value.retry_after_seconds == 40 * 60
    charge_user(session, alice, BUDGETS, now=NOON)
    charge_user(session, bob, BUDGETS, now=NOON + HOUR)
    sent = sent_messages(session, now=NOON + HOUR - timedelta(seconds=1))
    assert sent == {(cast.acme.id, cast.bob.id): 1, (cast.acme.id, cast.alice.id): 1}


def test_a_tenant_without_messages_left_has_none_for_its_users(
    session: Session, cast: Cast
) -> None:
    for _ in range(5):
        assert count_message(session, cast.acme.id, MESSAGES, BUDGETS, now=NOON) is None
    assert count_message(session, cast.acme.id, MESSAGES, BUDGETS, now=NOON) == NOON + HOUR
    assert full_until(session, cast.acme.id, MESSAGES, BUDGETS, now=NOON) == NOON + HOUR
    with pytest.raises(OverloadedError, match="Your tenant has sent 5 messages"):
        charge_user(session, scope_of(cast.alice), BUDGETS, now=NOON)
    charge_user(session, scope_of(cast.charlie), BUDGETS, now=NOON)
    assert full_until(session, cast.acme.id, MESSAGES, BUDGETS, now=NOON + HOUR) is None


def test_operators_and_portals_without_limits_send_any_number(session: Session, cast: Cast) -> None:
    for _ in range(10):
        charge_user(session, scope_of(cast.olivia), BUDGETS, now=NOON)
        charge_user(session, scope_of(cast.bob), MessageBudgets(), now=NOON)
