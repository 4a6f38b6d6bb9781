"""Ids and secrets.

Ids are UUIDv7 in text form, 36 characters, which sort by creation time: paging by id is paging by
age. Secrets are 256 random bits; only their hashes are stored.
"""

import hashlib
import secrets

from uuid_utils import uuid7

ID_LENGTH = 36


def new_id() -> str:
    """Return a new id, which sorts after earlier ones."""
    return str(uuid7())


def new_secret(prefix: str) -> str:
    """Return a random secret such as `vda_Zk3...`; the prefix identifies leaked secrets."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def hash_secret(secret: str) -> str:
    """Return the SHA-256 of a secret in hex, to store and look up.

    The input has 256 random bits, so a plain hash is enough. Passwords use argon2id.
    """
    return hashlib.sha256(secret.encode()).hexdigest()
