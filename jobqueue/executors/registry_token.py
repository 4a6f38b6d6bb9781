"""The tokens to pull images from the portal's registry, as the last desired state had them."""

from collections.abc import Iterable
from threading import Lock

from protocol.attempts import AttemptSpec, RegistryToken


class CurrentRegistryToken:
    """Passes the newest tokens from the attempt runner to an executor; never on disk."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._token: RegistryToken | None = None
        self._of_attempts: dict[str, RegistryToken] = {}

    def set(self, token: RegistryToken | None, attempts: Iterable[AttemptSpec] = ()) -> None:
        """Replace the token, and those that attempts have for themselves.

        None keeps the last token, which runs out by itself.
        """
        of_attempts = {spec.attempt_id: spec.registry for spec in attempts if spec.registry}
        with self._lock:
            self._of_attempts = of_attempts
            if token is not None:
                self._token = token

    def credentials_for(self, image: str, spec: AttemptSpec | None = None) -> dict[str, str] | None:
        """Return the engine's `auth_config` for an image; None for its own configuration.

        An attempt that always pulls its image gets no credentials but those made for it.
        """
        is_apart = spec is not None and spec.always_pulls
        with self._lock:
            token = self._token
            if spec is not None and is_apart:
                token = self._of_attempts.get(spec.attempt_id)
        if token is None or image.partition("/")[0] != token.host:
            return {} if is_apart else None
        return {"registrytoken": token.token}
