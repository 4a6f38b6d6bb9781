"""Webhooks' signing keys at rest: stored encrypted, opened by who signs with them."""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from alerting.models import Receiver
from core.ids import new_secret
from core.secretbox import SecretBox

WEBHOOK_SECRET_PREFIX = "vdw"  # noqa: S105 - a prefix, not a secret


def new_webhook_secret() -> str:
    """Return a new signing key; it is shown once, and stored as `SecretBox.encrypt` makes it."""
    return new_secret(WEBHOOK_SECRET_PREFIX)


def opened(receiver: Receiver, box: SecretBox) -> str:
    """Return a receiver's signing key; empty where it has none.

    Raises:
        UnavailableError: it was encrypted with a key that is gone.
    """
    if not receiver.secret or _is_plain(receiver.secret):
        return receiver.secret
    return box.decrypt(receiver.secret)


def seal_plain_secrets(session: Session, box: SecretBox) -> int:
    """Encrypt the keys that an older version stored as they are; return how many.

    A migration can't do it, for it has no key: the server does so whenever it starts.
    """
    found = session.execute(select(Receiver.id, Receiver.secret).where(Receiver.secret != ""))
    plain = [(ident, secret) for ident, secret in found if _is_plain(secret)]
    for ident, secret in plain:
        # Several servers may start at once: each key is encrypted by one of them.
        is_as_read = (Receiver.id == ident, Receiver.secret == secret)
        session.execute(update(Receiver).where(*is_as_read).values(secret=box.encrypt(secret)))
    return len(plain)


def _is_plain(stored: str) -> bool:
    return stored.startswith(f"{WEBHOOK_SECRET_PREFIX}_")
