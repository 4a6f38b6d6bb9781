"""The agent's certificate: kept in one file, renewed in good time, over outages, and without it."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from collector.certificates.own_certificate import CERTIFICATE_NAME, NEXT_KEY_NAME, OwnCertificate
from collector.certificates.signing_request import request_for_new_key
from collector.errors import CertificateError, PortalRefusedError, PortalUnreachableError
from collector.renewal import LOOK_SECONDS, NOT_OFFERED_WAIT_SECONDS, Renewal
from collector.sending.addresses import PortalAddresses
from collector.sending.link import PortalLink
from jobqueue.executors.wire import IssuedCertificate, RenewalRequest
from tests.cast import FrozenClock

DAY = 86_400.0
HTTPS = "https://portal.example"


class SigningPortal(PortalLink):
    """A portal that answers requests for certificates with `answer`, or raises it."""

    def __init__(self) -> None:
        super().__init__(PortalAddresses([HTTPS]))
        self.asked: list[RenewalRequest] = []
        self.answer: IssuedCertificate | Exception = issued("first")

    def renew(self, request: RenewalRequest) -> IssuedCertificate:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def issued(name: str, *, days: float = 7, is_enough: bool = True) -> IssuedCertificate:
    return IssuedCertificate(
        certificate=f"certificate {name}\n",
        authorities="authorities\n",
        lifetime_seconds=days * DAY,
        is_enough=is_enough,
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
def own(tmp_path: Path) -> OwnCertificate:
    return OwnCertificate(tmp_path)


MakeRenewal = Callable[[], Renewal]


@pytest.fixture
def make_renewal(
    own: OwnCertificate, shown: SigningPortal, bare: SigningPortal, clock: FrozenClock
) -> MakeRenewal:
    return lambda: Renewal(
        own,
        PortalAddresses([HTTPS]),
        open_link=lambda: shown,
        open_bare_link=lambda: bare,
        clock=clock,
        random=Random(1),  # noqa: S311 - jitter
    )


def test_the_request_is_for_a_key_that_lies_in_the_folder_alone(tmp_path: Path) -> None:
    request = x509.load_pem_x509_csr(request_for_new_key(tmp_path / "key.pem").encode())
    key = serialization.load_pem_private_key((tmp_path / "key.pem").read_bytes(), password=None)
    assert request.is_signature_valid
    assert request.public_key() == key.public_key()
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CertificateError, match="No key could be made"):
        request_for_new_key(tmp_path / "file" / "key.pem")


def test_the_first_certificate_is_got_at_once_and_kept_with_its_key(
    make_renewal: MakeRenewal, tmp_path: Path
) -> None:
    make_renewal().step()
    kept = (tmp_path / CERTIFICATE_NAME).read_text()
    assert "PRIVATE KEY" in kept
    assert kept.endswith("certificate first\n")
    assert (tmp_path / CERTIFICATE_NAME).stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / NEXT_KEY_NAME).exists()


def test_it_is_renewed_after_two_thirds_of_its_lifetime_or_a_little_before(
    make_renewal: MakeRenewal, shown: SigningPortal, clock: FrozenClock
) -> None:
    renewal = make_renewal()
    renewal.step()
    clock.advance(7 * DAY * (2 / 3 - 0.101))
    assert renewal.step() == LOOK_SECONDS
    assert len(shown.asked) == 1
    clock.advance(7 * DAY * 0.102)
    renewal.step()
    assert len(shown.asked) == 2
    assert shown.asked[0].csr != shown.asked[1].csr


def test_a_restarted_agent_knows_how_old_its_certificate_is(
    make_renewal: MakeRenewal, tmp_path: Path, shown: SigningPortal, clock: FrozenClock
) -> None:
    make_renewal().step()
    again = OwnCertificate(tmp_path)
    assert again.seconds_until_renewal(clock()) == pytest.approx(7 * DAY * 2 / 3)
    assert again.is_enough_for(HTTPS)
    assert not again.is_enough_for("http://127.0.0.1:8000")
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
    assert len({one.csr for one in shown.asked}) == 1


def test_one_that_is_refused_is_renewed_with_the_secret(
    make_renewal: MakeRenewal, shown: SigningPortal, bare: SigningPortal, tmp_path: Path
) -> None:
    shown.answer = PortalRefusedError("The SSL certificate error", http_status=400)
    bare.answer = issued("by secret")
    make_renewal().step()
    assert "by secret" in (tmp_path / CERTIFICATE_NAME).read_text()


def test_the_refusal_of_the_certificate_is_told_where_both_are_refused(
    make_renewal: MakeRenewal, shown: SigningPortal
) -> None:
    shown.answer = PortalRefusedError("is fenced", http_status=401)
    with pytest.raises(PortalRefusedError, match="is fenced With the secret in its place: revoked"):
        make_renewal().step()


def test_a_portal_without_certificates_is_asked_again_after_an_hour(
    make_renewal: MakeRenewal, shown: SigningPortal
) -> None:
    shown.answer = PortalRefusedError("no such page", http_status=404)
    assert make_renewal().step() == NOT_OFFERED_WAIT_SECONDS


def test_over_plain_http_no_certificate_is_asked_for(
    own: OwnCertificate, shown: SigningPortal, clock: FrozenClock
) -> None:
    renewal = Renewal(
        own,
        PortalAddresses(["http://127.0.0.1:8000"]),
        open_link=lambda: shown,
        open_bare_link=lambda: shown,
        clock=clock,
    )
    assert renewal.step() == LOOK_SECONDS
    assert shown.asked == []


def test_a_clock_that_was_set_back_has_it_renewed_and_no_more(
    make_renewal: MakeRenewal, shown: SigningPortal, clock: FrozenClock
) -> None:
    renewal = make_renewal()
    renewal.step()
    clock.now -= timedelta(days=30)
    renewal.step()
    assert renewal.step() == LOOK_SECONDS
    assert len(shown.asked) == 2


def test_a_secret_is_sent_again_after_the_certificate_was_not_enough(
    own: OwnCertificate, clock: FrozenClock
) -> None:
    own.request()
    own.take(issued("first"), now=clock())
    assert own.is_enough_for(HTTPS)
    own.doubt()
    assert not own.is_enough_for(HTTPS)


def test_a_damaged_note_has_the_certificate_renewed(
    own: OwnCertificate, tmp_path: Path, clock: FrozenClock
) -> None:
    own.request()
    own.take(issued("first"), now=clock())
    (tmp_path / "certificate.json").write_text("{")
    assert OwnCertificate(tmp_path).seconds_until_renewal(clock()) == 0


def test_a_handshake_that_fails_is_tried_again_and_told_with_what_the_secret_got(
    make_renewal: MakeRenewal, shown: SigningPortal
) -> None:
    shown.answer = PortalUnreachableError("certificate expired.")
    told = "certificate expired. With the secret in its place: revoked"
    with pytest.raises(PortalUnreachableError, match=told):
        make_renewal().step()
