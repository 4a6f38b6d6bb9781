"""What the authority signs: agents' certificates, the portal's own, and lists of revoked ones."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError, UnavailableError
from core.secretbox import SecretBox
from tenants.entry.authority import CLOCK_MARGIN, trusted_authorities
from tenants.entry.signing_requests import PublicKey
from tenants.entry.x509_parts import name_of, usage_of
from tenants.models import ApplianceCertificate, CertificateAuthority

CRL_LIFETIME = timedelta(days=7)
_MAX_NAME_CHARACTERS = 64  # of a common name, by X.520


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a certificate names."""

    tenant_id: str
    appliance_id: str

    @property
    def uri(self) -> str:
        """The name in a certificate that no other installation's could be taken for."""
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
    """Return a client certificate for a key; the subject is ours to say, not the key's owner's."""
    named = (
        x509.CertificateBuilder()
        .subject_name(name_of(subject.appliance_id, organisation=subject.tenant_id))
        .public_key(key)
        .not_valid_before(now - CLOCK_MARGIN)
        .not_valid_after(min(now + lifetime, authority.not_after))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(subject.uri)]),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
    return _signed(authority, box, named)


def sign_server(
    authority: CertificateAuthority,
    box: SecretBox,
    key: PublicKey,
    names: Sequence[str],
    *,
    lifetime: timedelta,
    now: datetime,
) -> x509.Certificate:
    """Return a certificate for the portal itself, for those who have no other authority.

    Args:
        authority: who signs.
        box: the one that the authority's key is in.
        key: the server's.
        names: by which the portal is reached, as names and addresses; the first is its subject.
        lifetime: how long it is good.
        now: the present instant.

    Raises:
        InvalidInputError: there is no name, or one that no host can have.
    """
    if not names:
        raise InvalidInputError("Name the hosts that the certificate is for.")
    found = [_general_name(name) for name in names]
    named = (
        x509.CertificateBuilder()
        .subject_name(name_of(names[0][:_MAX_NAME_CHARACTERS]))
        .public_key(key)
        .not_valid_before(now - CLOCK_MARGIN)
        .not_valid_after(min(now + lifetime, authority.not_after))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(found), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
    return _signed(authority, box, named)


def revocation_lists_pem(session: Session, box: SecretBox, *, now: datetime) -> str:
    """Return the revocation list of each trusted authority, one behind the other."""
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
    authority: CertificateAuthority, box: SecretBox, named: x509.CertificateBuilder
) -> x509.Certificate:
    own = _certificate_of(authority)
    builder = (
        named.issuer_name(own.subject)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage_of(is_authority=False), critical=True)
        .add_extension(_authority_identifier(own), critical=False)
    )
    return builder.sign(_key_of(authority, box), hashes.SHA256())


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass  # a name then
    try:
        ascii_name = name.encode("idna").decode()
        return x509.DNSName(ascii_name)
    except ValueError as error:
        raise InvalidInputError(f"{name!r} is no name and no address of a host.") from error


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
        raise UnavailableError("The certificate authority's key is not of the kind that we make.")
    return key
