"""Agents' client certificates: signed when an agent joins, and again when it renews them."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.errors import OverloadedError, UnauthenticatedError
from core.secretbox import SecretBox
from tenants.entry.agents import lock_appliance
from tenants.entry.authority import authorities_pem, signing_authority
from tenants.entry.revocation import used_certificate
from tenants.entry.signing import Subject, sign
from tenants.entry.signing_requests import key_of_request
from tenants.fleet.events import add_event
from tenants.models import Appliance, ApplianceCertificate

CERTIFICATE_NEEDED = "certificate_needed"
MAX_RENEWALS = 30
RENEWALS_WITHIN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Issuer:
    """What it takes to sign: the box that the authority's key is in, and for how long to sign."""

    box: SecretBox
    lifetime: timedelta


@dataclass(frozen=True, slots=True)
class Issued:
    """A new certificate as its agent gets it, in PEM form."""

    certificate: str
    authorities: str
    not_after: datetime


def issue_certificate(
    session: Session, issuer: Issuer, appliance: Appliance, *, csr: str, now: datetime
) -> Issued:
    """Sign the key of a request for an appliance.

    Raises:
        InvalidInputError: the request can't be signed.
        UnavailableError: the authority's key can't be had.
    """
    key = key_of_request(csr)
    authority = signing_authority(session, issuer.box, now=now)
    subject = Subject(tenant_id=appliance.tenant_id, appliance_id=appliance.id)
    signed = sign(authority, issuer.box, key, subject, lifetime=issuer.lifetime, now=now)
    row = ApplianceCertificate(
        tenant_id=appliance.tenant_id,
        appliance_id=appliance.id,
        authority_id=authority.id,
        serial=f"{signed.serial_number:x}",
        fingerprint=fingerprint_of(signed),
        not_before=signed.not_valid_before_utc,
        not_after=signed.not_valid_after_utc,
        issued_at=now,
    )
    session.add(row)
    until = f"{row.not_after:%Y-%m-%d %H:%M} UTC"
    add_event(
        session,
        appliance,
        "certificate_issued",
        f"A certificate was issued that is good until {until}.",
        details={"serial": row.serial, "fingerprint": row.fingerprint},
        now=now,
    )
    session.flush()
    return Issued(
        certificate=signed.public_bytes(serialization.Encoding.PEM).decode(),
        authorities=authorities_pem(session, now=now),
        not_after=row.not_after,
    )


def renew_certificate(
    session: Session,
    issuer: Issuer,
    appliance_id: str,
    *,
    csr: str,
    is_by_secret: bool = False,
    now: datetime,
) -> Issued:
    """Sign a new key for an agent that has proved who it is.

    Args:
        session: the database session.
        issuer: what signs.
        appliance_id: whose agent it is.
        csr: the request.
        is_by_secret: whether it showed no certificate where one is asked for; then it must not
            have used any.
        now: the present instant.

    Raises:
        UnauthenticatedError: it has used a certificate, and comes without.
        OverloadedError: it asked too often of late.
        InvalidInputError: the request can't be signed.
    """
    appliance = lock_appliance(session, appliance_id)
    if is_by_secret:
        _refuse_secret_beside_certificate(session, appliance, now=now)
    of_late = select(func.count()).where(
        ApplianceCertificate.appliance_id == appliance_id,
        ApplianceCertificate.issued_at > now - RENEWALS_WITHIN,
    )
    if (session.scalar(of_late) or 0) >= MAX_RENEWALS:
        raise OverloadedError(
            f"{MAX_RENEWALS} certificates were issued to this appliance in the last "
            f"{RENEWALS_WITHIN}. Look for what its agent does with them.",
            retry_after_seconds=int(RENEWALS_WITHIN.total_seconds()),
        )
    return issue_certificate(session, issuer, appliance, csr=csr, now=now)


def _refuse_secret_beside_certificate(
    session: Session, appliance: Appliance, *, now: datetime
) -> None:
    held = used_certificate(session, appliance.id)
    if held is None:
        return
    if held.not_after > now:
        raise UnauthenticatedError(
            f"The appliance {appliance.name!r} has a certificate, and must show it to get the "
            "next one. If it was lost, have an admin of the tenant enrol the appliance again.",
            code=CERTIFICATE_NEEDED,
        )
    raise UnauthenticatedError(
        f"The certificate of the appliance {appliance.name!r} ran out at {held.not_after:%Y-%m-%d} "
        "and was not renewed in time. An admin of the tenant can let its agent in again, on the "
        "page of its certificates.",
        code=CERTIFICATE_NEEDED,
    )


def fingerprint_of(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate, in lower case hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()
