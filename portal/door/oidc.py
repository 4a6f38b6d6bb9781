"""Speaks OpenID Connect with the identity provider: authorization code, PKCE, state and nonce."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from authlib.common.security import generate_token
from authlib.integrations.requests_client import OAuth2Session
from authlib.oidc.core import CodeIDToken
from flask import Flask, current_app
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError
from joserfc.jws import JWSRegistry

from core.clock import Clock
from core.errors import ConfigurationError
from core.settings import ServerSettings
from portal.context import Portal
from portal.door.claims import RefusedIdentityError, identity_of
from portal.door.discovery import TIMEOUT_SECONDS, Discovery, answering
from tenants.people.group_roles import GroupRoles
from tenants.people.oidc import Identity

CALLBACK_PATH = "/login/oidc/callback"
EXTENSION = "vedette-oidc"
CLOCK_LEEWAY_SECONDS = 60
SECRET_LENGTH = 48
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
# Of public keys alone: what is signed by the client secret, or not at all, is refused.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]


def install_oidc(app: Flask, parts: Portal) -> None:
    """Connect the app to the identity provider, where the settings name one.

    Raises:
        ConfigurationError: lists all faults of the settings.
    """
    settings = parts.settings
    is_connected = bool(settings.oidc_issuer)
    app.jinja_env.globals["oidc_label"] = settings.oidc_label if is_connected else ""
    if is_connected:
        redirect_uri = f"{settings.resolved_public_url}{CALLBACK_PATH}"
        app.extensions[EXTENSION] = Provider(settings, redirect_uri=redirect_uri, clock=parts.clock)


def provider() -> "Provider | None":
    """Return the identity provider that the running portal is connected to."""
    found: Provider | None = current_app.extensions.get(EXTENSION)
    return found


@dataclass(frozen=True, slots=True)
class Attempt:
    """A sign-in that is under way: where to send the browser, and what its return is held to."""

    url: str
    state: str
    nonce: str
    verifier: str


class Provider:
    """The identity provider of the settings.

    Args:
        settings: the `oidc_` ones.
        redirect_uri: where the provider sends browsers back to.
        clock: tells whether what the provider issued is still good.

    Raises:
        ConfigurationError: lists all faults of the settings.
    """

    def __init__(self, settings: ServerSettings, *, redirect_uri: str, clock: Clock) -> None:
        self.group_roles, faults = GroupRoles.parse(settings.oidc_roles)
        faults += _faults(settings)
        if faults:
            raise ConfigurationError(faults, source="The configuration")
        self._settings = settings
        self._redirect_uri = redirect_uri
        self._clock = clock
        self._discovery = Discovery(settings.oidc_issuer, clock=clock)

    def begin(self) -> Attempt:
        """Return a new attempt.

        Raises:
            UnavailableError: the provider does not answer.
        """
        endpoint = self._discovery.about("authorization_endpoint")
        nonce, verifier = generate_token(SECRET_LENGTH), generate_token(SECRET_LENGTH)
        with self._client() as client:
            url, state = client.create_authorization_url(
                endpoint, state=generate_token(SECRET_LENGTH), nonce=nonce, code_verifier=verifier
            )
        return Attempt(url=url, state=state, nonce=nonce, verifier=verifier)

    def finish(self, code: str, *, nonce: str, verifier: str) -> Identity:
        """Trade the code of the callback for who signed in.

        Raises:
            UnavailableError: the provider does not answer.
            RefusedIdentityError: it refuses the code, or its ID token is not good.
        """
        with self._client() as client, answering(self._settings.oidc_issuer):
            token = client.fetch_token(
                self._discovery.about("token_endpoint"),
                grant_type="authorization_code",
                code=code,
                code_verifier=verifier,
                redirect_uri=self._redirect_uri,
            )
            claims = self._verified(token, nonce=nonce)
            claims |= self._more_claims(client, token, claims)
        return identity_of(claims, self._settings)

    @contextmanager
    def _client(self) -> Iterator[OAuth2Session]:
        settings = self._settings
        client = OAuth2Session(
            settings.oidc_client_id,
            settings.oidc_client_secret or None,
            scope=settings.oidc_scopes,
            redirect_uri=self._redirect_uri,
            code_challenge_method="S256",
            token_endpoint_auth_method=self._auth_method(),
            default_timeout=TIMEOUT_SECONDS,
        )
        with client:
            yield client

    def _auth_method(self) -> str:
        if not self._settings.oidc_client_secret:
            return "none"
        offered = self._discovery.configuration().get("token_endpoint_auth_methods_supported")
        is_by_body = offered and "client_secret_basic" not in offered
        return "client_secret_post" if is_by_body else "client_secret_basic"

    def _verified(self, token: Mapping[str, Any], *, nonce: str) -> dict[str, Any]:
        """Return the claims of the ID token, once signature, sender, reader and time are right."""
        encoded = token.get("id_token")
        if not isinstance(encoded, str):
            raise RefusedIdentityError("The identity provider sent no ID token.")
        registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
        try:
            decoded = jwt.decode(encoded, self._discovery.key_set(), registry=registry)
        except InvalidKeyIdError:
            decoded = jwt.decode(encoded, self._discovery.key_set(is_anew=True), registry=registry)
        options = {
            "iss": {"essential": True, "value": self._discovery.about("issuer")},
            "aud": {"essential": True, "value": self._settings.oidc_client_id},
            "nonce": {"essential": True, "value": nonce},
        }
        params = {
            "nonce": nonce, "client_id": self._settings.oidc_client_id,
            "access_token": token.get("access_token"),
        }  # fmt: skip
        claims = CodeIDToken(decoded.claims, decoded.header, options, params)
        claims.validate(now=int(self._clock().timestamp()), leeway=CLOCK_LEEWAY_SECONDS)
        return dict(claims)

    def _more_claims(
        self, client: OAuth2Session, token: Mapping[str, Any], claims: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what the ID token leaves out and the provider tells on asking."""
        endpoint = self._discovery.configuration().get("userinfo_endpoint")
        wanted = {"email", self._settings.oidc_groups_claim.partition(".")[0]}
        if not endpoint or wanted <= claims.keys():
            return {}
        headers = {"Authorization": f"Bearer {token['access_token']}"}
        answer = client.get(endpoint, withhold_token=True, headers=headers)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        if found.get("sub") != claims["sub"]:
            raise RefusedIdentityError("The identity provider told of somebody else.")
        # Who vouches for an address must be who tells it.
        left_out = {"email", "email_verified"} if "email" in claims else set()
        return {name: value for name, value in found.items() if name not in {*claims, *left_out}}


def _faults(settings: ServerSettings) -> list[str]:
    faults = []
    issuer = urlsplit(settings.oidc_issuer)
    is_near = issuer.scheme == "http" and issuer.hostname in LOOPBACK
    if not issuer.hostname or not (issuer.scheme == "https" or is_near):
        faults.append(f"oidc_issuer: {settings.oidc_issuer!r} is not an https:// address.")
    if not settings.oidc_client_id:
        faults.append("oidc_client_id: missing. The identity provider gives one to the portal.")
    if "openid" not in settings.oidc_scopes.split():
        faults.append("oidc_scopes: must hold openid.")
    return faults
