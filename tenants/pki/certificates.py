"""Agents' client certificates: issue, renew and list them."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Unpack

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.errors import OverloadedError, UnauthenticatedError
from core.paging import Columns, Page, Paging, list_page
from core.secretbox import SecretBox
from tenants.fleet.agents import lock_appliance
from tenants.fleet.events import EventKind, add_event
from tenants.models import Appliance, ApplianceCertificate
from tenants.permissions import Permission
from tenants.pki.admission import CERTIFICATE_NEEDED, refuse_expired, used_certificate
from tenants.pki.authority import authorities_pem, signing_authority
from tenants.pki.signing import Subject, key_of_request, sign
from tenants.scope import Scope

MAX_RENEWALS = 30
RENEWALS_WITHIN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Issuer:
    """The signer of certificates: the box with the authority's key, and their lifetime."""

    box: SecretBox
    lifetime: timedelta


@dataclass(frozen=True, slots=True)
class Issued:
    """A new certificate and the trusted authorities, in PEM format."""

    certificate: str
    authorities: str
    not_after: datetime


def issue_certificate(
    session: Session, issuer: Issuer, appliance: Appliance, *, csr: str, now: datetime
) -> Issued:
    """Sign the key of a request for an appliance.

    Raises:
        InvalidInputError: the request is invalid.
        UnavailableError: the authority's key is unavailable.
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
        EventKind.CERTIFICATE_ISSUED,
        f"A certificate was issued, valid until {until}.",
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
    """Sign a new key for an authenticated agent.

    With `is_by_secret` the agent authenticated by its secret although certificates are required:
    that is allowed only until it used a certificate.

    Raises:
        UnauthenticatedError: it used a certificate before, and shows none now.
        OverloadedError: it requested too many certificates.
        InvalidInputError: the request is invalid.
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
            f"{RENEWALS_WITHIN}. Check the agent's log.",
            retry_after_seconds=int(RENEWALS_WITHIN.total_seconds()),
        )
    return issue_certificate(session, issuer, appliance, csr=csr, now=now)


def _refuse_secret_beside_certificate(
    session: Session, appliance: Appliance, *, now: datetime
) -> None:
    refuse_expired(session, appliance, now=now)
    if used_certificate(session, appliance.id) is not None:
        raise UnauthenticatedError(
            f"The appliance {appliance.name!r} has a certificate, and must use it to get the "
            "next one. If it was lost, ask an admin of the tenant to enroll the appliance again.",
            code=CERTIFICATE_NEEDED,
        )


def fingerprint_of(certificate: x509.Certificate) -> str:
    """Return the SHA-256 fingerprint of a certificate, in lower case hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


CERTIFICATE_SORTS: Columns = {
    "issued_at": ApplianceCertificate.issued_at,
    "not_after": ApplianceCertificate.not_after,
    "revoked_at": ApplianceCertificate.revoked_at,
}
# Agents renew after two thirds of the lifetime.
OVERDUE_RATIO = 0.25


class CertificateState(StrEnum):
    """The state of a certificate; an overdue one should have been renewed."""

    NEW = "not used yet"
    ACTIVE = "active"
    OVERDUE = "overdue"
    EXPIRED = "expired"
    REPLACED = "replaced"
    REVOKED = "revoked"


def state_of(certificate: ApplianceCertificate, *, now: datetime) -> CertificateState:
    """Return the state of a certificate."""
    if certificate.revoked_at is not None:
        return CertificateState.REVOKED
    if certificate.replaced_at is not None:
        return CertificateState.REPLACED
    if certificate.not_after <= now:
        return CertificateState.EXPIRED
    if certificate.first_used_at is None:
        return CertificateState.NEW
    is_overdue = (
        certificate.not_after - now
        < (certificate.not_after - certificate.issued_at) * OVERDUE_RATIO
    )
    return CertificateState.OVERDUE if is_overdue else CertificateState.ACTIVE


def newest_certificate(
    session: Session, scope: Scope, appliance_id: str
) -> ApplianceCertificate | None:
    """Return the certificate that an agent uses, or the newest one; None without."""
    page = list_certificates(session, scope, appliance_id, page_size=10)
    in_use = [
        certificate
        for certificate in page.items
        if certificate.first_used_at and not certificate.replaced_at
    ]
    return next(iter([*in_use, *page.items]), None)


def list_certificates(
    session: Session, scope: Scope, appliance_id: str, **paging: Unpack[Paging]
) -> Page[ApplianceCertificate]:
    """Return the certificates of an appliance, newest first."""
    scope.require(Permission.VIEW)
    scope.get(session, Appliance, appliance_id, kind="appliance")
    statement = select(ApplianceCertificate).where(
        ApplianceCertificate.appliance_id == appliance_id
    )
    statement = statement.order_by(ApplianceCertificate.id.desc())
    return list_page(session, statement, CERTIFICATE_SORTS, last=ApplianceCertificate.id, **paging)


def expiring_certificates(
    session: Session, scope: Scope, *, within: timedelta, now: datetime, **paging: Unpack[Paging]
) -> Page[ApplianceCertificate]:
    """Return used certificates that expire soon or have expired: their agents did not renew them.

    Appliances out of service are left out.
    """
    scope.require(Permission.VIEW)
    statement = (
        scope.select(select(ApplianceCertificate), ApplianceCertificate)
        .join(Appliance, Appliance.id == ApplianceCertificate.appliance_id)
        .where(
            ApplianceCertificate.not_after <= now + within,
            ApplianceCertificate.first_used_at.is_not(None),
            ApplianceCertificate.replaced_at.is_(None),
            ApplianceCertificate.revoked_at.is_(None),
            Appliance.revoked_at.is_(None),
            Appliance.retired_at.is_(None),
        )
        .order_by(ApplianceCertificate.not_after, ApplianceCertificate.id)
    )
    return list_page(session, statement, CERTIFICATE_SORTS, last=ApplianceCertificate.id, **paging)
