"""`vedette server check` reports on the certificate with which the server terminates TLS."""

from datetime import timedelta
from pathlib import Path

from cli.certificate_check import check_certificate
from core.clock import utc_now
from core.settings import ServerSettings
from tests.fixtures.certificates import Authority


def test_a_certificate_that_has_expired_is_a_problem(tmp_path: Path) -> None:
    pair = Authority(tmp_path, "authority").issue("portal")
    settings = ServerSettings(
        public_url="https://127.0.0.1",
        tls_certificate_file=pair.certificate,
        tls_key_file=pair.key,
    )
    later = utc_now() + timedelta(days=1)
    assert check_certificate(settings).problems == ()
    [problem] = check_certificate(settings, clock=lambda: later).problems
    assert f"expired on {later:%Y-%m-%d}" in problem.text
    assert "vedette ca server-certificate 127.0.0.1" in problem.remedy
