"""Tokens of the private registry: the portal is its token server.

A token lists what its bearer may do with which repositories; the registry checks the signature
against the portal's certificate. A tenant's repositories begin with its slug; every user and
appliance may pull those of the shared namespace, which operators push.

Source: https://distribution.github.io/distribution/spec/auth/jwt/
"""

import base64
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID
from joserfc import jwt
from joserfc.jwk import ECKey

from core.errors import InvalidInputError
from core.ids import new_id
from core.settings import ServerSettings, secret_key
from jobqueue.images.names import is_repository_name

ISSUER = SERVICE = "vedette"
USER_LIFETIME = timedelta(minutes=5)
# Layers of a large image are requested one after the other, each with the token.
PULL_LIFETIME = timedelta(hours=1)
MAX_SCOPES = 50
PULL, PUSH, DELETE = "pull", "push", "delete"
# The clocks of registry hosts may be behind by this much.
_CLOCK_MARGIN = timedelta(minutes=1)
# The certificate has no date of its own: every server makes the same one from the same key.
_NOT_BEFORE = datetime(2020, 1, 1, tzinfo=UTC)
_NOT_AFTER = datetime(2120, 1, 1, tzinfo=UTC)
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@dataclass(frozen=True, slots=True)
class Access:
    """Actions on a repository; also `registry` `catalog` with `*`."""

    name: str
    actions: tuple[str, ...]
    kind: str = "repository"


class RegistryTokens:
    """Signs tokens; the keys are derived from the server's secret key.

    `host` is the registry in the names of images; empty without a registry.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self.host = urlsplit(settings.registry_url).netloc
        self.shared_namespace = settings.registry_shared_namespace

    def sign(
        self,
        subject: str,
        access: Iterable[Access],
        *,
        lifetime: timedelta = USER_LIFETIME,
        now: datetime,
    ) -> str:
        """Return a token; `subject` is who the registry reports to have pushed."""
        issued = int(now.timestamp())
        claims = {
            "iss": ISSUER,
            "sub": subject,
            "aud": SERVICE,
            "exp": issued + int(lifetime.total_seconds()),
            "nbf": issued - int(_CLOCK_MARGIN.total_seconds()),
            "iat": issued,
            "jti": new_id(),
            "access": [
                {"type": entry.kind, "name": entry.name, "actions": list(entry.actions)}
                for entry in access
            ],
        }
        der = self._certificate.public_bytes(serialization.Encoding.DER)
        header = {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(der).decode()]}
        return jwt.encode(header, claims, self._signing_key)

    def pull_token(self, tenant_slug: str, images: Iterable[str], *, now: datetime) -> str | None:
        """Return a token to pull these images for a tenant; None if none is in the registry."""
        names = {name for image in images if (name := self.repository_of(image))}
        allowed = sorted(name for name in names if self._is_of(tenant_slug, name))
        if not allowed:
            return None
        access = [Access(name, (PULL,)) for name in allowed]
        return self.sign(f"appliances of {tenant_slug}", access, lifetime=PULL_LIFETIME, now=now)

    def may_pull(self, tenant_slug: str, image: str) -> bool:
        """Return whether a tenant may pull an image of this registry; True for those of others."""
        name = self.repository_of(image)
        return name is None or self._is_of(tenant_slug, name)

    def _is_of(self, tenant_slug: str, repository: str) -> bool:
        own = {tenant_slug, self.shared_namespace}
        return namespace_of(repository) in own and is_repository_name(repository)

    def repository_of(self, image: str) -> str | None:
        """Return the repository of an image of this registry; None for images of others."""
        host, _, rest = image.partition("/")
        if not self.host or host != self.host:
            return None
        name, _, tag = rest.partition("@")[0].rpartition(":")
        return name or tag

    @property
    def certificate_pem(self) -> str:
        """The certificate that the registry trusts: its `rootcertbundle`."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    @cached_property
    def notification_secret(self) -> str:
        """The bearer token that authenticates the registry's notifications."""
        return self._derived(b"vedette registry notifications", 32).hex()

    @cached_property
    def http_secret(self) -> str:
        """Return the secret by which registries behind a load balancer sign uploads."""
        return self._derived(b"vedette registry uploads", 32).hex()

    def is_notification_secret(self, secret: str) -> bool:
        """Return whether a notification comes from the registry."""
        return hmac.compare_digest(secret.encode(), self.notification_secret.encode())

    @cached_property
    def _private_key(self) -> ec.EllipticCurvePrivateKey:
        seed = int.from_bytes(self._derived(b"vedette registry tokens", 48), "big")
        return ec.derive_private_key(seed % (_P256_ORDER - 1) + 1, ec.SECP256R1())

    @cached_property
    def _signing_key(self) -> ECKey:
        return ECKey.import_key(
            self._private_key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )

    @cached_property
    def _certificate(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Vedette registry tokens")])
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._private_key.public_key())
            .serial_number(1)
            .not_valid_before(_NOT_BEFORE)
            .not_valid_after(_NOT_AFTER)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._private_key, hashes.SHA256(), ecdsa_deterministic=True)
        )

    def _derived(self, purpose: bytes, length: int) -> bytes:
        derivation = HKDF(hashes.SHA256(), length=length, salt=None, info=purpose)
        return derivation.derive(secret_key(self._settings).encode())


def namespace_of(repository: str) -> str:
    """Return the first part of a repository's name: a tenant's slug, or the shared namespace."""
    return repository.partition("/")[0]


def parse_scopes(texts: Sequence[str]) -> list[Access]:
    """Return what a client asks for, such as `repository:acme/train:pull,push`.

    Scopes of other kinds are left out: the registry refuses what misses.

    Raises:
        InvalidInputError: a name is not that of a repository.
    """
    accesses = []
    for text in " ".join(texts).split()[:MAX_SCOPES]:
        kind, _, rest = text.partition(":")
        name, _, actions = rest.rpartition(":")
        if kind == "repository" and name:
            if not is_repository_name(name):
                message = (
                    f"{name[:100]!r} is not the name of a repository. "
                    "Use lower-case letters, digits and single separators, as in 'acme/train'."
                )
                raise InvalidInputError(message, errors={"scope": [message]})
            accesses.append(Access(name, tuple(actions.split(","))))
    return accesses


def granted(requested: Iterable[Access], allowed: Mapping[str, frozenset[str]]) -> list[Access]:
    """Return the part of a request that is allowed; `allowed` has the actions by namespace."""
    accesses = []
    for requested_access in requested:
        actions = allowed.get(namespace_of(requested_access.name), frozenset())
        if "/" in requested_access.name and (
            both := tuple(name for name in requested_access.actions if name in actions)
        ):
            accesses.append(Access(requested_access.name, both))
    return accesses
