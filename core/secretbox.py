"""Secrets at rest: encrypted before they are stored, by a key that can be changed.

Several keys may be in force. The first one encrypts, each can decrypt, so that a new key is put
first, what is stored is encrypted anew, and the old key goes.
"""

from collections.abc import Sequence
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from core.errors import ConfigurationError, UnavailableError
from core.kept import kept_secret
from core.settings import ServerSettings

KEY_FILE = "encryption_keys"


class SecretBox:
    """Encrypts and decrypts short texts.

    Args:
        keys: of Fernet, in URL-safe base64; the first one encrypts.

    Raises:
        ConfigurationError: a key has not the form of Fernet's.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        try:
            self._fernet = MultiFernet([Fernet(key) for key in keys])
        except ValueError as error:
            fault = (
                "encryption_keys must be keys of 32 bytes in URL-safe base64, such as "
                f"`vedette secrets new-key` prints: {error}"
            )
            raise ConfigurationError([fault], source="The configuration") from error

    @classmethod
    def of(cls, settings: ServerSettings) -> "SecretBox":
        """Return the box of the configured keys, or of one kept in the data folder."""
        keys = [key for key in settings.encryption_keys.replace(",", " ").split() if key]
        return cls(keys or _kept_keys(settings.data_dir))

    def encrypt(self, text: str) -> str:
        """Return the text as it may be stored."""
        return self._fernet.encrypt(text.encode()).decode()

    def decrypt(self, stored: str) -> str:
        """Return the text again.

        Raises:
            UnavailableError: none of the keys fits.
        """
        try:
            return self._fernet.decrypt(stored).decode()
        except InvalidToken as error:
            raise UnavailableError(
                "A stored secret was encrypted with a key that is not there any more. Add the old "
                "key to encryption_keys."
            ) from error

    def rotate(self, stored: str) -> str:
        """Return the same secret, encrypted by the first key.

        Raises:
            UnavailableError: none of the keys fits.
        """
        return self.encrypt(self.decrypt(stored))


def new_key() -> str:
    """Return a new key."""
    return Fernet.generate_key().decode()


def _kept_keys(data_dir: Path) -> list[str]:
    return kept_secret(data_dir / KEY_FILE, new_key).split()
