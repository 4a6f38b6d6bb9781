"""Guessing is made slow, by account and by address."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from tenants.models import Throttle, ThrottleKind
from tenants.users.throttling import (
    EXPIRES_AFTER,
    LOCKOUT_POLICIES,
    TooManyAttemptsError,
    count_attempt,
    forgive_attempt,
    is_expired,
    network_of,
    reset_account_attempts,
)
from tests.cast import NOON

BOB = "bob@acme.example"
HERE = "192.0.2.7"
MINUTE = timedelta(minutes=1)


def guess(
    session: Session,
    *,
    times: int = 1,
    account: str = BOB,
    address: str = HERE,
    now: datetime = NOON,
) -> None:
    for _ in range(times):
        count_attempt(session, account=account, address=address, now=now)


def wait_of(
    session: Session, *, account: str = BOB, address: str = HERE, now: datetime = NOON
) -> int:
    with pytest.raises(TooManyAttemptsError) as caught, session.begin_nested():
        count_attempt(session, account=account, address=address, now=now)
    return caught.value.retry_after_seconds


def test_five_tries_are_free_and_the_next_waits_a_minute(session: Session) -> None:
    guess(session, times=5)
    assert wait_of(session) == 60


def test_each_further_try_waits_twice_as_long_up_to_an_hour(session: Session) -> None:
    now, waits = NOON, []
    guess(session, times=5)
    for _ in range(9):
        waits.append(wait_of(session, now=now))
        now += timedelta(seconds=waits[-1])
        guess(session, now=now)
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_a_refused_try_is_not_counted(session: Session) -> None:
    guess(session, times=5)
    for _ in range(3):
        wait_of(session)
    assert session.scalars(select(Throttle.failures)).all() == [5, 5]


def test_the_message_says_in_minutes_when_to_try_again(session: Session) -> None:
    guess(session, times=5)
    guess(session, now=NOON + MINUTE)
    with pytest.raises(TooManyAttemptsError, match=r"Try again in 2 min\.") as caught:
        guess(session, now=NOON + MINUTE + timedelta(seconds=1))
    assert caught.value.status == 429
    assert caught.value.code == "too_many_attempts"


def test_the_case_of_an_address_makes_no_new_account(session: Session) -> None:
    guess(session, times=5)
    assert wait_of(session, account=" BOB@Acme.example ") == 60


def test_another_account_is_free_from_the_same_address(session: Session) -> None:
    guess(session, times=5)
    guess(session, account="alice@acme.example")


def test_an_account_waits_from_every_address(session: Session) -> None:
    guess(session, times=5)
    assert wait_of(session, address="198.51.100.9") == 60


def test_an_address_that_tries_many_accounts_waits_too(session: Session) -> None:
    for number in range(LOCKOUT_POLICIES[ThrottleKind.ADDRESS].free):
        guess(session, account=f"{number}@acme.example")
    assert wait_of(session, account="one-more@acme.example") == 60
    guess(session, account="one-more@acme.example", address="198.51.100.9")


def test_a_known_device_is_not_blocked_by_others(session: Session) -> None:
    guess(session, times=5)
    for number in range(LOCKOUT_POLICIES[ThrottleKind.ADDRESS].free - 5):
        guess(session, account=f"{number}@acme.example")
    assert wait_of(session) == 60
    assert wait_of(session, account="alice@acme.example") == 60
    count_attempt(session, account=BOB, address=HERE, device="laptop", now=NOON)


def test_a_known_device_waits_by_itself_and_blocks_nobody(session: Session) -> None:
    for _ in range(5):
        count_attempt(session, account=BOB, address=HERE, device="laptop", now=NOON)
    with pytest.raises(TooManyAttemptsError, match="from this browser") as caught:
        count_attempt(session, account=BOB, address=HERE, device="laptop", now=NOON)
    assert caught.value.retry_after_seconds == 60
    guess(session)
    count_attempt(session, account=BOB, address=HERE, device="phone", now=NOON)
    count_attempt(session, account="code of bob", address=HERE, device="laptop", now=NOON)


def test_a_right_try_of_a_known_device_gives_nothing_back_to_others(session: Session) -> None:
    guess(session, times=5)
    right = count_attempt(session, account=BOB, address=HERE, device="laptop", now=NOON)
    forgive_attempt(session, right)
    assert wait_of(session) == 60
    for _ in range(5):
        count_attempt(session, account=BOB, address=HERE, device="laptop", now=NOON)


def test_the_message_says_whose_attempts_they_were(session: Session) -> None:
    guess(session, times=5)
    with pytest.raises(TooManyAttemptsError, match="for this account"):
        guess(session, address="198.51.100.9")
    for number in range(LOCKOUT_POLICIES[ThrottleKind.ADDRESS].free - 5):
        guess(session, account=f"{number}@acme.example")
    with pytest.raises(TooManyAttemptsError, match="from your network address"):
        guess(session, account="alice@acme.example")


def test_an_unknown_network_address_counts_by_account_alone(session: Session) -> None:
    count_attempt(session, account=BOB, address=None, now=NOON)
    assert session.scalars(select(Throttle.kind)).all() == [ThrottleKind.ACCOUNT]


def test_a_right_try_gives_all_tries_back_to_its_account(session: Session) -> None:
    guess(session, times=4)
    forgive_attempt(session, count_attempt(session, account=BOB, address=HERE, now=NOON))
    guess(session, times=5)
    assert wait_of(session) == 60


def test_a_successful_sign_in_does_not_reset_its_address(session: Session) -> None:
    guess(session, times=4)
    forgive_attempt(session, count_attempt(session, account=BOB, address=HERE, now=NOON))
    failures = select(Throttle.failures).where(Throttle.kind == ThrottleKind.ADDRESS)
    assert session.scalars(failures).all() == [4]


def test_a_right_try_ends_the_wait_that_it_began_itself(session: Session) -> None:
    for number in range(LOCKOUT_POLICIES[ThrottleKind.ADDRESS].free - 1):
        guess(session, account=f"{number}@acme.example")
    forgive_attempt(session, count_attempt(session, account=BOB, address=HERE, now=NOON))
    guess(session, account=BOB)


def test_old_tries_are_forgotten(session: Session) -> None:
    guess(session, times=4)
    guess(session, times=5, now=NOON + EXPIRES_AFTER)


def test_a_patient_guesser_is_not_forgotten_while_the_last_wait_is_fresh(
    session: Session,
) -> None:
    guess(session, times=5)
    guess(session, times=1, now=NOON + EXPIRES_AFTER)
    assert wait_of(session, now=NOON + EXPIRES_AFTER) == 120
    forgotten = select(Throttle.id).where(is_expired(NOON + EXPIRES_AFTER))
    assert session.scalars(forgotten).all() == []


def test_a_forgiven_account_is_tried_again_at_once(session: Session) -> None:
    guess(session, times=5)
    reset_account_attempts(session, BOB)
    guess(session)


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:aaaa::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:bbbb::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("unix:", "unix:"),
    ],
)
def test_an_ipv6_host_counts_as_its_network(address: str, counted: str) -> None:
    assert network_of(address) == counted
