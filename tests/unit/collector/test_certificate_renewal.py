"""The agent's certificate: stored in one file, renewed in time, and after outages."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from collector.certificate_renewal import NOT_OFFERED_WAIT_SECONDS, CertificateRenewal
from collector.certificates import (
    CERTIFICATE_NAME,
    CHECK_INTERVAL_SECONDS,
    NEXT_KEY_NAME,
    AgentCertificate,
    create_key_and_request,
)
from collector.errors import CertificateError, PortalRefusedError, PortalUnreachableError
from collector.sending.access_points import AccessPoints
from collector.sending.portal_connection import PortalConnection
from protocol.enrollment import IssuedCertificate, RenewalRequest
from tests.cast import FrozenClock

DAY = 86_400.0
HTTPS = "https://portal.example"


class SigningPortal(PortalConnection):
    """A portal that answers requests for certificates with `answer`, or raises it."""

    def __init__(self) -> None:
        super().__init__(AccessPoints([HTTPS]))
        self.asked: list[RenewalRequest] = []
        self.answer: IssuedCertificate | Exception = issued("first")

    def renew(self, request: RenewalRequest) -> IssuedCertificate:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def issued(name: str, *, days: float = 7, replaces_secret: bool = True) -> IssuedCertificate:
    return IssuedCertificate(
        certificate=f"certificate {name}\n",
        authorities="authorities\n",
        lifetime_seconds=days * DAY,
        replaces_secret=replaces_secret,
    )


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def shown() -> SigningPortal:
    return SigningPortal()


@pytest.fixture
def bare() -> SigningPortal:
    portal = SigningPortal()
    portal.answer = PortalRefusedError("revoked", http_status=401)
    return portal


@pytest.fixture
def own(tmp_path: Path) -> AgentCertificate:
    return AgentCertificate(tmp_path)


MakeRenewal = Callable[[], CertificateRenewal]


@pytest.fixture
def make_renewal(
    own: AgentCertificate, shown: SigningPortal, bare: SigningPortal, clock: FrozenClock
) -> MakeRenewal:
    return lambda: CertificateRenewal(
        own,
        AccessPoints([HTTPS]),
        connect=lambda: shown,
        connect_with_token=lambda: bare,
        clock=clock,
        random=Random(1),  # noqa: S311 - jitter
    )


def test_the_request_is_for_a_key_that_lies_in_the_folder_alone(tmp_path: Path) -> None:
    request = x509.load_pem_x509_csr(create_key_and_request(tmp_path / "key.pem").encode())
    key = serialization.load_pem_private_key((tmp_path / "key.pem").read_bytes(), password=None)
    assert request.is_signature_valid
    assert request.public_key() == key.public_key()
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CertificateError, match="Can't write the key"):
        create_key_and_request(tmp_path / "file" / "key.pem")


def test_the_first_certificate_is_requested_at_once_and_stored_with_its_key(
    make_renewal: MakeRenewal, tmp_path: Path
) -> None:
    make_renewal().step()
    stored = (tmp_path / CERTIFICATE_NAME).read_text()
    assert "PRIVATE KEY" in stored
    assert stored.endswith("certificate first\n")
    assert (tmp_path / CERTIFICATE_NAME).stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / NEXT_KEY_NAME).exists()


def test_it_is_renewed_after_two_thirds_of_its_lifetime_or_slightly_earlier(
    make_renewal: MakeRenewal, shown: SigningPortal, clock: FrozenClock
) -> None:
    renewal = make_renewal()
    renewal.step()
    clock.advance(7 * DAY * (2 / 3 - 0.101))
    assert renewal.step() == CHECK_INTERVAL_SECONDS
    assert len(shown.asked) == 1
    clock.advance(7 * DAY * 0.102)
    renewal.step()
    assert len(shown.asked) == 2
    assert shown.asked[0].csr != shown.asked[1].csr


def test_a_restarted_agent_knows_how_old_its_certificate_is(
    make_renewal: MakeRenewal, tmp_path: Path, shown: SigningPortal, clock: FrozenClock
) -> None:
    make_renewal().step()
    restarted = AgentCertificate(tmp_path)
    assert restarted.seconds_until_renewal(clock()) == pytest.approx(7 * DAY * 2 / 3)
    assert restarted.replaces_secret_for(HTTPS)
    assert not restarted.replaces_secret_for("http://127.0.0.1:8000")
    assert len(shown.asked) == 1


def test_an_outage_is_survived_with_the_same_request(
    make_renewal: MakeRenewal, shown: SigningPortal, bare: SigningPortal
) -> None:
    renewal = make_renewal()
    away = PortalUnreachableError("away")
    shown.answer, bare.answer = away, away
    for _ in range(3):
        with pytest.raises(PortalUnreachableError, match="away"):
            renewal.step()
    shown.answer = issued("late")
    renewal.step()
    assert len(shown.asked) == 4
    assert len({request.csr for request in shown.asked}) == 1


def test_one_that_is_refused_is_renewed_with_the_secret(
    make_renewal: MakeRenewal, shown: SigningPortal, bare: SigningPortal, tmp_path: Path
) -> None:
    shown.answer = PortalRefusedError("The SSL certificate error", http_status=400)
    bare.answer = issued("by secret")
    make_renewal().step()
    assert "by secret" in (tmp_path / CERTIFICATE_NAME).read_text()


def test_the_certificates_error_is_reported_if_the_token_is_refused_too(
    make_renewal: MakeRenewal, shown: SigningPortal
) -> None:
    shown.answer = PortalRefusedError("is fenced", http_status=401)
    with pytest.raises(PortalRefusedError, match="is fenced With the token instead: revoked"):
        make_renewal().step()


def test_a_portal_without_certificates_is_asked_again_after_an_hour(
    make_renewal: MakeRenewal, shown: SigningPortal
) -> None:
    shown.answer = PortalRefusedError("no such page", http_status=404)
    assert make_renewal().step() == NOT_OFFERED_WAIT_SECONDS


def test_over_plain_http_no_certificate_is_asked_for(
    own: AgentCertificate, shown: SigningPortal, clock: FrozenClock
) -> None:
    renewal = CertificateRenewal(
        own,
        AccessPoints(["http://127.0.0.1:8000"]),
        connect=lambda: shown,
        connect_with_token=lambda: shown,
        clock=clock,
    )
    assert renewal.step() == CHECK_INTERVAL_SECONDS
    assert shown.asked == []


def test_a_clock_that_is_set_back_causes_one_renewal(
    make_renewal: MakeRenewal, shown: SigningPortal, clock: FrozenClock
) -> None:
    renewal = make_renewal()
    renewal.step()
    clock.now -= timedelta(days=30)
    renewal.step()
    assert renewal.step() == CHECK_INTERVAL_SECONDS
    assert len(shown.asked) == 2


def test_a_secret_is_sent_again_after_the_certificate_was_not_enough(
    own: AgentCertificate, clock: FrozenClock
) -> None:
    own.create_request()
    own.store(issued("first"), now=clock())
    assert own.replaces_secret_for(HTTPS)
    own.distrust()
    assert not own.replaces_secret_for(HTTPS)


def test_a_damaged_note_has_the_certificate_renewed(
    own: AgentCertificate, tmp_path: Path, clock: FrozenClock
) -> None:
    own.create_request()
    own.store(issued("first"), now=clock())
    (tmp_path / "certificate.json").write_text("{")
    assert AgentCertificate(tmp_path).seconds_until_renewal(clock()) == 0


def test_a_failed_handshake_is_retried_and_reported_with_the_tokens_error(
    make_renewal: MakeRenewal, shown: SigningPortal
) -> None:
    shown.answer = PortalUnreachableError("certificate expired.")
    told = "certificate expired. With the token instead: revoked"
    with pytest.raises(PortalUnreachableError, match=told):
        make_renewal().step()
