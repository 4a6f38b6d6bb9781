"""Agents' certificates: which one lets in, what replaces what, and what revoking takes away."""

from datetime import datetime, timedelta

import pytest
from cryptography import x509
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    OverloadedError,
    UnauthenticatedError,
)
from tenants.fleet.agents import authenticate_agent, registry_revision
from tenants.lifecycle.pruning import prune
from tenants.models import Appliance, ApplianceCertificate, ApplianceEvent
from tenants.pki.admission import (
    GRACE,
    Admission,
    admit_certificate,
    readmit_appliance,
    revoke_certificate,
    revoke_identity,
)
from tenants.pki.certificates import (
    MAX_RENEWALS,
    CertificateState,
    Issued,
    Issuer,
    expiring_certificates,
    fingerprint_of,
    issue_certificate,
    list_certificates,
    newest_certificate,
    renew_certificate,
    state_of,
)
from tests.cast import BOX, NOON, Cast, make_appliance, scope_of
from tests.fixtures.signing_requests import signing_request

WEEK = timedelta(days=7)
MINUTE = timedelta(minutes=1)
ISSUER = Issuer(BOX, WEEK)


@pytest.fixture
def dgx(session: Session, cast: Cast) -> Appliance:
    return make_appliance(session, cast.acme, "dgx-01")


def issue(session: Session, appliance: Appliance, *, now: datetime = NOON) -> str:
    """Issue a certificate and return its fingerprint."""
    issued = issue_certificate(session, ISSUER, appliance, csr=signing_request(), now=now)
    return fingerprint_of(x509.load_pem_x509_certificate(issued.certificate.encode()))


def admit(session: Session, fingerprint: str, *, now: datetime = NOON) -> Admission:
    return admit_certificate(session, fingerprint, now=now)


def row(session: Session, fingerprint: str) -> ApplianceCertificate:
    return session.scalars(
        select(ApplianceCertificate).where(ApplianceCertificate.fingerprint == fingerprint)
    ).one()


def test_a_certificate_admits_its_own_appliance(session: Session, dgx: Appliance) -> None:
    admission = admit(session, issue(session, dgx))
    assert admission.appliance is dgx
    assert admission.until == NOON + WEEK


def test_an_unknown_certificate_is_refused_whoever_signed_it(session: Session) -> None:
    assert "Unknown certificate" in admit(session, "0" * 64).refusal


def test_an_expired_certificate_is_refused(session: Session, dgx: Appliance) -> None:
    held = issue(session, dgx)
    assert "expired" in admit(session, held, now=NOON + WEEK).refusal


def test_the_old_one_goes_on_until_the_new_one_is_used(session: Session, dgx: Appliance) -> None:
    old = issue(session, dgx)
    admit(session, old)
    issue(session, dgx)
    assert admit(session, old, now=NOON + timedelta(days=6)).appliance is dgx


def test_requests_under_way_may_use_the_old_one_for_a_moment(
    session: Session, dgx: Appliance
) -> None:
    old, new = issue(session, dgx), issue(session, dgx)
    admit(session, old)
    admit(session, new)
    admission = admit(session, old, now=NOON + MINUTE)
    assert (admission.appliance, admission.until) == (dgx, NOON + GRACE)
    assert dgx.fenced_at is None


def test_the_old_one_used_long_after_the_new_one_fences_both(
    session: Session, dgx: Appliance
) -> None:
    old, new = issue(session, dgx), issue(session, dgx)
    admit(session, old)
    admit(session, new)
    later = NOON + timedelta(hours=1)
    assert "two agents used its identity" in admit(session, old, now=later).refusal
    assert dgx.fenced_at == later
    assert "two agents used its identity" in admit(session, new, now=later).refusal
    assert session.scalars(select(ApplianceEvent.kind)).all().count("fenced") == 1


def test_an_answer_that_was_lost_fences_nobody(session: Session, dgx: Appliance) -> None:
    old = issue(session, dgx)
    admit(session, old)
    issue(session, dgx)  # never arrives
    new = issue(session, dgx)
    admit(session, new, now=NOON + MINUTE)
    assert admit(session, new, now=NOON + timedelta(days=1)).appliance is dgx
    assert dgx.fenced_at is None


def test_a_clone_that_renewed_too_is_fenced(session: Session, dgx: Appliance) -> None:
    first = issue(session, dgx)
    admit(session, first)
    first_renewal, second_renewal = issue(session, dgx), issue(session, dgx)
    admit(session, first_renewal)
    admit(session, second_renewal)
    assert admit(session, first_renewal, now=NOON + timedelta(hours=1)).refusal
    assert dgx.fenced_at is not None


def test_revoking_the_one_in_force_takes_the_agents_secret_too(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    held, unused = issue(session, dgx), issue(session, dgx)
    admit(session, held)
    revision, generation = registry_revision(session), dgx.desired_generation
    revoked = revoke_certificate(
        session, scope_of(cast.alice), row(session, held).id, reason="stolen", now=NOON
    )
    assert revoked.revocation_reason == "stolen"
    for fingerprint in (held, unused):
        assert "was revoked" in admit(session, fingerprint).refusal
    with pytest.raises(UnauthenticatedError):
        authenticate_agent(session, "vda_acme_dgx-01")
    session.refresh(dgx)
    assert registry_revision(session) > revision
    assert dgx.desired_generation > generation


def test_revoking_a_replaced_one_leaves_the_agent_alone(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    old, new = issue(session, dgx), issue(session, dgx)
    admit(session, old)
    admit(session, new)
    revoke_certificate(session, scope_of(cast.alice), row(session, old).id, now=NOON)
    assert admit(session, new).appliance is dgx
    assert authenticate_agent(session, "vda_acme_dgx-01").id == dgx.id


def test_only_admins_of_the_tenant_revoke(session: Session, cast: Cast, dgx: Appliance) -> None:
    ident = row(session, issue(session, dgx)).id
    with pytest.raises(ForbiddenError):
        revoke_certificate(session, scope_of(cast.bob), ident, now=NOON)
    with pytest.raises(NotFoundError):
        revoke_certificate(session, scope_of(cast.charlie), ident, now=NOON)
    with pytest.raises(NotFoundError):
        list_certificates(session, scope_of(cast.charlie), dgx.id)


def test_renewals_are_rate_limited(session: Session, dgx: Appliance) -> None:
    for _ in range(MAX_RENEWALS):
        renew_certificate(session, ISSUER, dgx.id, csr=signing_request(), now=NOON)
    with pytest.raises(OverloadedError, match="in the last 0:10:00"):
        renew_certificate(session, ISSUER, dgx.id, csr=signing_request(), now=NOON)
    later = NOON + timedelta(minutes=11)
    assert renew_certificate(session, ISSUER, dgx.id, csr=signing_request(), now=later)


def test_a_certificate_that_was_not_renewed_is_seen_before_it_expires(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    held = issue(session, dgx)
    admit(session, held)
    scope, six_days = scope_of(cast.alice), NOON + timedelta(days=6)
    assert state_of(row(session, held), now=NOON) is CertificateState.ACTIVE
    assert state_of(row(session, held), now=six_days) is CertificateState.OVERDUE
    within = timedelta(days=1)
    assert expiring_certificates(session, scope, within=within, now=NOON).total == 0
    assert expiring_certificates(session, scope, within=within, now=six_days).total == 1
    strange = scope_of(cast.charlie)
    assert expiring_certificates(session, strange, within=within, now=six_days).total == 0


def test_the_one_in_use_is_shown_before_one_that_was_only_issued(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    held = issue(session, dgx)
    admit(session, held)
    issue(session, dgx)
    newest = newest_certificate(session, scope_of(cast.alice), dgx.id)
    assert newest is not None
    assert newest.fingerprint == held


def test_certificates_of_long_ago_are_pruned(session: Session, dgx: Appliance) -> None:
    issue(session, dgx)
    name = "certificates expired for three months"
    assert prune(session, now=NOON + timedelta(days=90))[name] == 0
    assert prune(session, now=NOON + timedelta(days=98))[name] == 1


def test_the_certificate_that_was_used_last_is_retained_because_it_binds_the_secret(
    session: Session, dgx: Appliance
) -> None:
    admit(session, issue(session, dgx))
    late = NOON + timedelta(days=200)
    prune(session, now=late)
    with pytest.raises(UnauthenticatedError, match="can readmit"):
        renew_by_secret(session, dgx, now=late)


def renew_by_secret(session: Session, appliance: Appliance, *, now: datetime) -> Issued:
    return renew_certificate(
        session, ISSUER, appliance.id, csr=signing_request(), is_by_secret=True, now=now
    )


def test_a_secret_gets_the_first_certificate_again_until_one_is_used(
    session: Session, dgx: Appliance
) -> None:
    assert renew_by_secret(session, dgx, now=NOON)  # the answer may be lost
    got = renew_by_secret(session, dgx, now=NOON)
    admit(session, fingerprint_of(x509.load_pem_x509_certificate(got.certificate.encode())))
    with pytest.raises(UnauthenticatedError, match="must use it") as refused:
        renew_by_secret(session, dgx, now=NOON)
    assert refused.value.code == "certificate_needed"


def test_a_secret_gets_nothing_after_the_certificate_expired_until_an_admin_readmits_it(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    admit(session, issue(session, dgx))
    late = NOON + WEEK
    with pytest.raises(UnauthenticatedError, match="An admin of the tenant can readmit"):
        renew_by_secret(session, dgx, now=late)
    readmit_appliance(session, scope_of(cast.alice), dgx.id, now=late)
    got = renew_by_secret(session, dgx, now=late)
    fingerprint = fingerprint_of(x509.load_pem_x509_certificate(got.certificate.encode()))
    assert admit(session, fingerprint, now=late).appliance is dgx
    with pytest.raises(UnauthenticatedError, match="must use it"):
        renew_by_secret(session, dgx, now=late)


def test_an_appliance_with_a_valid_certificate_is_not_readmitted(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    admit(session, issue(session, dgx))
    with pytest.raises(ConflictError, match="No certificate of 'dgx-01' has expired"):
        readmit_appliance(session, scope_of(cast.alice), dgx.id, now=NOON)
    with pytest.raises(ForbiddenError):
        readmit_appliance(session, scope_of(cast.bob), dgx.id, now=NOON + WEEK)
    with pytest.raises(NotFoundError):
        readmit_appliance(session, scope_of(cast.charlie), dgx.id, now=NOON + WEEK)


def test_enrolled_again_an_appliance_starts_again_though_its_certificate_expired(
    session: Session, dgx: Appliance
) -> None:
    admit(session, issue(session, dgx))
    revoke_identity(session, dgx, reason="Enrolled again.", now=NOON + WEEK)
    assert renew_by_secret(session, dgx, now=NOON + WEEK)
