"""The certificate in use: its validity, and failed renewals."""

from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest

from collector.certificate_renewal import CertificateManager
from collector.certificates import (
    AgentCertificate,
    ConfiguredCertificate,
    load_renewal_failure,
    read_validity,
)
from collector.config import AgentConfig
from collector.data_dir import Identity
from collector.errors import CertificateError
from collector.sending.delivery import build_buffer, build_delivery
from core.clock import utc_now
from protocol.enrollment import IssuedCertificate
from tests.cast import FrozenClock
from tests.fixtures.certificates import Authority, Pair

HTTPS = "https://portal.example"
DAY = 86_400.0
IDENTITY = Identity(appliance_id="a", tenant_id="acme", agent_token="vda_x")


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Authority(tmp_path / "authority", "authority").issue("admins")


def take(own: AgentCertificate, clock: FrozenClock) -> None:
    own.create_request()
    issued = IssuedCertificate(
        certificate="certificate\n",
        authorities="authorities\n",
        lifetime_seconds=7 * DAY,
        replaces_secret=True,
    )
    own.store(issued, now=clock())


def care_of(
    config: AgentConfig, identity: Identity | None, clock: FrozenClock
) -> tuple[CertificateManager, AgentCertificate]:
    buffer = build_buffer(config, clock=clock)
    delivery = build_delivery(config, identity, buffer, clock=clock)
    buffer.close()
    return CertificateManager(config, identity, delivery, clock=clock), delivery.certificate


def test_the_validity_period_is_read_from_the_certificate(pair: Pair) -> None:
    validity = read_validity(pair.certificate)
    assert validity.lifetime_seconds == 25 * 3600
    assert 0.9 * DAY < validity.remaining_seconds(utc_now()) <= DAY


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nonsense.pem"
    path.write_text("nonsense")
    with pytest.raises(CertificateError, match=r"nonsense.pem"):
        read_validity(path)


def test_a_configured_certificate_is_read_again_after_its_renewal(
    tmp_path: Path, pair: Pair
) -> None:
    watched = ConfiguredCertificate(pair.certificate)
    assert watched.remaining_seconds(utc_now()) is None
    watched.step()
    now = utc_now()
    first = watched.remaining_seconds(now)
    assert first is not None
    pair.certificate.write_text("half of a new o")
    watched.step()
    assert watched.remaining_seconds(now) == first
    Authority(tmp_path / "later", "later").issue("new").certificate.replace(pair.certificate)
    watched.step()
    second = watched.remaining_seconds(now)
    assert second is not None
    assert second >= first


def test_the_validity_and_failed_renewals_of_the_portals_certificate_are_metrics(
    tmp_path: Path,
) -> None:
    clock = FrozenClock()
    care, own = care_of(AgentConfig(portal_urls=[HTTPS], data_dir=tmp_path), IDENTITY, clock)
    assert [loop is not None for loop in care.tasks(Event())] == [True]
    assert set(care.metrics().values()) == {None}
    take(own, clock)
    clock.advance(DAY)
    figures = care.metrics()
    assert figures["certificate_remaining_seconds"] == 6 * DAY
    assert figures["certificate_renewal_failures"] == 0


def test_a_configured_certificate_goes_before_the_portals_and_needs_the_secret(
    tmp_path: Path, pair: Pair
) -> None:
    clock = FrozenClock()
    take(AgentCertificate(tmp_path), clock)
    config = AgentConfig(
        portal_urls=[HTTPS],
        data_dir=tmp_path,
        client_certificate_file=pair.certificate,
        client_key_file=pair.key,
    )
    care, own = care_of(config, IDENTITY, clock)
    assert not own.replaces_secret_for(HTTPS)
    assert AgentCertificate(tmp_path).replaces_secret_for(HTTPS)
    assert care.metrics()["certificate_renewal_failures"] is None


def test_without_portal_and_certificate_there_is_nothing_to_care_for(tmp_path: Path) -> None:
    config = AgentConfig(portal_urls=["http://127.0.0.1:9"], data_dir=tmp_path)
    care, _ = care_of(config, None, FrozenClock())
    assert care.tasks(Event()) == []
    assert set(care.metrics().values()) == {None}


def test_a_renewal_failure_is_stored_until_a_renewal_succeeds(tmp_path: Path) -> None:
    clock, own = FrozenClock(), AgentCertificate(tmp_path)
    began_at = clock.now
    own.record_failure("refused", now=clock())
    clock.advance(60)
    AgentCertificate(tmp_path).record_failure("away", now=clock())
    trouble = load_renewal_failure(tmp_path)
    assert trouble is not None
    assert (trouble.reason, trouble.since) == ("away", began_at)
    assert (tmp_path / "certificate-failure.json").stat().st_mode & 0o777 == 0o600
    take(own, clock)
    assert load_renewal_failure(tmp_path) is None


def test_a_certificate_that_ran_out_has_less_than_no_time(tmp_path: Path) -> None:
    clock, own = FrozenClock(), AgentCertificate(tmp_path)
    take(own, clock)
    assert own.remaining_seconds(clock.now + timedelta(days=8)) == -DAY
