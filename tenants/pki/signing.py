"""Signs certificates of agents (from CSRs) and of the portal, and revocation lists."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError, UnavailableError
from core.secretbox import SecretBox
from tenants.models import ApplianceCertificate, CertificateAuthority
from tenants.pki.authority import CLOCK_MARGIN, key_usage, trusted_authorities, x509_name

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
MAX_REQUEST_CHARACTERS = 16_384
CURVES = frozenset({"secp256r1", "secp384r1"})
RSA_BITS = range(2048, 4097)


def key_of_request(request_pem: str) -> PublicKey:
    """Return the public key of a signing request; its subject is ignored.

    Raises:
        InvalidInputError: it is no CSR, its signature is wrong, or the key is not supported.
    """
    if len(request_pem) > MAX_REQUEST_CHARACTERS:
        raise _wrong(f"it has {len(request_pem)} characters; use at most {MAX_REQUEST_CHARACTERS}")
    try:
        request = x509.load_pem_x509_csr(request_pem.encode())
        key = request.public_key()
        is_signed = request.is_signature_valid
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise _wrong("it is not a PKCS #10 request in PEM format") from error
    if not is_signed:
        raise _wrong("its signature does not match its key")
    return _checked(key)


def _checked(key: object) -> PublicKey:
    if isinstance(key, ec.EllipticCurvePublicKey):
        if key.curve.name in CURVES:
            return key
        raise _wrong(f"its key is on the curve {key.curve.name}; use P-256 or P-384")
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size in RSA_BITS:
            return key
        raise _wrong(f"its RSA key has {key.key_size} bits; use 2048 to 4096")
    raise _wrong("its key is neither EC nor RSA")


def _wrong(problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"The certificate request can't be signed: {problem}.", errors={"csr": [problem]}
    )


CRL_LIFETIME = timedelta(days=7)
_MAX_NAME_CHARACTERS = 64  # of a common name, by X.520


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of an agent's certificate."""

    tenant_id: str
    appliance_id: str

    @property
    def uri(self) -> str:
        """The globally unique name of the subject."""
        return f"vedette://tenant/{self.tenant_id}/appliance/{self.appliance_id}"


def sign(
    authority: CertificateAuthority,
    box: SecretBox,
    key: PublicKey,
    subject: Subject,
    *,
    lifetime: timedelta,
    now: datetime,
) -> x509.Certificate:
    """Return a client certificate for a key; the portal sets the subject."""
    name = x509_name(subject.appliance_id, organization=subject.tenant_id)
    uri = x509.UniformResourceIdentifier(subject.uri)
    usage = ExtendedKeyUsageOID.CLIENT_AUTH
    until = min(now + lifetime, authority.not_after)
    return _signed(authority, box, key, name, [uri], usage=usage, until=until, now=now)


def sign_server(
    authority: CertificateAuthority,
    box: SecretBox,
    key: PublicKey,
    names: Sequence[str],
    *,
    lifetime: timedelta,
    now: datetime,
) -> x509.Certificate:
    """Return a server certificate for the portal itself.

    `names` are its host names and addresses; the first one is the subject.

    Raises:
        InvalidInputError: there is no name, or an invalid one.
    """
    if not names:
        raise InvalidInputError("Enter at least one host name for the certificate.")
    name = x509_name(names[0][:_MAX_NAME_CHARACTERS])
    alternative_names = [_general_name(host) for host in names]
    usage = ExtendedKeyUsageOID.SERVER_AUTH
    until = min(now + lifetime, authority.not_after)
    return _signed(authority, box, key, name, alternative_names, usage=usage, until=until, now=now)


def revocation_lists_pem(session: Session, box: SecretBox, *, now: datetime) -> str:
    """Return the revocation lists of all trusted authorities, concatenated."""
    return "".join(
        _revocation_list(session, authority, box, now=now)
        for authority in trusted_authorities(session, now=now)
    )


def _revocation_list(
    session: Session, authority: CertificateAuthority, box: SecretBox, *, now: datetime
) -> str:
    own = _certificate_of(authority)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(own.subject)
        .last_update(now)
        .next_update(now + CRL_LIFETIME)
        .add_extension(_authority_identifier(own), critical=False)
        .add_extension(x509.CRLNumber(int(now.timestamp())), critical=False)
    )
    revoked = session.execute(
        select(ApplianceCertificate.serial, ApplianceCertificate.revoked_at).where(
            ApplianceCertificate.authority_id == authority.id,
            ApplianceCertificate.revoked_at.is_not(None),
            ApplianceCertificate.not_after > now,
        )
    )
    for serial, revoked_at in revoked:
        entry = x509.RevokedCertificateBuilder(int(serial, 16), revoked_at)
        builder = builder.add_revoked_certificate(entry.build())
    signed = builder.sign(_key_of(authority, box), hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()


def _signed(
    authority: CertificateAuthority,
    box: SecretBox,
    key: PublicKey,
    name: x509.Name,
    names: Sequence[x509.GeneralName],
    *,
    usage: x509.ObjectIdentifier,
    until: datetime,
    now: datetime,
) -> x509.Certificate:
    own = _certificate_of(authority)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(own.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_MARGIN)
        .not_valid_after(until)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(is_authority=False), critical=True)
        .add_extension(_authority_identifier(own), critical=False)
    )
    return builder.sign(_key_of(authority, box), hashes.SHA256())


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass  # a host name
    try:
        return x509.DNSName(name.encode("idna").decode())
    except ValueError as error:
        raise InvalidInputError(f"{name!r} is not a host name or address.") from error


def _authority_identifier(own: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = own.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier.value)


def _certificate_of(authority: CertificateAuthority) -> x509.Certificate:
    return x509.load_pem_x509_certificate(authority.certificate.encode())


def _key_of(authority: CertificateAuthority, box: SecretBox) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(
        box.decrypt(authority.private_key).encode(), password=None
    )
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UnavailableError("The certificate authority's key has an unsupported type.")
    return key
