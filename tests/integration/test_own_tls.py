"""`vedette up` with TLS that no public authority signed: its agents, and those that are enrolled.

The command that the portal shows is run as it stands, on another data folder.
"""

import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from cli.bootstrap import DEMO_PASSWORD, prepare_default
from cli.database import open_database
from core.clock import utc_now
from core.db import transaction
from core.settings import ServerSettings
from tenants.models import User
from tenants.users.passwords import hash_password
from tests.fixtures.in_process import run_vedette
from tests.fixtures.polling import eventually
from tests.servers import free_port, require_program, running

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

ADMIN = "admin@vedette.example"
STRICT = {"VEDETTE_REQUIRE_CLIENT_CERTIFICATE": "true"}


@dataclass(frozen=True, slots=True)
class Portal:
    """A running `vedette up` that ends TLS itself."""

    url: str
    folder: Path
    authority: Path

    def api(self, method: str, path: str, **details: Any) -> Any:  # noqa: ANN401 - JSON
        answer = requests.request(
            method,
            f"{self.url}/api/v1/{path}",
            timeout=60,
            verify=str(self.authority),
            **{"auth": (ADMIN, DEMO_PASSWORD), **details},
        )
        assert answer.ok, answer.text
        return answer.json()

    @property
    def bearer(self) -> dict[str, str]:
        secret = self.api("POST", "tokens", json={"name": "test"})["secret"]
        return {"Authorization": f"Bearer {secret}"}


def vedette(*arguments: str, environ: dict[str, str]) -> None:
    done = run_vedette(*arguments, environ=environ)
    assert done.returncode == 0, done.stderr


def by_its_own_authority(folder: Path, environ: dict[str, str]) -> None:
    vedette("ca", "server-certificate", "portal.lan", environ=environ)
    assert (folder / "server.key").exists()


def by_itself(folder: Path, _environ: dict[str, str]) -> None:
    """Do what a new user finds by searching."""
    openssl = require_program("openssl", package="openssl")
    subprocess.run(
        [
            openssl,
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "30",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout",
            str(folder / "server.key"),
            "-out",
            str(folder / "server.pem"),
        ],
        capture_output=True,
        timeout=60,
        check=True,
    )


@pytest.fixture(
    scope="module",
    params=[by_its_own_authority, by_itself],
)
def portal(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Portal]:
    folder, port = tmp_path_factory.mktemp("portal"), free_port()
    settings = ServerSettings(data_dir=folder, port=port)
    with open_database(settings, may_create=True) as (_engine, sessions):
        prepare_default(sessions, now=utc_now())
        with transaction(sessions) as session:
            admin = session.query(User).filter_by(email=ADMIN).one()
            admin.password_hash = hash_password(DEMO_PASSWORD)
    environ = {
        "PATH": "/usr/bin:/bin",
        "VEDETTE_DATA_DIR": str(folder),
        "VEDETTE_PORT": str(port),
    }
    request.param(folder, environ)
    environ |= STRICT | {
        "VEDETTE_TLS_CERTIFICATE_FILE": str(folder / "server.pem"),
        "VEDETTE_TLS_KEY_FILE": str(folder / "server.key"),
        "VEDETTE_HEADER_TIMEOUT_SECONDS": "3",
    }
    log_path = folder / "up.log"
    argv = [sys.executable, "-m", "cli.main", "up"]
    with running(argv, log_path=log_path, environ=environ):
        eventually(
            lambda: "Vedette is running at https://" in log_path.read_text(),
            within_seconds=90,
            what="vedette up",
        )
        authority = folder / "agent" / "portal-ca.pem"
        yield Portal(f"https://127.0.0.1:{port}", folder, authority)


def states(portal: Portal, bearer: dict[str, str]) -> dict[str, str]:
    items = portal.api("GET", "appliances", auth=None, headers=bearer)["items"]
    return {appliance["name"]: appliance["state"] for appliance in items}


def test_the_agent_of_this_host_is_online(portal: Portal) -> None:
    bearer = portal.bearer
    eventually(
        lambda: "online" in states(portal, bearer).values(),
        within_seconds=90,
        what="the agent of this host",
    )


def test_a_client_that_does_not_complete_the_handshake_is_cut_off(portal: Portal) -> None:
    port = int(portal.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(b"\x16\x03\x01")
        assert client.recv(1) == b""


def test_the_command_that_the_portal_shows_makes_an_agent_that_works(
    portal: Portal, tmp_path: Path
) -> None:
    bearer = portal.bearer
    made = portal.api("POST", "enrollment-tokens", auth=None, headers=bearer, json={"uses": 1})
    program, *arguments = shlex.split(made["command"])
    assert program == "vedette"
    home = tmp_path / "agent"
    options = ("--name", "second", "--data-dir", str(home))
    vedette(*arguments, *options, environ={"PATH": "/usr/bin:/bin"})
    argv = [sys.executable, "-m", "cli.main", "agent", "run", "--data-dir", str(home)]
    with running(argv, log_path=tmp_path / "agent.log"):
        eventually(
            lambda: states(portal, bearer).get("second") == "online",
            within_seconds=90,
            what="the second agent",
        )


def test_a_portal_with_another_authority_than_the_command_names_is_not_believed(
    portal: Portal, tmp_path: Path
) -> None:
    wrong = ("--ca-sha256", "00" * 32)
    done = run_vedette("agent", "enroll", portal.url, "vde_x", *wrong, "--data-dir", str(tmp_path))
    assert done.returncode == 1
    assert "00" * 32 in done.stderr
    assert not (tmp_path / "portal-ca.pem").exists()
