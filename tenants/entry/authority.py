"""The portal's own certificate authority: it signs agents' certificates, and the portal's own.

An *authority* is a key with a certificate of its own. The key is made at first need and stored
encrypted. A rotation makes a new one that signs after an *overlap*, in which the proxies in front
learn to trust it; the old one signs no more from then on and stays trusted until it runs out.
"""

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.errors import UnavailableError
from core.ids import new_id
from core.leases import acquire_lease
from core.secretbox import SecretBox
from tenants.entry.x509_parts import name_of, new_key, usage_of
from tenants.models import CertificateAuthority

AUTHORITY_LIFETIME = timedelta(days=3650)
# Clocks of appliances and proxies may be behind ours by so much.
CLOCK_MARGIN = timedelta(minutes=5)
_LEASE = "certificate-authority"
_LEASE_DURATION = timedelta(seconds=30)


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
    name = name_of(f"Vedette agents {ident[:8]}-{ident[-4:]}")
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
        .add_extension(usage_of(is_authority=True), critical=True)
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
