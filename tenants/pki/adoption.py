"""Certificates that a restored portal does not list, because it issued them after the backup.

They are recognized by the signature of the portal's own authority, whose key is in the backup, and
by their time of issue: between a backup that was restored and the restore. Only the newest of an
appliance is adopted, and none once its identity was revoked after the restore.
"""

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from sqlalchemy import select
from sqlalchemy.orm import Session

from tenants.fleet.agents import lock_appliance
from tenants.fleet.events import EventKind, add_event
from tenants.models import (
    Appliance,
    ApplianceCertificate,
    BackupKind,
    BackupRun,
    BackupState,
    CertificateAuthority,
)
from tenants.pki.authority import CLOCK_MARGIN, trusted_authorities
from tenants.pki.signing import Subject

# Certificates have no fractions of seconds.
_PRECISION = timedelta(seconds=1)


def adopt_certificate(
    session: Session, pem: str, fingerprint: str, *, now: datetime
) -> ApplianceCertificate | None:
    """Add the row of a certificate that was issued after the restored backup; None for others."""
    restores = session.execute(
        select(BackupRun.data_at, BackupRun.finished_at).where(
            BackupRun.kind == BackupKind.RESTORE, BackupRun.state == BackupState.DONE
        )
    ).all()
    if not restores or not pem:
        return None
    certificate = x509.load_pem_x509_certificate(pem.encode())
    issued_at = certificate.not_valid_before_utc + CLOCK_MARGIN
    restored_at = min(
        (
            end
            for start, end in restores
            if start and end and start - _PRECISION <= issued_at <= end
        ),
        default=None,
    )
    if restored_at is None:
        return None
    authority = _issuer(session, certificate, now=now)
    appliance = _subject(session, certificate)
    if authority is None or appliance is None:
        return None
    # Agents send several requests at once: since the lock, the first of them may have added it.
    same = select(ApplianceCertificate).where(ApplianceCertificate.fingerprint == fingerprint)
    if (adopted := session.scalar(same)) is not None:
        return adopted
    if _is_superseded(session, appliance, issued_at=issued_at, restored_at=restored_at):
        return None
    row = ApplianceCertificate(
        tenant_id=appliance.tenant_id,
        appliance_id=appliance.id,
        authority_id=authority.id,
        serial=f"{certificate.serial_number:x}",
        fingerprint=fingerprint,
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        issued_at=issued_at,
    )
    session.add(row)
    message = "Recognized a certificate that was issued after the restored backup."
    details = {"serial": row.serial, "fingerprint": row.fingerprint}
    add_event(session, appliance, EventKind.CERTIFICATE_ISSUED, message, details=details, now=now)
    session.flush()
    return row


def _is_superseded(
    session: Session, appliance: Appliance, *, issued_at: datetime, restored_at: datetime
) -> bool:
    """Return whether an agent has a later certificate, or lost its identity after the restore.

    A certificate that was only revoked when it had expired was that of an agent to readmit.
    """
    model = ApplianceCertificate
    is_later = (model.issued_at > issued_at) & model.first_used_at.is_not(None)
    is_revoked = (model.revoked_at >= restored_at) & (model.revoked_at < model.not_after)
    later = select(model.id).where(model.appliance_id == appliance.id, is_later | is_revoked)
    return session.scalar(later.limit(1)) is not None


def _issuer(
    session: Session, certificate: x509.Certificate, *, now: datetime
) -> CertificateAuthority | None:
    for authority in trusted_authorities(session, now=now):
        try:
            certificate.verify_directly_issued_by(
                x509.load_pem_x509_certificate(authority.certificate.encode())
            )
        except (ValueError, TypeError, InvalidSignature):
            continue
        return authority
    return None


def _subject(session: Session, certificate: x509.Certificate) -> Appliance | None:
    """Return the appliance that a certificate names, locked."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    for uri in names.get_values_for_type(x509.UniformResourceIdentifier):
        appliance_id = uri.rpartition("/")[2]
        appliance = session.get(Appliance, appliance_id)
        if appliance is not None:
            subject = Subject(tenant_id=appliance.tenant_id, appliance_id=appliance.id)
            return lock_appliance(session, appliance.id) if subject.uri == uri else None
    return None
