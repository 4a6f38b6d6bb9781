"""Certificates that were issued after a backup are recognized once it is restored; no others."""

from datetime import datetime, timedelta

import pytest
from cryptography import x509
from sqlalchemy import delete
from sqlalchemy.orm import Session

from tenants.models import (
    Appliance,
    ApplianceCertificate,
    BackupKind,
    BackupRun,
    BackupState,
    CertificateAuthority,
)
from tenants.pki.admission import GRACE, Admission, admit_certificate, revoke_identity
from tenants.pki.certificates import Issuer, fingerprint_of, issue_certificate
from tests.cast import BOX, NOON, Cast, make_appliance
from tests.fixtures.signing_requests import signing_request

BACKUP_AT, RESTORED_AT = NOON + timedelta(hours=1), NOON + timedelta(hours=3)
LATER = RESTORED_AT + timedelta(minutes=5)
ISSUER = Issuer(BOX, timedelta(days=7))


@pytest.fixture
def dgx(session: Session, cast: Cast) -> Appliance:
    """An appliance of the lost portal; it is in the backup, its later certificates are not."""
    appliance = make_appliance(session, cast.acme, "dgx-01")
    issue(session, appliance, now=NOON)
    return appliance


def issue(session: Session, appliance: Appliance, *, now: datetime) -> str:
    """Issue a certificate; return it in PEM form."""
    return issue_certificate(session, ISSUER, appliance, csr=signing_request(), now=now).certificate


def restore(session: Session) -> None:
    """Make the database as one that was restored: later certificates are missing."""
    session.execute(delete(ApplianceCertificate).where(ApplianceCertificate.issued_at > BACKUP_AT))
    session.add(
        BackupRun(
            kind=BackupKind.RESTORE,
            state=BackupState.DONE,
            requested_at=RESTORED_AT,
            finished_at=RESTORED_AT,
            data_at=BACKUP_AT,
        )
    )
    session.flush()


def admit(session: Session, pem: str) -> Admission:
    fingerprint = fingerprint_of(x509.load_pem_x509_certificate(pem.encode()))
    return admit_certificate(session, fingerprint, pem=pem, now=LATER)


def test_an_agent_that_renewed_after_the_backup_is_recognized(
    session: Session, dgx: Appliance
) -> None:
    renewed = issue(session, dgx, now=BACKUP_AT + timedelta(hours=1))
    restore(session)
    admission = admit(session, renewed)
    assert admission.appliance is not None
    assert admission.appliance.id == dgx.id
    assert admit(session, renewed).appliance is not None


def test_an_unknown_certificate_is_refused_without_a_restore(
    session: Session, dgx: Appliance
) -> None:
    removed = issue(session, dgx, now=BACKUP_AT + timedelta(hours=1))
    session.execute(delete(ApplianceCertificate))
    assert "Unknown certificate" in admit(session, removed).refusal


def test_a_certificate_from_before_the_backup_that_is_not_in_it_is_refused(
    session: Session, dgx: Appliance
) -> None:
    removed = issue(session, dgx, now=BACKUP_AT - timedelta(minutes=30))
    session.execute(delete(ApplianceCertificate))
    restore(session)
    assert admit(session, removed).appliance is None


def test_a_certificate_of_an_appliance_that_is_not_in_the_backup_is_refused(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    enrolled_later = make_appliance(session, cast.globex, "dgx-02")
    certificate = issue(session, enrolled_later, now=BACKUP_AT + timedelta(hours=1))
    restore(session)
    session.delete(enrolled_later)
    session.flush()
    assert dgx.id
    assert "Enroll the appliance again" in admit(session, certificate).refusal


def test_a_certificate_of_another_authority_is_refused(session: Session, dgx: Appliance) -> None:
    with session.begin_nested() as elsewhere:
        session.execute(delete(ApplianceCertificate))
        for authority in session.query(CertificateAuthority):
            session.delete(authority)
        session.flush()
        forged = issue(session, dgx, now=BACKUP_AT + timedelta(hours=1))
        elsewhere.rollback()
    restore(session)
    assert admit(session, forged).appliance is None


def test_an_older_certificate_does_not_replace_the_one_that_was_recognized(
    session: Session, dgx: Appliance
) -> None:
    replaced, renewed = (issue(session, dgx, now=BACKUP_AT + timedelta(hours=n)) for n in (1, 2))
    restore(session)
    assert admit(session, renewed).appliance is not None
    assert "Unknown certificate" in admit(session, replaced).refusal
    assert admit(session, renewed).until > LATER + GRACE


def test_no_certificate_of_an_identity_that_was_revoked_after_the_restore_is_recognized(
    session: Session, dgx: Appliance
) -> None:
    stolen = issue(session, dgx, now=BACKUP_AT + timedelta(hours=1))
    restore(session)
    revoke_identity(session, dgx, reason="Enrolled again.", now=RESTORED_AT + timedelta(minutes=1))
    anew = issue(session, dgx, now=RESTORED_AT + timedelta(minutes=2))
    assert "Unknown certificate" in admit(session, stolen).refusal
    assert admit(session, anew).until > LATER + GRACE
