"""Which certificate the agent cares for, until when it is good, and what is told of renewals."""

from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest

from collector.certificate_care import CertificateCare
from collector.certificates.configured_certificate import ConfiguredCertificate
from collector.certificates.own_certificate import OwnCertificate, load_trouble
from collector.certificates.validity import validity_of
from collector.config import AgentConfig
from collector.errors import CertificateError
from collector.identity import Identity
from collector.sending.delivery import build_buffer, build_delivery
from core.clock import utc_now
from jobqueue.executors.wire import IssuedCertificate
from tests.cast import FrozenClock
from tests.fixtures.certificates import Authority, Pair

HTTPS = "https://portal.example"
DAY = 86_400.0
IDENTITY = Identity(appliance_id="a", tenant_id="acme", agent_token="vda_x")


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Authority(tmp_path / "authority", "authority").issue("admins")


def take(own: OwnCertificate, clock: FrozenClock) -> None:
    own.request()
    issued = IssuedCertificate(
        certificate="certificate\n",
        authorities="authorities\n",
        lifetime_seconds=7 * DAY,
        is_enough=True,
    )
    own.take(issued, now=clock())


def care_of(
    config: AgentConfig, identity: Identity | None, clock: FrozenClock
) -> tuple[CertificateCare, OwnCertificate]:
    buffer = build_buffer(config, clock=clock)
    delivery = build_delivery(config, identity, buffer, clock=clock)
    buffer.close()
    return CertificateCare(config, identity, delivery, clock=clock), delivery.certificate


def test_a_certificate_says_from_when_and_until_when_it_is_good(pair: Pair) -> None:
    validity = validity_of(pair.certificate)
    assert validity.lifetime_seconds == 25 * 3600
    assert 0.9 * DAY < validity.remaining_seconds(utc_now()) <= DAY


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nonsense.pem"
    path.write_text("nonsense")
    with pytest.raises(CertificateError, match=r"nonsense\.pem can't be read"):
        validity_of(path)


def test_a_configured_certificate_is_looked_at_again_when_it_was_renewed(
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


def test_the_portals_certificate_is_told_with_its_time_and_its_failed_renewals(
    tmp_path: Path,
) -> None:
    clock = FrozenClock()
    care, own = care_of(AgentConfig(portal_urls=[HTTPS], data_dir=tmp_path), IDENTITY, clock)
    assert [loop is not None for loop in care.loops(Event())] == [True]
    assert set(care.figures().values()) == {None}
    take(own, clock)
    clock.advance(DAY)
    figures = care.figures()
    assert figures["certificate_remaining_seconds"] == 6 * DAY
    assert figures["certificate_renewal_failures"] == 0


def test_a_configured_certificate_goes_before_the_portals_and_needs_the_secret(
    tmp_path: Path, pair: Pair
) -> None:
    clock = FrozenClock()
    take(OwnCertificate(tmp_path), clock)
    config = AgentConfig(
        portal_urls=[HTTPS],
        data_dir=tmp_path,
        client_certificate_file=pair.certificate,
        client_key_file=pair.key,
    )
    care, own = care_of(config, IDENTITY, clock)
    assert not own.is_enough_for(HTTPS)
    assert OwnCertificate(tmp_path).is_enough_for(HTTPS)
    assert care.figures()["certificate_renewal_failures"] is None


def test_without_portal_and_certificate_there_is_nothing_to_care_for(tmp_path: Path) -> None:
    config = AgentConfig(portal_urls=["http://127.0.0.1:9"], data_dir=tmp_path)
    care, _ = care_of(config, None, FrozenClock())
    assert care.loops(Event()) == []
    assert set(care.figures().values()) == {None}


def test_trouble_is_kept_since_it_began_until_a_renewal_goes_well(tmp_path: Path) -> None:
    clock, own = FrozenClock(), OwnCertificate(tmp_path)
    began_at = clock.now
    own.note_trouble("refused", now=clock())
    clock.advance(60)
    OwnCertificate(tmp_path).note_trouble("away", now=clock())
    trouble = load_trouble(tmp_path)
    assert trouble is not None
    assert (trouble.reason, trouble.since) == ("away", began_at)
    assert (tmp_path / "certificate-trouble.json").stat().st_mode & 0o777 == 0o600
    take(own, clock)
    assert load_trouble(tmp_path) is None


def test_a_certificate_that_ran_out_has_less_than_no_time(tmp_path: Path) -> None:
    clock, own = FrozenClock(), OwnCertificate(tmp_path)
    take(own, clock)
    assert own.remaining_seconds(clock.now + timedelta(days=8)) == -DAY
