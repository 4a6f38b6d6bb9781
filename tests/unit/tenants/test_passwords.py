"""Hashes of passwords: what they cost, and how many are made at once."""

import threading
from collections.abc import Iterator

import pytest
from argon2 import PasswordHasher, extract_parameters

from core.errors import OverloadedError
from tenants.users import passwords
from tenants.users.passwords import Hashing, hash_password, needs_rehash, verify_password

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
WAIT_SECONDS = 60


class Guests:
    """Threads that take a turn each and keep it until they are told to go."""

    def __init__(self, hashing: Hashing) -> None:
        self.refused = threading.Semaphore(0)
        self.inside = threading.Semaphore(0)
        self._hashing = hashing
        self._go = threading.Event()
        self._threads: list[threading.Thread] = []

    def come(self) -> None:
        thread = threading.Thread(target=self._stay, daemon=True)
        thread.start()
        self._threads.append(thread)

    def leave(self) -> None:
        self._go.set()
        for thread in self._threads:
            thread.join(WAIT_SECONDS)

    def _stay(self) -> None:
        try:
            with self._hashing.turn():
                self.inside.release()
                self._go.wait(WAIT_SECONDS)
        except OverloadedError:
            self.refused.release()


@pytest.fixture
def guests() -> Iterator[Guests]:
    guests = Guests(Hashing(CHEAP, at_once=2, waiting=1))
    yield guests
    guests.leave()


def test_a_password_is_known_by_its_hash_and_no_other_is() -> None:
    made = hash_password("correct horse")
    assert verify_password(made, "correct horse")
    assert not verify_password(made, "wrong horse")
    assert not verify_password("no hash at all", "correct horse")


def test_a_user_without_a_hash_has_no_password() -> None:
    assert not verify_password(None, "")


def test_the_dummy_hash_costs_what_a_real_one_does() -> None:
    nobodys = passwords.dummy_hash(CHEAP)
    assert extract_parameters(nobodys) == extract_parameters(CHEAP.hash("a password"))


def test_the_cost_is_one_that_owasp_names() -> None:
    named = {(5, 7_168, 1), (4, 9_216, 1), (3, 12_288, 1), (2, 19_456, 1), (1, 47_104, 1)}
    assert (passwords.PASSES, passwords.MEMORY_KIB, passwords.LANES) in named


def test_a_hash_of_other_costs_is_to_be_forged() -> None:
    assert needs_rehash(PasswordHasher(time_cost=3, memory_cost=16, parallelism=1).hash("horse"))
    assert not needs_rehash(hash_password("horse"))


def test_concurrent_hashes_are_limited_and_the_next_one_waits(guests: Guests) -> None:
    for _ in range(3):
        guests.come()
    for _ in range(2):
        assert guests.inside.acquire(timeout=WAIT_SECONDS)
    assert not guests.inside.acquire(blocking=False)
    guests.leave()
    assert guests.inside.acquire(timeout=WAIT_SECONDS)


def test_a_hash_is_refused_at_once_where_too_many_wait(guests: Guests) -> None:
    for _ in range(4):
        guests.come()
    assert guests.refused.acquire(timeout=WAIT_SECONDS)
    guests.leave()
    for _ in range(3):
        assert guests.inside.acquire(timeout=WAIT_SECONDS)


def test_a_failed_turn_is_released() -> None:
    hashing = Hashing(CHEAP, at_once=1, waiting=0)
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"), hashing.turn():
            raise ValueError("broken")
