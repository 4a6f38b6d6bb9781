"""OpenID Connect client: authorization code flow with PKCE, state and nonce."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from authlib.common.security import generate_token
from authlib.integrations.requests_client import OAuth2Session
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError
from joserfc.jws import JWSRegistry

from core.clock import Clock
from core.errors import ConfigurationError
from core.settings import ServerSettings
from portal.auth.discovery import TIMEOUT_SECONDS, Discovery, provider_errors
from portal.auth.identity_errors import RefusedIdentityError
from tenants.models.signin import SUBJECT_LENGTH
from tenants.users.oidc import GroupRoles, Identity

CLOCK_LEEWAY_SECONDS = 60
SECRET_LENGTH = 48
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
# Public keys only: tokens signed with the client secret, or unsigned, are rejected.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A sign-in in progress: the URL to redirect to, and the values to check the callback with."""

    url: str
    state: str
    nonce: str
    verifier: str


class Provider:
    """The identity provider of the settings.

    Args:
        settings: the server settings, of which `oidc_*` are used.
        redirect_uri: URL of the callback.
        clock: the clock for the validity of tokens.

    Raises:
        ConfigurationError: lists all errors in the settings.
    """

    def __init__(self, settings: ServerSettings, *, redirect_uri: str, clock: Clock) -> None:
        self.group_roles, errors = GroupRoles.parse(settings.oidc_roles)
        errors += _setting_errors(settings)
        if errors:
            raise ConfigurationError(errors, source="The configuration")
        self._settings = settings
        self._redirect_uri = redirect_uri
        self._clock = clock
        self._discovery = Discovery(settings.oidc_issuer, clock=clock)

    def begin(self) -> Attempt:
        """Start a sign-in.

        Raises:
            UnavailableError: the provider does not respond.
        """
        endpoint = self._discovery.setting("authorization_endpoint")
        nonce, verifier = generate_token(SECRET_LENGTH), generate_token(SECRET_LENGTH)
        with self._client() as client:
            url, state = client.create_authorization_url(
                endpoint, state=generate_token(SECRET_LENGTH), nonce=nonce, code_verifier=verifier
            )
        return Attempt(url=url, state=state, nonce=nonce, verifier=verifier)

    def finish(self, code: str, *, nonce: str, verifier: str) -> Identity:
        """Exchange the code of the callback for the identity of the user.

        Raises:
            UnavailableError: the provider does not respond.
            RefusedIdentityError: the provider rejects the code, or its ID token is invalid.
        """
        with self._client() as client, provider_errors(self._settings.oidc_issuer):
            token = client.fetch_token(
                self._discovery.setting("token_endpoint"),
                grant_type="authorization_code",
                code=code,
                code_verifier=verifier,
                redirect_uri=self._redirect_uri,
            )
            claims = self._verified(token, nonce=nonce)
            claims |= self._userinfo_claims(client, token, claims)
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
        """Return the claims of the ID token after checking signature, issuer, audience and time."""
        encoded = token.get("id_token")
        if not isinstance(encoded, str):
            raise RefusedIdentityError(
                "The identity provider sent no ID token. Ask the operator to check its settings."
            )
        registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
        try:
            decoded = jwt.decode(encoded, self._discovery.key_set(), registry=registry)
        except InvalidKeyIdError:
            decoded = jwt.decode(encoded, self._discovery.key_set(refresh=True), registry=registry)
        options = {
            "iss": {"essential": True, "value": self._discovery.setting("issuer")},
            "aud": {"essential": True, "value": self._settings.oidc_client_id},
            "nonce": {"essential": True, "value": nonce},
        }
        params = {
            "nonce": nonce,
            "client_id": self._settings.oidc_client_id,
            "access_token": token.get("access_token"),
        }
        claims = CodeIDToken(decoded.claims, decoded.header, options, params)
        claims.validate(now=int(self._clock().timestamp()), leeway=CLOCK_LEEWAY_SECONDS)
        return dict(claims)

    def _userinfo_claims(
        self, client: OAuth2Session, token: Mapping[str, Any], claims: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the claims that only the userinfo endpoint has."""
        endpoint = self._discovery.configuration().get("userinfo_endpoint")
        wanted = {"email", self._settings.oidc_groups_claim.partition(".")[0]}
        if not endpoint or wanted <= claims.keys():
            return {}
        headers = {"Authorization": f"Bearer {token['access_token']}"}
        answer = client.get(endpoint, withhold_token=True, headers=headers)
        answer.raise_for_status()
        userinfo: dict[str, Any] = answer.json()
        if userinfo.get("sub") != claims["sub"]:
            raise RefusedIdentityError(
                "The identity provider returned another user's data. Sign in again."
            )
        # An address and its verification must come from the same source.
        left_out = {"email", "email_verified"} if "email" in claims else set()
        return {name: value for name, value in userinfo.items() if name not in {*claims, *left_out}}


def identity_of(claims: Mapping[str, Any], settings: ServerSettings) -> Identity:
    """Return the identity that claims describe.

    Raises:
        RefusedIdentityError: the subject is missing, or the groups are left out of the token.
    """
    email, subject = claims.get("email"), claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_LENGTH:
        raise RefusedIdentityError(
            "The ID token has no valid subject. Ask the operator to check the identity provider."
        )
    verified = claims.get("email_verified")
    is_verified = verified is True or verified == "true"
    return Identity(
        issuer=str(claims["iss"]),
        subject=subject,
        email=email if isinstance(email, str) else "",
        is_email_verified=is_verified or settings.oidc_trust_email,
        name=str(claims.get("name") or claims.get("preferred_username") or ""),
        groups=_groups(claims, settings.oidc_groups_claim),
    )


def _groups(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the groups; `realm_access.roles` names a claim inside another."""
    value: object = claims.get(name)
    if value is None and "." in name:
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if value is None and name in (claims.get("_claim_names") or {}):
        raise RefusedIdentityError(
            "You are in more groups than the identity provider sends. Ask its administrator to "
            "send only the groups assigned to this application."
        )
    if isinstance(value, str):
        value = [value]
    return frozenset(str(group) for group in value) if isinstance(value, list) else frozenset()


def _setting_errors(settings: ServerSettings) -> list[str]:
    errors = []
    issuer = urlsplit(settings.oidc_issuer)
    is_near = issuer.scheme == "http" and issuer.hostname in LOOPBACK
    if not issuer.hostname or not (issuer.scheme == "https" or is_near):
        errors.append(f"oidc_issuer: {settings.oidc_issuer!r} is not an https:// URL.")
    if not settings.oidc_client_id:
        errors.append("oidc_client_id: missing. Enter the id that the provider issued.")
    if "openid" not in settings.oidc_scopes.split():
        errors.append("oidc_scopes: must include openid.")
    return errors
