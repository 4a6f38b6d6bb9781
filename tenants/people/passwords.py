"""Passwords: argon2id hashes, made by as many threads at once as the machine can bear.

What a hash costs, and why so much, is told in docs/decisions/0021-password-hashes.md.
"""

import base64
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from core.errors import OverloadedError

MIN_PASSWORD_LENGTH = 10
# Longer input costs time and adds nothing.
MAX_PASSWORD_LENGTH = 1024

PASSES, MEMORY_KIB, LANES = 2, 19 * 1024, 1
MOST_AT_ONCE = 4
# Together fewer than the portal has threads: whoever is signed in already is not held up.
MOST_WAITING = 8
RETRY_AFTER_SECONDS = 2


class Hashing:
    """Hashes passwords; a few at once, a few more wait, and the others are asked to come again.

    Args:
        hasher: does the work.
        at_once: how many may hash at the same time; each takes the hasher's memory.
        waiting: how many more may wait for their turn.
    """

    def __init__(self, hasher: PasswordHasher, *, at_once: int, waiting: int) -> None:
        self.hasher = hasher
        self._turns = threading.BoundedSemaphore(at_once)
        self._places = threading.BoundedSemaphore(at_once + waiting)

    @contextmanager
    def turn(self) -> Iterator[PasswordHasher]:
        """Wait for a turn and give the hasher for the length of the block.

        Raises:
            OverloadedError: too many wait already.
        """
        if not self._places.acquire(blocking=False):
            raise OverloadedError(
                "Too many people sign in at this moment. Try again in a few seconds.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        try:
            with self._turns:
                yield self.hasher
        finally:
            self._places.release()


_hashing = Hashing(
    PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=LANES),
    at_once=min(MOST_AT_ONCE, os.cpu_count() or 1),
    waiting=MOST_WAITING,
)


def hash_password(password: str) -> str:
    """Return the argon2id hash of a password, its salt and parameters included.

    Raises:
        OverloadedError: too many passwords are hashed already.
    """
    with _hashing.turn() as hasher:
        return hasher.hash(password)


def verify_password(password_hash: str | None, password: str) -> bool:
    """Whether the password is the one that was hashed.

    Without a hash (no such user) the same work is done, so that the time an answer takes does not
    tell which email addresses are known.

    Raises:
        OverloadedError: too many passwords are hashed already.
    """
    with _hashing.turn() as hasher:
        try:
            matches = hasher.verify(password_hash or _nobodys_hash(hasher), password)
        except (VerificationError, InvalidHashError):
            return False
    return matches and password_hash is not None


def needs_rehash(password_hash: str) -> bool:
    """Whether the hash was made with other parameters than today's."""
    return _hashing.hasher.check_needs_rehash(password_hash)


def password_faults(password: str) -> list[str]:
    """Return what is wrong with a new password; an empty list is a good one."""
    if len(password) < MIN_PASSWORD_LENGTH:
        return [f"The password has {len(password)} characters; use at least {MIN_PASSWORD_LENGTH}."]
    if len(password) > MAX_PASSWORD_LENGTH:
        return [f"The password has {len(password)} characters; use at most {MAX_PASSWORD_LENGTH}."]
    return []


def _nobodys_hash(hasher: PasswordHasher) -> str:
    """Return a hash of today's parameters that no password has: it is written, not made."""
    salt, digest = (
        base64.b64encode(bytes(length)).decode().rstrip("=")
        for length in (hasher.salt_len, hasher.hash_len)
    )
    costs = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    return f"$argon2id$v=19${costs}${salt}${digest}"
