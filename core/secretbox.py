"""Encrypts secrets before they are stored.

There may be several keys: the first encrypts, all decrypt. To rotate, add a new key in front,
re-encrypt what is stored, and remove the old key.
"""

import hmac
from collections.abc import Sequence
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from core.errors import ConfigurationError, UnavailableError
from core.secret_file import load_or_create_secret
from core.settings import ServerSettings

KEY_FILE = "encryption_keys"


class SecretBox:
    """Encrypts and decrypts short texts by Fernet keys; the first one encrypts.

    Raises:
        ConfigurationError: a key is invalid.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        try:
            self._fernet = MultiFernet([Fernet(key) for key in keys])
            self._first_key = keys[0].encode()
        except ValueError as error:
            error_text = (
                "encryption_keys must be keys of 32 bytes in URL-safe base64, such as "
                f"`vedette secrets new-key` prints: {error}"
            )
            raise ConfigurationError([error_text], source="The configuration") from error

    @classmethod
    def of(cls, settings: ServerSettings) -> "SecretBox":
        """Return a box with the configured keys, or those stored in the data folder."""
        keys = [key for key in settings.encryption_keys.replace(",", " ").split() if key]
        return cls(keys or stored_keys(settings.data_dir))

    def encrypt(self, text: str) -> str:
        """Return the encrypted text."""
        return self._fernet.encrypt(text.encode()).decode()

    def decrypt(self, stored: str) -> str:
        """Return the decrypted text.

        Raises:
            UnavailableError: no key matches.
        """
        try:
            return self._fernet.decrypt(stored).decode()
        except InvalidToken as error:
            raise UnavailableError(
                "A stored secret was encrypted with a key that is missing. Add the old key to "
                "encryption_keys."
            ) from error

    def derive(self, purpose: str) -> str:
        """Return a secret for a purpose, the same each time until the first key changes."""
        return hmac.new(self._first_key, purpose.encode(), "sha256").hexdigest()

    def rotate(self, stored: str) -> str:
        """Return the secret encrypted by the first key; raises as `decrypt` does."""
        return self.encrypt(self.decrypt(stored))


def new_key() -> str:
    """Return a new key."""
    return Fernet.generate_key().decode()


def stored_keys(data_dir: Path) -> list[str]:
    """Return the keys in the data folder; they are generated once."""
    return load_or_create_secret(data_dir / KEY_FILE, new_key).split()
