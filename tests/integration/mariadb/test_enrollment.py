"""Identities raced for by real threads on MariaDB: tokens, authorities, certificates, fences."""

from datetime import timedelta

import pytest
from cryptography import x509
from sqlalchemy import func, select

from core.db import SessionFactory, transaction
from core.errors import UnauthenticatedError, UnavailableError
from protocol.inventory import Inventory
from tenants.enrollment import create_enrollment_token, enroll_appliance
from tenants.fleet.agents import block_appliance, registry_revision
from tenants.fleet.heartbeats import record_heartbeat
from tenants.models import Appliance, ApplianceCertificate, CertificateAuthority, EnrollmentToken
from tenants.pki.admission import admit_certificate
from tenants.pki.certificates import Issuer, fingerprint_of, issue_certificate
from tests.cast import BOX, NOON, Cast, make_appliance, scope_of
from tests.fixtures.racing import RACERS, race_numbered
from tests.fixtures.signing_requests import signing_request

pytestmark = [pytest.mark.needs_mariadb, pytest.mark.timeout(300)]

ISSUER = Issuer(BOX, timedelta(days=7))


@pytest.fixture
def dgx(sessions: SessionFactory, cast: Cast) -> Appliance:
    with transaction(sessions) as session:
        return make_appliance(session, session.merge(cast.acme), "dgx-01")


def test_a_token_that_is_used_by_many_at_once_enrolls_as_many_as_it_allows(
    sessions: SessionFactory, cast: Cast
) -> None:
    with transaction(sessions) as session:
        token, secret = create_enrollment_token(
            session, scope_of(cast.alice), uses=3, lifetime=timedelta(days=1), now=NOON
        )

    def join(_number: int) -> str:
        try:
            with transaction(sessions) as session:
                appliance, _ = enroll_appliance(
                    session,
                    secret=secret,
                    name="same-name",
                    inventory=Inventory(hostname="gpu-01"),
                    now=NOON,
                )
                return appliance.name
        except UnauthenticatedError:
            return ""

    names = [name for name in race_numbered(join) if name]
    assert sorted(names) == ["same-name", "same-name-2", "same-name-3"]
    with transaction(sessions) as session:
        assert session.get_one(EnrollmentToken, token.id).uses_left == 0


def test_one_authority_is_made_however_many_need_the_first(
    sessions: SessionFactory, dgx: Appliance
) -> None:
    def issue(_number: int) -> bool:
        try:
            with transaction(sessions) as session:
                appliance = session.get_one(Appliance, dgx.id)
                issue_certificate(session, ISSUER, appliance, csr=signing_request(), now=NOON)
        except UnavailableError:  # its agent tries again
            return False
        return True

    assert any(race_numbered(issue))
    with transaction(sessions) as session:
        assert session.scalar(select(func.count()).select_from(CertificateAuthority)) == 1


def test_of_new_certificates_used_at_once_one_stays_in_force(
    sessions: SessionFactory, dgx: Appliance
) -> None:
    fingerprints = []
    for _ in range(RACERS):
        with transaction(sessions) as session:
            appliance = session.get_one(Appliance, dgx.id)
            issued = issue_certificate(session, ISSUER, appliance, csr=signing_request(), now=NOON)
        certificate = x509.load_pem_x509_certificate(issued.certificate.encode())
        fingerprints.append(fingerprint_of(certificate))

    def use(number: int) -> bool:
        with transaction(sessions) as session:
            admission = admit_certificate(session, fingerprints[number], now=NOON)
            return admission.appliance is not None

    race_numbered(use)
    with transaction(sessions) as session:
        in_force = select(func.count()).where(
            ApplianceCertificate.appliance_id == dgx.id,
            ApplianceCertificate.first_used_at.is_not(None),
            ApplianceCertificate.replaced_at.is_(None),
        )
        assert session.scalar(in_force) == 1


def test_two_agents_that_beat_at_once_are_fenced(sessions: SessionFactory, dgx: Appliance) -> None:
    def beat(number: int) -> None:
        for _ in range(5):
            with transaction(sessions) as session:
                record_heartbeat(
                    session,
                    dgx.id,
                    inventory=Inventory(hostname="gpu-01"),
                    agent_version="1",
                    sent_at=NOON,
                    now=NOON,
                    instance_id=f"agent-{number % 2}",
                )

    race_numbered(beat)
    with transaction(sessions) as session:
        assert session.get_one(Appliance, dgx.id).fenced_at == NOON


def test_every_block_increases_the_revision(sessions: SessionFactory, cast: Cast) -> None:
    with transaction(sessions) as session:
        acme = session.merge(cast.acme)
        idents = [make_appliance(session, acme, f"dgx-{number}").id for number in range(RACERS)]
        block_appliance(session, appliance_id=idents[0])
        before = registry_revision(session)

    def shut(number: int) -> None:
        with transaction(sessions) as session:
            block_appliance(session, appliance_id=idents[number])

    race_numbered(shut)
    with transaction(sessions) as session:
        assert registry_revision(session) == before + RACERS
