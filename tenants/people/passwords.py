"""Passwords: argon2id hashes, with the library's parameters of RFC 9106's low-memory profile."""

from functools import lru_cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

MIN_PASSWORD_LENGTH = 10
# Longer input costs time and adds nothing.
MAX_PASSWORD_LENGTH = 1024

_hasher = PasswordHasher()


def hash_password(password: str) -> str:
    """Return the argon2id hash of a password, its salt and parameters included."""
    return _hasher.hash(password)


def verify_password(password_hash: str | None, password: str) -> bool:
    """Whether the password is the one that was hashed.

    Without a hash (no such user) the same work is done, so that the time an answer takes does not
    tell which email addresses are known.
    """
    try:
        matches = _hasher.verify(password_hash or _nobodys_hash(), password)
    except (VerificationError, InvalidHashError):
        return False
    return matches and password_hash is not None


def needs_rehash(password_hash: str) -> bool:
    """Whether the hash was made with weaker parameters than today's."""
    return _hasher.check_needs_rehash(password_hash)


def password_faults(password: str) -> list[str]:
    """Return what is wrong with a new password; an empty list is a good one."""
    if len(password) < MIN_PASSWORD_LENGTH:
        return [f"The password has {len(password)} characters; use at least {MIN_PASSWORD_LENGTH}."]
    if len(password) > MAX_PASSWORD_LENGTH:
        return [f"The password has {len(password)} characters; use at most {MAX_PASSWORD_LENGTH}."]
    return []


@lru_cache(maxsize=1)
def _nobodys_hash() -> str:
    return _hasher.hash("the password of nobody")
