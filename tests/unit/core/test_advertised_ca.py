"""Whom agents are told to trust: the authority that no system knows, where there is one."""

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from core.advertised_ca import AdvertisedCA, advertised_ca
from core.errors import ConfigurationError
from core.settings import ServerSettings
from tests.fixtures.certificates import Authority


def told(**settings: Path) -> AdvertisedCA | None:
    return advertised_ca(ServerSettings(**settings))  # type: ignore[arg-type] # one kind of field


def sha256_of(path: Path) -> str:
    [*_, last] = x509.load_pem_x509_certificates(path.read_bytes())
    return last.fingerprint(hashes.SHA256()).hex()


def test_without_tls_no_authority_is_advertised() -> None:
    assert told() is None


def test_a_certificate_that_others_signed_is_for_systems_to_know(tmp_path: Path) -> None:
    server = Authority(tmp_path, "public").issue("server")
    assert told(tls_certificate_file=server.certificate) is None


def test_a_certificate_that_is_self_signed_is_advertised(tmp_path: Path) -> None:
    own = Authority(tmp_path, "itself").certificate
    advertised = told(tls_certificate_file=own)
    assert advertised == AdvertisedCA(own.read_text(), sha256_of(own))


def test_the_authority_at_the_end_of_the_servers_chain_is_reported(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "private")
    chain = tmp_path / "chain.pem"
    leaf = authority.issue("server").certificate.read_text()
    chain.write_text(leaf + authority.certificate.read_text())
    advertised = told(tls_certificate_file=chain)
    assert advertised is not None
    assert advertised.sha256 == sha256_of(authority.certificate)


def test_the_authority_that_the_operator_names_is_reported_behind_a_proxy_too(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path, "company")
    advertised = told(tls_authority_file=authority.certificate)
    assert advertised is not None
    assert advertised.sha256 == sha256_of(authority.certificate)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_that_can_not_be_used_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"tls_authority_file .*ca\.pem"):
        told(tls_authority_file=path)
