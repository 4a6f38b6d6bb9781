"""Passwords: argon2id hashes, a limited number of them concurrently.

docs/decisions/0014-sign-in.md explains the parameters.
"""

import base64
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy.orm import Session

from core.errors import OverloadedError
from tenants.checks import raise_if_invalid
from tenants.models import User
from tenants.users.sessions import end_all_sessions

MIN_PASSWORD_LENGTH = 10
# Longer input costs time and adds no security.
MAX_PASSWORD_LENGTH = 1024
PASSES, MEMORY_KIB, LANES = 2, 19 * 1024, 1
MAX_CONCURRENT = 4
# Together fewer than the portal's threads, so that signed-in users don't wait.
MAX_WAITING = 8
RETRY_AFTER_SECONDS = 2


class Hashing:
    """Hashes passwords: `at_once` concurrently, `waiting` more wait, further ones are refused.

    Each hash uses the memory that the hasher's parameters set.
    """

    def __init__(self, hasher: PasswordHasher, *, at_once: int, waiting: int) -> None:
        self.hasher = hasher
        self._turns = threading.BoundedSemaphore(at_once)
        self._places = threading.BoundedSemaphore(at_once + waiting)

    @contextmanager
    def turn(self) -> Iterator[PasswordHasher]:
        """Wait for a turn; yield the hasher.

        Raises:
            OverloadedError: too many wait already.
        """
        if not self._places.acquire(blocking=False):
            raise OverloadedError(
                "Too many users are signing in right now. Try again in a few seconds.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        try:
            with self._turns:
                yield self.hasher
        finally:
            self._places.release()


hashing = Hashing(
    PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=LANES),
    at_once=min(MAX_CONCURRENT, os.cpu_count() or 1),
    waiting=MAX_WAITING,
)


def hash_password(password: str) -> str:
    """Return the argon2id hash of a password, with its salt and parameters."""
    with hashing.turn() as hasher:
        return hasher.hash(password)


def verify_password(password_hash: str | None, password: str) -> bool:
    """Return whether the password matches the hash.

    Without a hash (unknown user) the same work is done, so that the response time does not reveal
    which email addresses have accounts.
    """
    with hashing.turn() as hasher:
        try:
            matches = hasher.verify(password_hash or dummy_hash(hasher), password)
        except (VerificationError, InvalidHashError):
            return False
    return matches and password_hash is not None


def needs_rehash(password_hash: str) -> bool:
    """Return whether the hash has outdated parameters."""
    return hashing.hasher.check_needs_rehash(password_hash)


def password_errors(password: str) -> list[str]:
    """Return what is wrong with a new password."""
    length = len(password)
    if MIN_PASSWORD_LENGTH <= length <= MAX_PASSWORD_LENGTH:
        return []
    is_short = length < MIN_PASSWORD_LENGTH
    bound = f"least {MIN_PASSWORD_LENGTH}" if is_short else f"most {MAX_PASSWORD_LENGTH}"
    return [f"The password has {length} characters; use at {bound}."]


def dummy_hash(hasher: PasswordHasher) -> str:
    """Return a hash with the current parameters that no password matches."""
    salt, digest = (
        base64.b64encode(bytes(length)).decode().rstrip("=")
        for length in (hasher.salt_len, hasher.hash_len)
    )
    costs = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    return f"$argon2id$v=19${costs}${salt}${digest}"


def change_password(
    session: Session, user: User, *, current: str, new: str, keep_session: str | None = None
) -> None:
    """Change the user's own password and sign them out of all other browsers.

    `keep_session` is the secret of the current browser's session, which stays signed in.

    Raises:
        InvalidInputError: the current password is wrong, or the new one is too short or the same.
    """
    problems = password_errors(new)
    if not problems and new == current:
        problems = ["The new password is the current one. Choose another."]
    right = verify_password(user.password_hash, current)
    errors = {"current": [] if right else ["This is not your current password."], "new": problems}
    raise_if_invalid(errors, "The password was not changed")
    set_password(session, session.merge(user, load=True), new)
    end_all_sessions(session, user.id, keep=keep_session)


def set_password(session: Session, user: User, password: str) -> None:
    """Set a validated password."""
    user.password_hash = hash_password(password)
    session.flush()
