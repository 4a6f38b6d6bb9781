"""The portal's own certificate authority: it signs agents' certificates, and nobody else's.

An *authority* is a key with a certificate of its own. The key is made at first need and stored
encrypted. A rotation makes a new one that signs after an *overlap*, in which the proxies in front
learn to trust it; the old one signs no more from then on and stays trusted until it runs out.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.errors import UnavailableError
from core.ids import new_id
from core.leases import acquire_lease
from core.secretbox import SecretBox
from tenants.entry.signing_requests import PublicKey
from tenants.models import ApplianceCertificate, CertificateAuthority

AUTHORITY_LIFETIME = timedelta(days=3650)
# Clocks of appliances and proxies may be behind ours by so much.
CLOCK_MARGIN = timedelta(minutes=5)
CRL_LIFETIME = timedelta(days=7)
_LEASE = "certificate-authority"
_LEASE_DURATION = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a certificate names."""

    tenant_id: str
    appliance_id: str

    @property
    def uri(self) -> str:
        """The name in a certificate that no other installation's could be taken for."""
        return f"vedette://tenant/{self.tenant_id}/appliance/{self.appliance_id}"


def signing_authority(session: Session, box: SecretBox, *, now: datetime) -> CertificateAuthority:
    """Return the authority that signs now; the first one is made here.

    Raises:
        UnavailableError: another process makes the first one at this moment.
    """
    found = _signing(session, now)
    if found is not None:
        return found
    # Two that were made at once would both be right, but a proxy may have been told of one alone.
    may_make = acquire_lease(session, _LEASE, holder=new_id(), now=now, duration=_LEASE_DURATION)
    found = _signing(session, now)
    if found is None and not may_make:
        raise UnavailableError(
            "The certificate authority is being made by another process. Try again in some seconds."
        )
    # Another host whose clock is a little behind finds it too.
    return found or _add_authority(session, box, signs_from=now - CLOCK_MARGIN, now=now)


def trusted_authorities(session: Session, *, now: datetime) -> list[CertificateAuthority]:
    """Return the authorities whose certificates are believed, the newest first."""
    return list(
        session.scalars(
            select(CertificateAuthority)
            .where(CertificateAuthority.not_after > now)
            .order_by(CertificateAuthority.id.desc())
        )
    )


def authorities_pem(session: Session, *, now: datetime) -> str:
    """Return the certificates of all trusted authorities, one behind the other."""
    return "".join(one.certificate for one in trusted_authorities(session, now=now))


def rotate_authority(
    session: Session, box: SecretBox, *, overlap: timedelta, now: datetime
) -> CertificateAuthority:
    """Make a new authority that signs from `now + overlap`; the present one signs until then."""
    signs_from = now + overlap
    in_force = session.scalars(
        select(CertificateAuthority).where(
            or_(
                CertificateAuthority.retired_at.is_(None),
                CertificateAuthority.retired_at > signs_from,
            )
        )
    )
    for old in in_force:
        old.retired_at = signs_from
    return _add_authority(session, box, signs_from=signs_from, now=now)


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
    own = _certificate_of(authority)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject.appliance_id, organisation=subject.tenant_id))
        .issuer_name(own.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_MARGIN)
        .not_valid_after(min(now + lifetime, authority.not_after))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(subject.uri)]),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(_authority_identifier(own), critical=False)
    )
    return builder.sign(_key_of(authority, box), hashes.SHA256())


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


def _signing(session: Session, now: datetime) -> CertificateAuthority | None:
    return session.scalars(
        select(CertificateAuthority)
        .where(
            CertificateAuthority.not_before <= now,
            CertificateAuthority.not_after > now,
            or_(CertificateAuthority.retired_at.is_(None), CertificateAuthority.retired_at > now),
        )
        .order_by(CertificateAuthority.not_before.desc(), CertificateAuthority.id.desc())
        .limit(1)
    ).first()


def _add_authority(
    session: Session, box: SecretBox, *, signs_from: datetime, now: datetime
) -> CertificateAuthority:
    ident = new_id()
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"Vedette agents {ident[:8]}-{ident[-4:]}", organisation="Vedette")
    not_after = (signs_from + AUTHORITY_LIFETIME).replace(microsecond=0)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_MARGIN)
        .not_valid_after(not_after)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    authority = CertificateAuthority(
        id=ident,
        certificate=certificate.public_bytes(serialization.Encoding.PEM).decode(),
        private_key=box.encrypt(secret.decode()),
        not_before=signs_from,
        not_after=not_after,
    )
    session.add(authority)
    session.flush()
    return authority


def _name(common_name: str, *, organisation: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


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
