"""Identities raced for by real threads on MariaDB: tokens, authorities, certificates, fences."""

from datetime import timedelta

import pytest
from cryptography import x509
from sqlalchemy import func, select

from core.db import SessionFactory, transaction
from core.errors import UnauthenticatedError, UnavailableError
from tenants.entry.admission import admit_certificate
from tenants.entry.certificates import Issuer, fingerprint_of, issue_certificate
from tenants.entry.enrolment import enrol_appliance
from tenants.entry.enrolment_tokens import create_enrolment_token
from tenants.entry.roll import roll_revision, shut_out
from tenants.fleet.appliances import record_heartbeat
from tenants.models import Appliance, ApplianceCertificate, CertificateAuthority, EnrolmentToken
from tests.cast import BOX, NOON, Cast, make_appliance, scope_of
from tests.fixtures.racing import RACERS, race_numbered
from tests.fixtures.signing_requests import signing_request

pytestmark = [pytest.mark.needs_mariadb, pytest.mark.timeout(300)]

ISSUER = Issuer(BOX, timedelta(days=7))


@pytest.fixture
def dgx(sessions: SessionFactory, cast: Cast) -> Appliance:
    with transaction(sessions) as session:
        return make_appliance(session, session.merge(cast.acme), "dgx-01")


def test_a_token_that_is_used_by_many_at_once_lets_in_as_many_as_it_says(
    sessions: SessionFactory, cast: Cast
) -> None:
    with transaction(sessions) as session:
        token, secret = create_enrolment_token(
            session, scope_of(cast.alice), uses=3, lifetime=timedelta(days=1), now=NOON
        )

    def join(_number: int) -> str:
        try:
            with transaction(sessions) as session:
                appliance, _ = enrol_appliance(
                    session, secret=secret, name="same-name", inventory={}, now=NOON
                )
                return appliance.name
        except UnauthenticatedError:
            return ""

    names = [name for name in race_numbered(join) if name]
    assert sorted(names) == ["same-name", "same-name-2", "same-name-3"]
    with transaction(sessions) as session:
        assert session.get_one(EnrolmentToken, token.id).uses_left == 0


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
                    session, dgx.id, inventory={}, agent_version="1", sent_at=NOON, now=NOON,
                    instance_id=f"agent-{number % 2}",
                )  # fmt: skip

    race_numbered(beat)
    with transaction(sessions) as session:
        assert session.get_one(Appliance, dgx.id).fenced_at == NOON


def test_everybody_who_is_shut_out_moves_the_revision(sessions: SessionFactory, cast: Cast) -> None:
    with transaction(sessions) as session:
        acme = session.merge(cast.acme)
        idents = [make_appliance(session, acme, f"dgx-{number}").id for number in range(RACERS)]
        shut_out(session, appliance_id=idents[0])
        before = roll_revision(session)

    def shut(number: int) -> None:
        with transaction(sessions) as session:
            shut_out(session, appliance_id=idents[number])

    race_numbered(shut)
    with transaction(sessions) as session:
        assert roll_revision(session) == before + RACERS
