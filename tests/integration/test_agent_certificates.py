"""Agents' certificates with real parts: the shipped nginx before the real gateway, real agents."""

import shutil
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cli.database import open_database
from collector.certificates import METADATA_NAME, CertificateMetadata
from collector.data_dir import load_identity
from core.clock import to_ns, utc_now
from core.db import transaction
from core.secretbox import SecretBox
from tenants.models import Appliance, ApplianceCertificate
from tenants.pki.certificates import Issuer, issue_certificate
from tests.deployment import ALICE, Deployment, api_token, make_deployment, serving
from tests.fixtures.certificates import Authority, Pair
from tests.fixtures.in_process import Result, run_vedette
from tests.fixtures.nginx import PROXY_SECRET, shipped_nginx
from tests.fixtures.polling import eventually
from tests.fixtures.signing_requests import signing_request
from tests.servers import running

pytestmark = pytest.mark.timeout(300)

SETTINGS = {"VEDETTE_PROXY_SECRET": PROXY_SECRET, "VEDETTE_REQUIRE_CLIENT_CERTIFICATE": "true"}
HEADERS = ("X-Vedette-Client-Certificate", "X-Vedette-Client-Verify", "X-Vedette-Proxy")


@dataclass(frozen=True, slots=True)
class Gateway:
    """A portal behind the shipped nginx, which asks agents for certificates."""

    deployment: Deployment
    url: str
    authority: Authority

    def enroll(self, home: Path, name: str) -> "Host":
        """Enroll an appliance by the command that people paste."""
        home.mkdir(parents=True)
        done = vedette_agent(
            "enroll",
            self.url,
            self.deployment.enrollment_secret("acme"),
            "--name",
            name,
            "--data-dir",
            home,
            "--ca-file",
            self.authority.certificate,
        )
        assert done.returncode == 0, done.stderr
        return Host(self, home)


@dataclass(frozen=True, slots=True)
class Host:
    """An enrolled appliance's data folder, and what can be done with it."""

    gateway: Gateway
    home: Path

    @property
    def certificate(self) -> Path:
        return self.home / "certificate.pem"

    @property
    def secret(self) -> str:
        identity = load_identity(self.home)
        assert identity is not None
        return identity.agent_token

    @property
    def ident(self) -> str:
        identity = load_identity(self.home)
        assert identity is not None
        return identity.appliance_id

    def ask(
        self,
        *,
        certificate: Path | tuple[str, str] | None = None,
        secret: str = "",
        headers: dict[str, str] | None = None,
    ) -> requests.Response:
        """Write nothing, with this certificate and this secret."""
        return ask(
            self.gateway.url,
            ca=self.gateway.authority.certificate,
            certificate=certificate,
            secret=secret,
            headers=headers,
        )


def ask(
    url: str,
    *,
    ca: Path | None = None,
    certificate: Path | tuple[str, str] | None = None,
    secret: str = "",
    headers: dict[str, str] | None = None,
) -> requests.Response:
    all_headers = dict(headers or {})
    if secret:
        all_headers["Authorization"] = f"Bearer {secret}"
    shown = str(certificate) if isinstance(certificate, Path) else certificate
    return requests.post(
        f"{url}/api/v2/write",
        data=b"",
        headers=all_headers,
        timeout=60,
        cert=shown,
        verify=str(ca) if ca else None,
    )


def vedette_agent(*arguments: str | Path) -> Result:
    return run_vedette("agent", *map(str, arguments))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    authority = Authority(folder / "certificates", "authority")
    deployment = make_deployment(folder)
    with (
        serving(deployment, environ=SETTINGS),
        shipped_nginx(
            folder / "nginx", deployment=deployment, server=authority.issue("server")
        ) as url,
    ):
        yield Gateway(deployment, url, authority)


@pytest.fixture(scope="module")
def dgx(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Host:
    return gateway.enroll(tmp_path_factory.mktemp("agents") / "dgx-1", "dgx-1")


@pytest.fixture(scope="module")
def other(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Host:
    return gateway.enroll(tmp_path_factory.mktemp("agents") / "dgx-2", "dgx-2")


def test_the_command_stores_a_key_that_only_the_agent_reads(dgx: Host) -> None:
    text = dgx.certificate.read_text()
    assert "PRIVATE KEY" in text
    assert "CERTIFICATE" in text
    assert dgx.certificate.stat().st_mode & 0o777 == 0o600
    trusted = (dgx.gateway.deployment.data_dir / "nginx" / "agents-ca.pem").read_text()
    assert (dgx.home / "authorities.pem").read_text() in trusted
    assert not (dgx.home / "next-key.pem").exists()


def test_the_certificate_alone_authenticates_the_agent(dgx: Host) -> None:
    answer = dgx.ask(certificate=dgx.certificate)
    assert answer.status_code == 204, answer.text


def test_the_secret_alone_is_not_enough(dgx: Host) -> None:
    answer = dgx.ask(secret=dgx.secret)
    assert answer.status_code == 401
    assert answer.json()["reason"] == "certificate_needed"


def test_a_certificate_of_another_authority_is_refused(dgx: Host, gateway: Gateway) -> None:
    forged = gateway.authority.issue("forged")
    answer = dgx.ask(certificate=(str(forged.certificate), str(forged.key)), secret=dgx.secret)
    assert answer.status_code == 400
    assert "SSL certificate error" in answer.text


def test_another_appliances_certificate_with_this_ones_secret_is_refused(
    dgx: Host, other: Host
) -> None:
    answer = dgx.ask(certificate=other.certificate, secret=dgx.secret)
    assert answer.status_code == 401
    assert answer.json()["reason"] == "two_identities"


def test_headers_that_a_client_sends_through_nginx_are_overwritten(dgx: Host, other: Host) -> None:
    pem = quote(other.certificate.read_text(), safe="")
    forged = dict(zip(HEADERS, (pem, "SUCCESS", PROXY_SECRET), strict=True))
    without = dgx.ask(headers=forged)
    assert without.status_code == 401
    assert "certificate" not in without.json()["message"]
    beside_its_own = dgx.ask(certificate=dgx.certificate, secret=dgx.secret, headers=forged)
    assert beside_its_own.status_code == 204


@pytest.mark.parametrize("secret", ["", "guessed"])
def test_headers_that_a_client_sends_directly_are_refused(
    dgx: Host, other: Host, secret: str
) -> None:
    pem = quote(other.certificate.read_text(), safe="")
    forged = {HEADERS[0]: pem, HEADERS[1]: "SUCCESS"} | ({HEADERS[2]: secret} if secret else {})
    answer = ask(dgx.gateway.deployment.url, secret=dgx.secret, headers=forged)
    assert answer.status_code == 401
    assert answer.json()["reason"] == "unknown_proxy"


def test_an_expired_certificate_is_refused_though_its_connection_was_opened_before(
    gateway: Gateway, tmp_path: Path
) -> None:
    appliance = gateway.enroll(tmp_path / "late", "late")
    assert appliance.ask(certificate=appliance.certificate).status_code == 204
    with (
        open_database(gateway.deployment.settings) as (_engine, sessions),
        transaction(sessions) as session,
    ):
        for row in session.query(ApplianceCertificate).filter_by(appliance_id=appliance.ident):
            row.not_after = utc_now()

    message = eventually(
        lambda: refusal_of(appliance), what="the registry of agents to be read again"
    )
    assert "expired" in message


def test_a_certificate_that_is_revoked_in_the_portal_is_refused_at_once(
    gateway: Gateway, tmp_path: Path
) -> None:
    appliance = gateway.enroll(tmp_path / "stolen", "stolen")
    assert appliance.ask(certificate=appliance.certificate).status_code == 204
    headers = {"Authorization": f"Bearer {api_token(gateway.deployment, ALICE)}"}
    api = f"{gateway.deployment.url}/api/v1"
    listed = requests.get(
        f"{api}/appliances/{appliance.ident}/certificates", headers=headers, timeout=60
    ).json()
    [held] = listed["items"]
    revoked = requests.post(
        f"{api}/certificates/{held['id']}/revoke",
        json={"reason": "stolen"},
        headers=headers,
        timeout=60,
    )
    assert revoked.status_code == 200, revoked.text
    message = eventually(lambda: refusal_of(appliance), what="the refusal")
    assert "was revoked" in message
    renewed = requests.post(
        f"{gateway.deployment.url}/agent/v1/certificate",
        json={"csr": ""},
        timeout=60,
        headers={"Authorization": f"Bearer {appliance.secret}"},
    )
    assert renewed.status_code == 401


def refusal_of(appliance: Host) -> str:
    answer = appliance.ask(certificate=appliance.certificate)
    return str(answer.json()["message"]) if answer.status_code == 401 else ""


@pytest.mark.nightly
def test_an_agent_renews_its_certificate_by_itself_and_goes_on(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates", "authority")
    deployment = make_deployment(tmp_path / "deployment")
    settings = SETTINGS | {"VEDETTE_CERTIFICATE_LIFETIME_SECONDS": "30"}
    with (
        serving(deployment, environ=settings),
        shipped_nginx(
            tmp_path / "nginx", deployment=deployment, server=authority.issue("server")
        ) as url,
    ):
        appliance = Gateway(deployment, url, authority).enroll(tmp_path / "agent", "dgx-1")
        first = appliance.certificate.read_bytes()
        configuration = tomllib.loads((appliance.home / "agent.toml").read_text())
        assert configuration["portal_urls"] == [url]
        with running_agent(appliance.home):
            eventually(
                lambda: appliance.certificate.read_bytes() != first,
                within_seconds=120,
                what="a renewed certificate",
            )

            def is_in_use() -> bool:
                with (
                    open_database(deployment.settings) as (_engine, sessions),
                    transaction(sessions) as session,
                ):
                    held = session.query(ApplianceCertificate).order_by("id").all()
                    return len(held) > 1 and held[0].replaced_at is not None

            eventually(is_in_use, within_seconds=120, what="the new certificate to be used")
            with (
                open_database(deployment.settings) as (_engine, sessions),
                transaction(sessions) as session,
            ):
                assert session.get_one(Appliance, appliance.ident).fenced_at is None


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A portal that ends TLS itself."""
    folder = tmp_path_factory.mktemp("embedded")
    authority = Authority(folder / "certificates", "authority")
    server: Pair = authority.issue("server")
    deployment = make_deployment(folder)
    environ = {
        "VEDETTE_TLS_CERTIFICATE_FILE": str(server.certificate),
        "VEDETTE_TLS_KEY_FILE": str(server.key),
        "VEDETTE_REQUIRE_CLIENT_CERTIFICATE": "true",
    }
    url = f"https://127.0.0.1:{deployment.port}"
    with running(
        [sys.executable, "-m", "cli.main", "server"],
        log_path=folder / "server.log",
        environ=deployment.environ(environ),
    ):
        eventually(lambda: _is_up(url, authority.certificate), within_seconds=60)
        yield Gateway(deployment, url, authority)


def _is_up(url: str, ca: Path) -> bool:
    try:
        return requests.get(f"{url}/health", verify=str(ca), timeout=60).ok
    except requests.RequestException:
        return False


def test_the_portal_ends_tls_itself_and_knows_agents_by_their_certificates(
    embedded: Gateway, tmp_path: Path
) -> None:
    appliance = embedded.enroll(tmp_path / "agent", "dgx-1")
    assert appliance.ask(certificate=appliance.certificate).status_code == 204
    assert appliance.ask(secret=appliance.secret).json()["reason"] == "certificate_needed"


def test_the_portal_itself_takes_no_certificate_of_another_authority(
    embedded: Gateway, tmp_path: Path
) -> None:
    appliance = embedded.enroll(tmp_path / "agent", "dgx-2")
    forged = embedded.authority.issue("forged")
    with pytest.raises(requests.RequestException) as caught:
        appliance.ask(certificate=(str(forged.certificate), str(forged.key)))
    assert isinstance(caught.value, requests.ConnectionError | requests.exceptions.SSLError)


def test_the_portal_itself_believes_no_proxys_headers(embedded: Gateway, tmp_path: Path) -> None:
    appliance = embedded.enroll(tmp_path / "agent", "dgx-3")
    answer = appliance.ask(certificate=appliance.certificate, headers={HEADERS[1]: "SUCCESS"})
    assert answer.json()["reason"] == "unknown_proxy"


def test_a_rotated_authority_is_trusted_without_a_restart(
    embedded: Gateway, tmp_path: Path
) -> None:
    server_settings = {
        "VEDETTE_TLS_CERTIFICATE_FILE": str(embedded.authority.certificate),
    }
    away = embedded.enroll(tmp_path / "away", "dgx-5")
    rotated = embedded.deployment.vedette(
        "ca", "rotate", "--overlap-hours", "0", environ=server_settings
    )
    assert rotated.returncode == 0, rotated.stderr
    appliance = embedded.enroll(tmp_path / "agent", "dgx-4")
    issuer = ssl.PEM_cert_to_DER_cert(_first_certificate(appliance.home / "authorities.pem"))
    trusted = (embedded.deployment.data_dir / "agents-ca.pem").read_text()
    assert trusted.count("BEGIN CERTIFICATE") == 2
    assert issuer
    assert away.ask(certificate=away.certificate).status_code == 204
    assert appliance.ask(certificate=appliance.certificate).status_code == 204


def _first_certificate(path: Path) -> str:
    end = "-----END CERTIFICATE-----"
    return path.read_text().partition(end)[0] + end


def test_an_agent_of_before_certificates_gets_one_when_its_portal_moves_to_tls(
    gateway: Gateway, tmp_path: Path
) -> None:
    home = tmp_path / "old"
    home.mkdir()
    done = vedette_agent(
        "enroll",
        gateway.deployment.url,
        gateway.deployment.enrollment_secret("acme"),
        "--name",
        "old",
        "--data-dir",
        home,
    )
    assert done.returncode == 0, done.stderr
    assert not (home / "certificate.pem").exists()
    toml = f'ca_file = "{gateway.authority.certificate}"\ninterval_seconds = 1\n'
    (home / "agent.toml").write_text(
        f'portal_urls = ["{gateway.url}"]\ndata_dir = "{home}"\n{toml}', encoding="utf-8"
    )
    with running_agent(home):
        eventually((home / "certificate.pem").exists, within_seconds=90, what="a certificate")


def test_a_certificate_that_ran_out_is_refused_by_nginx(gateway: Gateway, dgx: Host) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    settings = gateway.deployment.settings
    with open_database(settings) as (_engine, sessions), transaction(sessions) as session:
        issued = issue_certificate(
            session,
            Issuer(SecretBox.of(settings), -timedelta(minutes=1)),
            session.get_one(Appliance, dgx.ident),
            csr=signing_request(key),
            now=utc_now(),
        )
    expired = gateway.deployment.data_dir / "expired.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    expired.write_bytes(secret + issued.certificate.encode())
    answer = dgx.ask(certificate=expired, secret=dgx.secret)
    assert answer.status_code == 400
    assert "SSL certificate error" in answer.text


def test_a_cloned_appliance_is_fenced_and_both_agents_say_why(
    gateway: Gateway, tmp_path: Path
) -> None:
    original = gateway.enroll(tmp_path / "original", "cloned")
    toml = (original.home / "agent.toml").read_text() + "heartbeat_interval_seconds = 1\n"
    clone = tmp_path / "clone"
    shutil.copytree(original.home, clone)
    for home in (original.home, clone):
        (home / "agent.toml").write_text(toml.replace(str(original.home), str(home)))
    with running_agent(original.home), running_agent(clone):

        def are_refused() -> bool:
            logs = [(home / "agent.log").read_text() for home in (original.home, clone)]
            return all("is fenced: two agents used its identity at once" in log for log in logs)

        eventually(are_refused, within_seconds=120, what="both agents to be refused")
    headers = {"Authorization": f"Bearer {api_token(gateway.deployment, ALICE)}"}
    address = f"{gateway.deployment.url}/api/v1/appliances/{original.ident}"
    assert requests.get(address, headers=headers, timeout=60).json()["fenced_at"]
    assert requests.post(f"{address}/unfence", headers=headers, timeout=60).ok
    assert eventually(
        lambda: original.ask(certificate=original.certificate).status_code == 204,
        what="the one that is left to be let in",
    )


def running_agent(home: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "cli.main", "agent", "run", "--data-dir", str(home)]
    return running(argv, log_path=home / "agent.log")


@pytest.mark.parametrize("portal", ["gateway", "embedded"])
def test_an_agent_whose_certificate_ran_out_is_told_so(
    portal: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A server would end the handshake without a word, or answer with a page of nginx."""
    gateway: Gateway = request.getfixturevalue(portal)
    appliance = gateway.enroll(tmp_path / "off", f"off-{portal}")
    assert appliance.ask(certificate=appliance.certificate).status_code == 204
    expire(appliance)
    checked = vedette_agent("check", "--data-dir", appliance.home)
    assert checked.returncode == 1
    assert "expired on" in checked.stdout
    assert "readmit the agent on the appliance's certificates page" in checked.stdout
    assert "firewall" not in checked.stdout


def expire(appliance: Host) -> None:
    """Let the certificate of an appliance that was off for weeks expire, on both sides."""
    settings = appliance.gateway.deployment.settings
    weeks_ago, key = utc_now() - timedelta(weeks=3), ec.generate_private_key(ec.SECP256R1())
    with open_database(settings) as (_engine, sessions), transaction(sessions) as session:
        issuer = Issuer(SecretBox.of(settings), -timedelta(minutes=1))
        row = session.get_one(Appliance, appliance.ident)
        csr = signing_request(key)
        issued = issue_certificate(session, issuer, row, csr=csr, now=utc_now())
        for used in session.query(ApplianceCertificate).filter_by(appliance_id=row.id):
            used.not_after, used.first_used_at = issued.not_after, weeks_ago
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    appliance.certificate.write_bytes(secret + issued.certificate.encode())
    metadata = CertificateMetadata(
        received_at_ns=to_ns(weeks_ago),
        lifetime_seconds=timedelta(weeks=1).total_seconds(),
        replaces_secret=True,
    )
    (appliance.home / METADATA_NAME).write_bytes(msgspec.json.encode(metadata))
