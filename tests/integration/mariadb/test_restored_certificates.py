"""The first requests of an agent after a restore, which come at once."""

import pytest
from cryptography import x509
from sqlalchemy import Engine, func, select

from core.db import SessionFactory
from tenants.models import ApplianceCertificate
from tenants.pki.admission import Admission, admit_certificate
from tenants.pki.certificates import fingerprint_of
from tests.cast import NOON, Cast, make_appliance
from tests.integration.mariadb.test_stop_races import after_first
from tests.unit.tenants.test_restored_certificates import BACKUP_AT, LATER, issue, restore

pytestmark = pytest.mark.needs_mariadb


def test_two_requests_with_a_certificate_that_is_recognized_are_admitted(
    engine: Engine, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        appliance = make_appliance(session, cast.acme, "dgx-01")
        issue(session, appliance, now=NOON)
        pem = issue(session, appliance, now=BACKUP_AT + (LATER - BACKUP_AT) / 2)
        restore(session)
    fingerprint = fingerprint_of(x509.load_pem_x509_certificate(pem.encode()))
    admissions: list[Admission] = []

    def admit() -> None:
        with sessions.begin() as session:
            admissions.append(admit_certificate(session, fingerprint, pem=pem, now=LATER))

    with after_first(engine, "SELECT appliance_certificates", admit):
        admit()
    assert [admission.refusal for admission in admissions] == ["", ""]
    with sessions.begin() as session:
        assert session.scalar(select(func.count()).select_from(ApplianceCertificate)) == 2
