"""Admission of agents by certificate, revocation and readmission.

A new certificate replaces the others of its appliance when it is first *used*: before that, its
agent may not have received it. The old one stays valid for `GRACE`, for open connections. If it is
used later, two agents have the same identity, and the appliance is fenced.

An appliance's *identity* is its agent's secret and its certificates. Where certificates are
required, the secret alone gets one only until one was used. An admin readmits an appliance that was
off until its certificate expired.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from core.errors import ConflictError, UnauthenticatedError
from tenants.fleet.agents import (
    OLD_CERTIFICATE,
    appliance_refusal,
    block_appliance,
    fence_appliance,
    lock_appliance,
    rotate_agent_secret,
)
from tenants.fleet.events import EventKind, actor_details, add_event
from tenants.models import Appliance, ApplianceCertificate
from tenants.permissions import Permission
from tenants.pki.adoption import adopt_certificate
from tenants.scope import Scope

GRACE = timedelta(minutes=2)
CERTIFICATE_NEEDED = "certificate_needed"


@dataclass(frozen=True, slots=True)
class Admission:
    """Until when a certificate's agent is admitted, or why it is refused."""

    until: datetime
    appliance: Appliance | None = None
    refusal: str = ""


def admit_certificate(
    session: Session, fingerprint: str, *, pem: str = "", now: datetime
) -> Admission:
    """Check a certificate and record its use.

    A refusal is returned, not raised, because the transaction must be committed: the use of a
    replaced certificate fences the appliance.

    Args:
        session: the session.
        fingerprint: the certificate's SHA-256.
        pem: the certificate, which may be unknown after a restore.
        now: the time.
    """
    certificate = session.scalars(
        select(ApplianceCertificate).where(ApplianceCertificate.fingerprint == fingerprint),
        execution_options={"populate_existing": True},
    ).first() or adopt_certificate(session, pem, fingerprint, now=now)
    if certificate is None:
        return Admission(now, refusal=_UNKNOWN)
    # The appliance's row is locked before its certificates change.
    appliance = lock_appliance(session, certificate.appliance_id)
    session.refresh(certificate)
    refusal = _refusal(certificate, appliance, now=now)
    if refusal:
        return Admission(now, refusal=refusal)
    if certificate.replaced_at is not None and now - certificate.replaced_at > GRACE:
        fence_appliance(session, appliance, reason=OLD_CERTIFICATE, now=now)
        return Admission(now, refusal=appliance_refusal(appliance))
    if certificate.first_used_at is None and certificate.replaced_at is None:
        _activate(session, certificate, now=now)
    return Admission(
        valid_until(certificate.not_after, certificate.replaced_at), appliance=appliance
    )


def valid_until(not_after: datetime, replaced_at: datetime | None) -> datetime:
    """Return until when a certificate that is not revoked admits its agent."""
    return not_after if replaced_at is None else min(not_after, replaced_at + GRACE)


def _activate(session: Session, certificate: ApplianceCertificate, *, now: datetime) -> None:
    certificate.first_used_at = now
    session.flush()
    model = ApplianceCertificate
    # A newer unused certificate is on its way to the agent, and will replace this one.
    is_before = or_(model.id < certificate.id, model.first_used_at.is_not(None))
    session.execute(
        update(model)
        .where(
            model.appliance_id == certificate.appliance_id,
            model.id != certificate.id,
            model.replaced_at.is_(None),
            is_before,
        )
        .values(replaced_at=now)
    )


def _refusal(certificate: ApplianceCertificate, appliance: Appliance, *, now: datetime) -> str:
    if certificate.revoked_at is not None:
        return (
            f"The certificate of the appliance {appliance.name!r} was revoked. Enroll it again "
            "with a new enrollment token."
        )
    if certificate.not_after <= now:
        return (
            f"The certificate of the appliance {appliance.name!r} expired at "
            f"{certificate.not_after:%Y-%m-%d %H:%M} UTC. Agents renew certificates "
            "automatically; check the appliance's clock."
        )
    return appliance_refusal(appliance)


def refuse_expired(session: Session, appliance: Appliance, *, now: datetime) -> None:
    """Refuse an agent without a certificate if that has expired, and say what to do.

    Raises:
        UnauthenticatedError: the certificate that it used last has expired.
    """
    used = used_certificate(session, appliance.id)
    if used is not None and used.not_after <= now:
        raise UnauthenticatedError(
            f"The certificate of the appliance {appliance.name!r} expired on "
            f"{used.not_after:%Y-%m-%d} and was not renewed in time. An admin of the tenant can "
            "readmit the agent on the appliance's certificates page; *Enroll again* on the "
            "appliance's page makes a line that gives it a new identity instead.",
            code=CERTIFICATE_NEEDED,
        )


_UNKNOWN = "Unknown certificate. Enroll the appliance again with a new enrollment token."
_MAX_REASON_LENGTH = 500


def revoke_certificate(
    session: Session, scope: Scope, certificate_id: str, *, reason: str = "", now: datetime
) -> ApplianceCertificate:
    """Revoke a certificate.

    Unless it was replaced, the agent's whole identity is revoked, or the agent would get a new
    certificate with it. The appliance must then be enrolled again.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    certificate = scope.get(session, ApplianceCertificate, certificate_id, kind="certificate")
    appliance = lock_appliance(session, certificate.appliance_id)
    session.refresh(certificate)
    if certificate.revoked_at is not None:
        return certificate
    if certificate.replaced_at is None:
        revoke_identity(session, appliance, reason=reason, now=now)
    else:
        _revoke(certificate, reason=reason, now=now)
    message = f"Certificate {certificate.serial} was revoked. {reason}".strip()
    add_event(session, appliance, EventKind.CERTIFICATE_REVOKED, message, now=now)
    block_appliance(session, appliance_id=appliance.id)
    session.flush()
    return certificate


def readmit_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Let an agent whose certificate expired get a new one by its secret, once.

    The expired certificate is revoked, so that the secret is accepted until a new one is used.

    Raises:
        ConflictError: no certificate of the appliance has expired.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    scope.get(session, Appliance, appliance_id, kind="appliance")
    appliance = lock_appliance(session, appliance_id)
    expired = used_certificate(session, appliance_id)
    if expired is None or expired.not_after > now:
        raise ConflictError(
            f"No certificate of {appliance.name!r} has expired, so its agent is not refused for "
            "that. If the agent lost its certificate, enroll the appliance again.",
            code="certificate_not_expired",
        )
    _revoke(expired, reason="Expired; the agent may get a new one by its secret.", now=now)
    message = "Readmitted: its agent may get a certificate by its secret, until it uses one."
    add_event(
        session, appliance, EventKind.READMITTED, message, details=actor_details(session), now=now
    )
    session.flush()
    return appliance


def used_certificate(session: Session, appliance_id: str) -> ApplianceCertificate | None:
    """Return the certificate that an agent uses, expired or not; None without."""
    return session.scalars(
        select(ApplianceCertificate)
        .where(
            ApplianceCertificate.appliance_id == appliance_id,
            ApplianceCertificate.first_used_at.is_not(None),
            ApplianceCertificate.replaced_at.is_(None),
            ApplianceCertificate.revoked_at.is_(None),
        )
        .order_by(ApplianceCertificate.id.desc())
        .execution_options(populate_existing=True)
    ).first()


def revoke_identity(session: Session, appliance: Appliance, *, reason: str, now: datetime) -> None:
    """Revoke an agent's secret and all its certificates."""
    in_force = session.scalars(
        select(ApplianceCertificate).where(
            ApplianceCertificate.appliance_id == appliance.id,
            ApplianceCertificate.revoked_at.is_(None),
            or_(ApplianceCertificate.not_after > now, ApplianceCertificate.replaced_at.is_(None)),
        )
    )
    for certificate in in_force:
        _revoke(certificate, reason=reason, now=now)
    # Nobody receives the new secret.
    rotate_agent_secret(appliance)
    session.flush()


def _revoke(certificate: ApplianceCertificate, *, reason: str, now: datetime) -> None:
    certificate.revoked_at = now
    certificate.revocation_reason = reason[:_MAX_REASON_LENGTH]
