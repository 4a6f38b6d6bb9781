"""What the identity provider says about itself and its keys, kept for an hour."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import requests
from authlib.integrations.base_client import OAuthError
from joserfc.errors import JoseError
from joserfc.jwk import Key, KeySet, import_key
from requests.exceptions import InvalidJSONError

from core.clock import Clock
from core.errors import UnavailableError
from portal.door.claims import RefusedIdentityError

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10
KEPT_FOR = timedelta(hours=1)


class Discovery:
    """Asks a provider for its configuration and its keys, and keeps them for a while.

    Args:
        issuer: the provider, as the settings name it.
        clock: the time.
    """

    def __init__(self, issuer: str, *, clock: Clock) -> None:
        self._issuer = issuer
        self._clock = clock
        self._metadata: _Kept | None = None
        self._keys: _Kept | None = None

    def about(self, name: str) -> str:
        """Return a text of the configuration.

        Raises:
            UnavailableError: it is not there, or the provider does not answer.
        """
        value = self.configuration().get(name)
        if not isinstance(value, str) or not value:
            raise UnavailableError(f"The identity provider tells no {name}.")
        return value

    def configuration(self) -> Mapping[str, Any]:
        """Return what the provider says about itself.

        Raises:
            UnavailableError: it does not answer, or calls itself otherwise.
        """
        if self._metadata is None or self._metadata.is_old(self._clock()):
            issuer = self._issuer.rstrip("/")
            found = _fetch(f"{issuer}/.well-known/openid-configuration")
            if str(found.get("issuer", "")).rstrip("/") != issuer:
                raise UnavailableError(
                    f"The identity provider calls itself {found.get('issuer')!r}, and oidc_issuer "
                    f"is {self._issuer!r}. The two must be the same."
                )
            self._metadata = _Kept(found, self._clock())
        return self._metadata.value

    def key_set(self, *, is_anew: bool = False) -> KeySet:
        """Return the keys that it signs with; `is_anew` asks again, for one that is unknown.

        Raises:
            UnavailableError: it does not answer.
        """
        if is_anew or self._keys is None or self._keys.is_old(self._clock()):
            self._keys = _Kept(_fetch(self.about("jwks_uri")), self._clock())
        return KeySet(list(_usable_keys(self._keys.value)))


@contextmanager
def answering(whom: str) -> Iterator[None]:
    """Turn what may go wrong with the provider into errors for people; its details are logged."""
    try:
        yield
    except (requests.RequestException, ValueError) as error:
        log.warning("The identity provider at %s does not answer as it should: %s", whom, error)
        raise UnavailableError(
            "The identity provider does not answer now. Try again in a moment, or sign in with "
            "your password."
        ) from error
    except (OAuthError, JoseError) as error:
        log.warning("The identity provider at %s: %s", whom, error)
        raise RefusedIdentityError(
            "What the identity provider answered can't be trusted, or came too late. Sign in again."
        ) from error


def _fetch(url: str) -> dict[str, Any]:
    with answering(url):
        answer = requests.get(url, timeout=TIMEOUT_SECONDS)
        answer.raise_for_status()
        found = answer.json()
        if not isinstance(found, dict):
            raise InvalidJSONError(f"no JSON object but {type(found).__name__}")
        return found


@dataclass(frozen=True, slots=True)
class _Kept:
    value: dict[str, Any]
    since_at: datetime

    def is_old(self, now: datetime) -> bool:
        return not timedelta(0) <= now - self.since_at < KEPT_FOR


def _usable_keys(document: Mapping[str, Any]) -> Iterator[Key]:
    """Return the published keys that this portal understands; there may be others."""
    published = document.get("keys")
    for one in published if isinstance(published, list) else []:
        try:
            yield import_key(one)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            log.warning("The identity provider publishes a key that is not understood: %s", error)
