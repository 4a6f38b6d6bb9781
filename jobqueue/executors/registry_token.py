"""The token to pull images from the portal's registry, as the last desired state had it."""

from threading import Lock

from protocol.attempts import RegistryToken


class CurrentRegistryToken:
    """Passes the newest token from the attempt runner to an executor; never on disk."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._token: RegistryToken | None = None

    def set(self, token: RegistryToken | None) -> None:
        """Replace the token; None keeps the last one, which runs out by itself."""
        if token is not None:
            with self._lock:
                self._token = token

    def credentials_for(self, image: str) -> dict[str, str] | None:
        """Return the engine's `auth_config` for an image; None for other registries."""
        with self._lock:
            token = self._token
        if token is None or image.partition("/")[0] != token.host:
            return None
        return {"registrytoken": token.token}
