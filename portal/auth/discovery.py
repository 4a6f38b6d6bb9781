"""Configuration and keys of the identity provider, cached for an hour."""

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
from portal.auth.identity_errors import RefusedIdentityError

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10
CACHE_LIFETIME = timedelta(hours=1)


class Discovery:
    """Client of a provider's discovery document and key set, with a cache.

    Args:
        issuer: the issuer URL from the settings.
        clock: the clock for the lifetime of the cache.
    """

    def __init__(self, issuer: str, *, clock: Clock) -> None:
        self._issuer = issuer
        self._clock = clock
        self._metadata: _Cached | None = None
        self._keys: _Cached | None = None

    def setting(self, name: str) -> str:
        """Return a text value of the configuration.

        Raises:
            UnavailableError: the value is missing, or the provider does not respond.
        """
        value = self.configuration().get(name)
        if not isinstance(value, str) or not value:
            raise UnavailableError(f"The configuration of the identity provider has no {name}.")
        return value

    def configuration(self) -> Mapping[str, Any]:
        """Return the OpenID provider configuration.

        Raises:
            UnavailableError: the provider does not respond, or names another issuer.
        """
        if self._metadata is None or self._metadata.is_expired(self._clock()):
            issuer = self._issuer.rstrip("/")
            configuration = _fetch(f"{issuer}/.well-known/openid-configuration")
            if str(configuration.get("issuer", "")).rstrip("/") != issuer:
                raise UnavailableError(
                    f"The identity provider's issuer is {configuration.get('issuer')!r}, but "
                    f"oidc_issuer is {self._issuer!r}. Set oidc_issuer to the provider's issuer."
                )
            self._metadata = _Cached(configuration, self._clock())
        return self._metadata.value

    def key_set(self, *, refresh: bool = False) -> KeySet:
        """Return the signing keys; `refresh` bypasses the cache, for an unknown key id.

        Raises:
            UnavailableError: the provider does not respond.
        """
        if refresh or self._keys is None or self._keys.is_expired(self._clock()):
            self._keys = _Cached(_fetch(self.setting("jwks_uri")), self._clock())
        return KeySet(list(_usable_keys(self._keys.value)))


@contextmanager
def provider_errors(address: str) -> Iterator[None]:
    """Turn errors of a call to the provider into errors for users; log the details."""
    try:
        yield
    except (requests.RequestException, ValueError) as error:
        log.warning("Request to identity provider %s failed: %s", address, error)
        raise UnavailableError(
            "The identity provider does not respond. Try again in a moment, or sign in with "
            "your password."
        ) from error
    except (OAuthError, JoseError) as error:
        log.warning("Response of identity provider %s rejected: %s", address, error)
        raise RefusedIdentityError(
            "The response of the identity provider is invalid or expired. Sign in again."
        ) from error


def _fetch(url: str) -> dict[str, Any]:
    with provider_errors(url):
        response = requests.get(url, timeout=TIMEOUT_SECONDS)
        response.raise_for_status()
        document = response.json()
        if not isinstance(document, dict):
            raise InvalidJSONError(f"expected a JSON object, not {type(document).__name__}")
        return document


@dataclass(frozen=True, slots=True)
class _Cached:
    value: dict[str, Any]
    fetched_at: datetime

    def is_expired(self, now: datetime) -> bool:
        return not timedelta(0) <= now - self.fetched_at < CACHE_LIFETIME


def _usable_keys(document: Mapping[str, Any]) -> Iterator[Key]:
    """Return the published keys of supported types; there may be others."""
    published = document.get("keys")
    for jwk in published if isinstance(published, list) else []:
        try:
            yield import_key(jwk)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            log.warning("Ignoring an unsupported key of the identity provider: %s", error)
