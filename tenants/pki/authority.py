"""The portal's certificate authority, which signs agents' certificates and the portal's own.

An *authority* is a key with its own certificate. The first is created on demand; keys are stored
encrypted. Rotation creates a new authority that signs after an *overlap*, in which reverse proxies
learn to trust it. The old one stops signing then and stays trusted until it expires.
"""

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from core.errors import UnavailableError
from core.ids import new_id
from core.leases import acquire_lease
from core.secretbox import SecretBox
from tenants.models import Appliance, ApplianceCertificate, CertificateAuthority

AUTHORITY_LIFETIME = timedelta(days=3650)
# The clocks of appliances and proxies may be behind by this much.
CLOCK_MARGIN = timedelta(minutes=5)
_LEASE = "certificate-authority"
_LEASE_DURATION = timedelta(seconds=30)


def signing_authority(session: Session, box: SecretBox, *, now: datetime) -> CertificateAuthority:
    """Return the authority that signs; create the first one on demand.

    Raises:
        UnavailableError: another process is creating the first one.
    """
    authority = _signing(session, now)
    if authority is not None:
        return authority
    # Only one process may create it: a proxy may trust just one of two.
    may_create = acquire_lease(session, _LEASE, holder=new_id(), now=now, duration=_LEASE_DURATION)
    authority = _signing(session, now)
    if authority is None and not may_create:
        raise UnavailableError(
            "Another process is creating the certificate authority. Try again in a few seconds."
        )
    # Backdated for hosts whose clock is behind.
    return authority or _add_authority(session, box, signs_from=now - CLOCK_MARGIN, now=now)


def trusted_authorities(session: Session, *, now: datetime) -> list[CertificateAuthority]:
    """Return the authorities that are trusted, newest first."""
    return list(
        session.scalars(
            select(CertificateAuthority)
            .where(CertificateAuthority.not_after > now)
            .order_by(CertificateAuthority.id.desc())
        )
    )


def server_authority(
    session: Session, box: SecretBox, *, now: datetime
) -> tuple[CertificateAuthority, list[str]]:
    """Return the newest authority by which all agents know the portal, and who lags behind.

    Agents learn of new authorities with their next certificate. One that was away since has only
    the old ones: it could not connect to a portal with a certificate of the newest.

    Returns:
        The authority, and the names of the appliances that do not know the newest.
    """
    newest = signing_authority(session, box, now=now)
    lagging = _unaware_appliances(session, newest)
    if not lagging:
        return newest, []
    for authority in trusted_authorities(session, now=now):
        if authority.not_before <= now and not _unaware_appliances(session, authority):
            return authority, lagging
    return newest, lagging


def _unaware_appliances(session: Session, authority: CertificateAuthority) -> list[str]:
    """Return the appliances in service whose last certificate is older than an authority."""
    own = x509.load_pem_x509_certificate(authority.certificate.encode())
    created_at = own.not_valid_before_utc + CLOCK_MARGIN
    statement = (
        select(Appliance.name)
        .join(ApplianceCertificate, ApplianceCertificate.appliance_id == Appliance.id)
        .where(
            Appliance.retired_at.is_(None),
            Appliance.revoked_at.is_(None),
            ApplianceCertificate.first_used_at.is_not(None),
        )
        .group_by(Appliance.id, Appliance.name)
        .having(func.max(ApplianceCertificate.issued_at) < created_at)
    )
    return list(session.scalars(statement.order_by(Appliance.name)))


def authorities_pem(session: Session, *, now: datetime) -> str:
    """Return the certificates of all trusted authorities, concatenated."""
    return "".join(authority.certificate for authority in trusted_authorities(session, now=now))


def rotate_authority(
    session: Session, box: SecretBox, *, overlap: timedelta, now: datetime
) -> CertificateAuthority:
    """Create an authority that signs from `now + overlap`; the current one signs until then."""
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
    key = new_key()
    name = x509_name(f"Vedette agents {ident[:8]}-{ident[-4:]}")
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
        .add_extension(key_usage(is_authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
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


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def x509_name(common_name: str, *, organization: str = "Vedette") -> x509.Name:
    """Return an X.509 name."""
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def key_usage(*, is_authority: bool) -> x509.KeyUsage:
    """Return the key usage of an authority (sign certificates), or of others (sign data)."""
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
