"""The TLS settings: each fault is named at the start, and a renewed certificate is taken up."""

from pathlib import Path

import pytest

from collector.tls import TLSContexts, TLSFiles, tls_errors
from tests.fixtures.certificates import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.issue("agent")


def test_good_files_have_no_fault(authority: Authority, pair: Pair) -> None:
    assert tls_errors(TLSFiles(authority.certificate, pair.certificate, pair.key)) == []


def test_one_file_may_hold_certificate_and_key(pair: Pair, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
    assert tls_errors(TLSFiles(None, both)) == []


def test_a_missing_file_is_named_with_its_setting(tmp_path: Path, pair: Pair) -> None:
    nowhere = tmp_path / "nowhere.pem"
    assert tls_errors(TLSFiles(nowhere, pair.certificate, nowhere)) == [
        f"ca_file = {str(nowhere)!r}: can't be read: No such file or directory",
        f"client_key_file = {str(nowhere)!r}: can't be read: No such file or directory",
    ]


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path, pair: Pair) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    assert tls_errors(TLSFiles(nonsense, nonsense, pair.key)) == [
        f"ca_file = {str(nonsense)!r}: contains no certificate in PEM format",
        f"client_certificate_file = {str(nonsense)!r}: contains no certificate in PEM format",
    ]


def test_a_key_of_another_certificate_is_named(authority: Authority, pair: Pair) -> None:
    other = authority.issue("other")
    [fault] = tls_errors(TLSFiles(None, pair.certificate, other.key))
    assert fault.startswith(f"client_key_file = {str(other.key)!r}: doesn't match the certificate")


def test_the_error_for_a_missing_key_names_the_setting(pair: Pair) -> None:
    [fault] = tls_errors(TLSFiles(None, pair.certificate))
    assert fault.endswith("set client_key_file")


def test_the_error_for_a_missing_certificate_names_the_setting(pair: Pair) -> None:
    assert tls_errors(TLSFiles(None, None, pair.key)) == [
        "client_key_file is set without client_certificate_file; set both"
    ]


def test_the_same_files_give_the_same_context(pair: Pair) -> None:
    contexts = TLSContexts(TLSFiles(None, pair.certificate, pair.key))
    assert contexts.current() is contexts.current()


def test_a_renewed_certificate_gives_a_new_context(authority: Authority, pair: Pair) -> None:
    contexts = TLSContexts(TLSFiles(None, pair.certificate, pair.key))
    before = contexts.current()
    renewed = authority.issue("renewed")
    renewed.key.replace(pair.key)
    assert contexts.current() is before  # half of the renewal does not fit
    renewed.certificate.replace(pair.certificate)
    assert contexts.current() is not before
