"""`vedette agent check` reports on the client certificate and a server's credentials."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from collector.certificates import CERTIFICATE_NAME, AgentCertificate
from collector.checks.appliance import CERTIFICATE, check_certificate
from collector.checks.connections import CheckResult, Verdict
from collector.config import AgentConfig
from core.clock import utc_now
from protocol.enrollment import IssuedCertificate
from tests.fixtures.certificates import Authority, Pair


def give(home: Path, pair: Pair, *, received_at: datetime | None = None) -> None:
    """Let the portal have given this certificate, for 24 hours."""
    own = AgentCertificate(home)
    own.create_request()
    issued = IssuedCertificate(
        certificate=pair.certificate.read_text(),
        authorities="authorities",
        lifetime_seconds=86_400,
        replaces_secret=True,
    )
    own.store(issued, now=received_at or utc_now())


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Authority(tmp_path / "authority", "authority").issue("agent")


def findings(
    home: Path, *, own: Path | None = None, now: datetime | None = None, tls: bool = True
) -> dict[str, CheckResult]:
    scheme = "https" if tls else "http"
    config = AgentConfig(
        portal_urls=[f"{scheme}://portal.example"], data_dir=home, client_certificate_file=own
    )
    clock = utc_now if now is None else lambda: now
    return {finding.name: finding for finding in check_certificate(config, clock=clock)}


def test_where_nothing_is_encrypted_no_certificate_is_spoken_of(tmp_path: Path) -> None:
    assert findings(tmp_path, tls=False) == {}


def test_an_agent_without_one_yet_is_in_order(tmp_path: Path) -> None:
    finding = findings(tmp_path)[CERTIFICATE]
    assert (finding.verdict, finding.message[:8]) == (Verdict.OK, "none yet")


def test_the_portals_certificate_is_named_with_its_end(tmp_path: Path, pair: Pair) -> None:
    give(tmp_path, pair)
    finding = findings(tmp_path)[CERTIFICATE]
    assert finding.verdict is Verdict.OK
    assert finding.message.startswith("the portal's is used, valid until 20")
    assert finding.message.endswith(" hours)")


def test_a_configured_certificate_replaces_the_portals(tmp_path: Path, pair: Pair) -> None:
    (tmp_path / CERTIFICATE_NAME).write_bytes(pair.certificate.read_bytes())
    finding = findings(tmp_path, own=pair.certificate)[CERTIFICATE]
    assert finding.verdict is Verdict.OK
    assert f"{pair.certificate} is used instead of the portal's" in finding.message


@pytest.mark.parametrize(
    ("hours", "verdict"),
    [(-2, Verdict.FAIL), (12, Verdict.OK), (22, Verdict.WARNING), (25, Verdict.FAIL)],
)
@pytest.mark.parametrize("is_own", [True, False])
def test_one_that_ran_out_fails_and_one_that_will_soon_is_a_warning(
    tmp_path: Path, pair: Pair, *, hours: int, verdict: Verdict, is_own: bool
) -> None:
    if is_own:
        give(tmp_path, pair, received_at=utc_now() - timedelta(hours=3))
    now = utc_now() + timedelta(hours=hours)
    finding = findings(tmp_path, own=None if is_own else pair.certificate, now=now)[CERTIFICATE]
    assert finding.verdict is verdict


def test_failed_renewals_are_reported_with_the_reason(tmp_path: Path, pair: Pair) -> None:
    give(tmp_path, pair)
    AgentCertificate(tmp_path).record_failure("The portal answered 401: retired.", now=utc_now())
    finding = findings(tmp_path)["renewal of the certificate"]
    assert finding.verdict is Verdict.WARNING
    assert "The portal answered 401: retired." in finding.message


def test_a_file_that_can_not_be_read_fails(tmp_path: Path) -> None:
    (tmp_path / CERTIFICATE_NAME).write_text("nonsense")
    assert findings(tmp_path)[CERTIFICATE].verdict is Verdict.FAIL
