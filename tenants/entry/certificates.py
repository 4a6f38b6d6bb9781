"""Agents' client certificates: given, renewed, checked, listed and revoked.

A new certificate takes the place of the others of its appliance when it is first *used*: before
that its agent may not have got it, and asks again with the old one. For `GRACE` after that the old
one is still taken, because connections and requests under way go on with it. Used later, it shows
that two agents have the same identity, and the appliance is fenced.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from core.errors import OverloadedError
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from core.secretbox import SecretBox
from core.sorting import Columns, sorted_by
from tenants.entry.agents import give_secret, lock_appliance, refusal_of
from tenants.entry.authority import Subject, authorities_pem, sign, signing_authority
from tenants.entry.fencing import OLD_CERTIFICATE, fence_appliance
from tenants.entry.roll import shut_out
from tenants.entry.signing_requests import key_of_request
from tenants.fleet.events import add_event
from tenants.models import Appliance, ApplianceCertificate
from tenants.permissions import Permission
from tenants.scope import Scope

CERTIFICATE_SORTS: Columns = {
    "issued_at": ApplianceCertificate.issued_at,
    "not_after": ApplianceCertificate.not_after,
    "revoked_at": ApplianceCertificate.revoked_at,
}

GRACE = timedelta(minutes=2)
# Agents renew after two thirds of the lifetime.
OVERDUE_RATIO = 0.25
MAX_RENEWALS = 30
RENEWALS_WITHIN = timedelta(minutes=10)
_MAX_REASON_LENGTH = 500


class CertificateState(StrEnum):
    """What a certificate is worth at a time; an overdue one should have been renewed long ago."""

    NEW = "not used yet"
    IN_FORCE = "in force"
    OVERDUE = "overdue"
    EXPIRED = "expired"
    REPLACED = "replaced"
    REVOKED = "revoked"


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


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a certificate lets its agent in, and until when; or the sentence why not."""

    until: datetime
    appliance: Appliance | None = None
    refusal: str = ""


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
    session: Session, issuer: Issuer, appliance_id: str, *, csr: str, now: datetime
) -> Issued:
    """Sign a new key for an agent that has proved who it is.

    Raises:
        OverloadedError: it asked too often of late.
        InvalidInputError: the request can't be signed.
    """
    appliance = lock_appliance(session, appliance_id)
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


def fingerprint_of(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate, in lower case hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def admit_certificate(session: Session, fingerprint: str, *, now: datetime) -> Admission:
    """Say whether the holder of a certificate may come in, and note that it is in use.

    A refusal is returned and not raised, because what led to it may have to be kept: the use of a
    certificate that was replaced fences its appliance.
    """
    found = session.scalars(
        select(ApplianceCertificate).where(ApplianceCertificate.fingerprint == fingerprint),
        execution_options={"populate_existing": True},
    ).first()
    if found is None:
        return Admission(now, refusal=_UNKNOWN)
    # Whoever changes which certificate is in force holds the appliance's row.
    appliance = lock_appliance(session, found.appliance_id)
    session.refresh(found)
    refusal = _refusal(found, appliance, now=now)
    if refusal:
        return Admission(now, refusal=refusal)
    if found.replaced_at is not None and now - found.replaced_at > GRACE:
        fence_appliance(session, appliance, reason=OLD_CERTIFICATE, now=now)
        return Admission(now, refusal=refusal_of(appliance))
    if found.first_used_at is None and found.replaced_at is None:
        _put_in_force(session, found, now=now)
    return Admission(good_until(found.not_after, found.replaced_at), appliance=appliance)


def good_until(not_after: datetime, replaced_at: datetime | None) -> datetime:
    """Return until when a certificate lets in that is not revoked."""
    return not_after if replaced_at is None else min(not_after, replaced_at + GRACE)


def state_of(certificate: ApplianceCertificate, *, now: datetime) -> CertificateState:
    """Return what a certificate is worth now."""
    one = certificate
    if one.revoked_at is not None:
        return CertificateState.REVOKED
    if one.replaced_at is not None:
        return CertificateState.REPLACED
    if one.not_after <= now:
        return CertificateState.EXPIRED
    if one.first_used_at is None:
        return CertificateState.NEW
    is_overdue = one.not_after - now < (one.not_after - one.issued_at) * OVERDUE_RATIO
    return CertificateState.OVERDUE if is_overdue else CertificateState.IN_FORCE


def newest_certificate(
    session: Session, scope: Scope, appliance_id: str
) -> ApplianceCertificate | None:
    """Return the certificate that an appliance's agent shows, or was given last; None without."""
    page = list_certificates(session, scope, appliance_id, page_size=10)
    in_use = [one for one in page.items if one.first_used_at and not one.replaced_at]
    return next(iter([*in_use, *page.items]), None)


def list_certificates(
    session: Session,
    scope: Scope,
    appliance_id: str,
    *,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[ApplianceCertificate]:
    """Return the certificates of an appliance, the newest first."""
    scope.require(Permission.VIEW)
    scope.get(session, Appliance, appliance_id, kind="appliance")
    statement = select(ApplianceCertificate).where(
        ApplianceCertificate.appliance_id == appliance_id
    )
    newest_first = statement.order_by(ApplianceCertificate.id.desc())
    return paginate(
        session,
        sorted_by(newest_first, sort, CERTIFICATE_SORTS, last=ApplianceCertificate.id),
        number=page,
        size=page_size,
    )


def expiring_certificates(
    session: Session,
    scope: Scope,
    *,
    within: timedelta,
    now: datetime,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[ApplianceCertificate]:
    """Return the certificates in force that run out soon or have: their agents did not renew them.

    Appliances that are out of service are left out.
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
    return paginate(
        session,
        sorted_by(statement, sort, CERTIFICATE_SORTS, last=ApplianceCertificate.id),
        number=page,
        size=page_size,
    )


def revoke_certificate(
    session: Session, scope: Scope, certificate_id: str, *, reason: str = "", now: datetime
) -> ApplianceCertificate:
    """Refuse a certificate from now on.

    Where it is in force its agent's other proofs go with it, or the agent would come back with
    them: its secret, and certificates that it has not used yet. It must be enrolled again then.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    found = scope.get(session, ApplianceCertificate, certificate_id, kind="certificate")
    appliance = lock_appliance(session, found.appliance_id)
    session.refresh(found)
    if found.revoked_at is not None:
        return found
    if found.replaced_at is None:
        revoke_identity(session, appliance, reason=reason, now=now)
    else:
        _revoke(found, reason=reason, now=now)
    message = f"Certificate {found.serial} was revoked. {reason}".strip()
    add_event(session, appliance, "certificate_revoked", message, now=now)
    shut_out(session, appliance_id=appliance.id)
    session.flush()
    return found


def revoke_identity(session: Session, appliance: Appliance, *, reason: str, now: datetime) -> None:
    """Take from an appliance's agent all that it could prove with who it is."""
    in_force = session.scalars(
        select(ApplianceCertificate).where(
            ApplianceCertificate.appliance_id == appliance.id,
            ApplianceCertificate.revoked_at.is_(None),
            ApplianceCertificate.not_after > now,
        )
    )
    for one in in_force:
        _revoke(one, reason=reason, now=now)
    # Of the new secret nobody is told.
    give_secret(appliance)
    session.flush()


def _revoke(certificate: ApplianceCertificate, *, reason: str, now: datetime) -> None:
    certificate.revoked_at = now
    certificate.revocation_reason = reason[:_MAX_REASON_LENGTH]


def _put_in_force(session: Session, certificate: ApplianceCertificate, *, now: datetime) -> None:
    certificate.first_used_at = now
    session.flush()
    one = ApplianceCertificate
    # A later one that was not used yet is on its way to the agent, and takes over in its turn.
    is_before = or_(one.id < certificate.id, one.first_used_at.is_not(None))
    session.execute(
        update(one)
        .where(
            one.appliance_id == certificate.appliance_id,
            one.id != certificate.id,
            one.replaced_at.is_(None),
            is_before,
        )
        .values(replaced_at=now)
    )


def _refusal(certificate: ApplianceCertificate, appliance: Appliance, *, now: datetime) -> str:
    if certificate.revoked_at is not None:
        return (
            f"The certificate of the appliance {appliance.name!r} was revoked. Enrol it again with "
            "a new enrolment token."
        )
    if certificate.not_after <= now:
        return (
            f"The certificate of the appliance {appliance.name!r} ran out at "
            f"{certificate.not_after:%Y-%m-%d %H:%M} UTC. Its agent renews it by itself; check the "
            "appliance's clock."
        )
    return refusal_of(appliance)


_UNKNOWN = "This certificate is unknown here. Enrol the appliance again with a new enrolment token."
