"""`vedette ca`: what a proxy in front is given, and the rotation that it is told of in time."""

from ipaddress import ip_address
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from cli.ca import ca
from core.errors import InvalidInputError
from tests.fixtures.migrated import copy_migrated


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEDETTE_DATA_DIR", str(tmp_path))
    copy_migrated(tmp_path / "vedette.db")
    for name in ("DATABASE_URL", "VEDETTE_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(ca, arguments)
    assert result.exit_code == 0, result.output
    return result


def test_the_first_call_makes_the_authority_and_the_next_shows_the_same() -> None:
    first = run("show").output
    assert first == run("show").output
    [authority] = x509.load_pem_x509_certificates(first.encode())
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.value.ca
    assert "signing" in first


def test_a_rotation_shows_both_and_when_the_new_one_signs() -> None:
    run("show")
    assert "signs from" in run("rotate").output
    shown = run("show").output
    assert len(x509.load_pem_x509_certificates(shown.encode())) == 2
    assert "signing" in shown
    assert "signs from" in shown


def test_without_overlap_the_new_one_signs_at_once() -> None:
    run("show")
    run("rotate", "--overlap-hours", "0")
    assert "retired" in run("show").output


def test_the_revocation_list_is_of_the_authority(tmp_path: Path) -> None:
    run("crl", "--output", str(tmp_path / "crl.pem"))
    listed = x509.load_pem_x509_crl((tmp_path / "crl.pem").read_bytes())
    [authority] = x509.load_pem_x509_certificates(run("show").output.encode())
    assert listed.issuer == authority.subject
    assert list(listed) == []


def test_a_file_is_written_for_the_proxy(tmp_path: Path) -> None:
    run("show", "--output", str(tmp_path / "ca.pem"))
    assert "BEGIN CERTIFICATE" in (tmp_path / "ca.pem").read_text()


def test_the_portal_gets_a_certificate_of_its_own_for_its_names(tmp_path: Path) -> None:
    said = run("server-certificate", "portal.lan", "10.0.0.5", "--days", "30").output
    leaf, root = x509.load_pem_x509_certificates((tmp_path / "server.pem").read_bytes())
    [authority] = x509.load_pem_x509_certificates(run("show").output.encode())
    assert root == authority
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["portal.lan", "localhost"]
    assert ip_address("10.0.0.5") in names.get_values_for_type(x509.IPAddress)
    verifier = (
        PolicyBuilder().store(Store([root])).build_server_verifier(x509.DNSName("portal.lan"))
    )
    assert verifier.verify(leaf, []) == [leaf, root]
    assert (tmp_path / "server.key").stat().st_mode & 0o777 == 0o600
    assert f"VEDETTE_TLS_CERTIFICATE_FILE={tmp_path / 'server.pem'}" in said


def test_the_portals_certificate_can_be_made_anew(tmp_path: Path) -> None:
    run("server-certificate", "portal.lan")
    first = (tmp_path / "server.pem").read_text()
    run("server-certificate", "portal.lan")
    assert (tmp_path / "server.pem").read_text() != first


def test_an_invalid_host_name_is_rejected() -> None:
    result = CliRunner().invoke(ca, ["server-certificate", "a" * 64 + ".lan"])
    assert isinstance(result.exception, InvalidInputError)
