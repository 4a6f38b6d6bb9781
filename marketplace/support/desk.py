"""How support is set up on a portal, and the addresses that replies by email are sent to.

An address has a token that names the ticket and is signed for its recipient, so that a reply needs
no sign-in: `support+TOKEN@example.com`. It is of no use to another sender.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass
from uuid import UUID

from core.settings import ServerSettings, secret_key

_MAC_BYTES = 12
_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Desk:
    """What the settings say of support."""

    settings: ServerSettings

    @property
    def has_marketplace(self) -> bool:
        """Whether tickets may be between customers and providers."""
        return self.settings.marketplace

    @property
    def response_seconds(self) -> int:
        """Within which the operator, or a provider without a promise, should answer."""
        return int(self.settings.support_response_seconds)

    @property
    def mail_url(self) -> str:
        """The address of the portal for links in emails; "" if no mail server is configured."""
        return self.settings.resolved_public_url if self.settings.smtp_url else ""

    def reply_address(self, ticket_id: str, user_id: str) -> str:
        """Return where a user's replies to a ticket are sent; "" if none are received."""
        settings = self.settings
        if not (settings.support_address and settings.support_imap_url):
            return ""
        local, _, domain = settings.support_address.partition("@")
        token = UUID(ticket_id).bytes + self._mac(ticket_id, user_id)
        text = base64.b32encode(token).decode().rstrip("=").lower()
        return f"{local}+{text}@{domain}"

    def ticket_of(self, address: str) -> tuple[str, bytes] | None:
        """Return the ticket that an address names, and its signature; None if it names none."""
        local, _, domain = self.settings.support_address.lower().partition("@")
        own, _, own_domain = address.lower().partition("@")
        prefix, _, text = own.partition("+")
        if not local or (prefix, own_domain) != (local, domain):
            return None
        try:
            token = base64.b32decode(text.upper() + "=" * (-len(text) % 8))
        except ValueError:
            return None
        if len(token) != _ID_BYTES + _MAC_BYTES:
            return None
        return str(UUID(bytes=token[:_ID_BYTES])), token[_ID_BYTES:]

    def is_signed_for(self, ticket_id: str, user_id: str, signature: bytes) -> bool:
        """Return whether an address was made for a user."""
        return hmac.compare_digest(self._mac(ticket_id, user_id), signature)

    def _mac(self, ticket_id: str, user_id: str) -> bytes:
        text = f"support reply {ticket_id} {user_id}".encode()
        key = secret_key(self.settings).encode()
        return hmac.new(key, text, hashlib.sha256).digest()[:_MAC_BYTES]
