"""Identifiers and secrets.

Ids are UUIDv7 in their canonical text form: 36 characters that sort by creation time, so that
paging by id is paging by age. Secrets are 256 random bits; only their hash is ever stored.
"""

import hashlib
import secrets

from uuid_utils import uuid7

ID_LENGTH = 36


def new_id() -> str:
    """Return a new id, later in sort order than those made before it."""
    return str(uuid7())


def new_secret(prefix: str) -> str:
    """Return a random secret such as `vda_Zk3...`; the prefix tells people what leaked."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def hash_secret(secret: str) -> str:
    """Return the hex SHA-256 of a secret, for storing and looking up.

    A plain hash is enough here: the input has 256 random bits, so there is nothing to guess.
    Passwords go through argon2id instead.
    """
    return hashlib.sha256(secret.encode()).hexdigest()
