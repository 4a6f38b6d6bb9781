"""The processes of `vedette up`: their commands, data directories and enrollment tokens."""

import json
import os
import shutil
import socket
from collections import Counter
from dataclasses import replace
from pathlib import Path

from cli.agent_enroll import enroll_host, write_config
from cli.bootstrap import DEFAULT_TENANT, create_token
from cli.demo_fleet import TOKENS_NAME, Member, fleet_of, home_of
from cli.listen_address import check_port, local_address
from cli.supervision import Child
from collector.certificates import PORTAL_AUTHORITY_NAME, store_portal_authority
from collector.data_dir import load_identity
from core.advertised_ca import advertised_ca
from core.atomic_files import replace_file
from core.clock import utc_now
from core.db import SessionFactory
from core.errors import ConfigurationError
from core.settings import ServerSettings

REGISTRY_PROGRAM = "docker-registry"
MAX_PORT = 65535
DEMO_HOST_TENANT = "acme"
DEMO_INTERVAL_SECONDS = 2.0
INTERVAL_SECONDS = 10.0
# The demo shows state changes within minutes, so its intervals are short.
DEMO_SETTINGS = {
    "VEDETTE_STALE_AFTER_SECONDS": "12",
    "VEDETTE_UNREACHABLE_AFTER_SECONDS": "30",
    "VEDETTE_EVALUATION_INTERVAL_SECONDS": "2",
    "VEDETTE_VERIFICATION_ACCEPTS_SIMULATED": "true",
}


class ProcessPlan:
    """Starts the processes of `vedette up`, and enrolls new agents.

    Without a server, the rest runs beside one that other commands have started.
    """

    def __init__(
        self, settings: ServerSettings, *, is_demo: bool, with_agent: bool, with_server: bool
    ) -> None:
        self._settings = settings
        self.is_demo = is_demo
        self.with_agent = with_agent
        self.with_server = with_server
        self._agent_home = settings.data_dir / "agent"
        self._fleet_home = settings.data_dir / "fleet"
        self._agent_token = ""
        self._environ = {**(DEMO_SETTINGS if is_demo else {}), **os.environ}
        self._registry_url = _registry_url(settings) if with_server else None
        if self._registry_url is not None:
            self._environ["VEDETTE_REGISTRY_URL"] = self._registry_url

    def create_tokens(self, sessions: SessionFactory) -> None:
        """Create enrollment tokens for the agents without an identity."""
        if self.with_agent and load_identity(self._agent_home) is None:
            slug = DEMO_HOST_TENANT if self.is_demo else DEFAULT_TENANT
            self._agent_token = create_token(sessions, slug, uses=1, now=utc_now())
        if self.is_demo:
            self._write_fleet_tokens(sessions)

    def server(self) -> Child:
        """Start portal, agent API and scheduler."""
        return self._start("server", "server")

    def registry(self) -> Child | None:
        """Start the private registry; None if it is not installed, or runs elsewhere."""
        if self._registry_url is None:
            return None
        return self._start("registry", "registry", "serve", VEDETTE_PUBLIC_URL=self._url)

    def agent(self) -> Child:
        """Start the agent of this host; enroll it first if it is new."""
        home, url = self._agent_home, self._url
        self._trust_ca(home)
        if self._agent_token:
            home.mkdir(parents=True, exist_ok=True)
            seconds = DEMO_INTERVAL_SECONDS if self.is_demo else INTERVAL_SECONDS
            write_config(home, url, interval_seconds=seconds)
            enroll_host(url, self._agent_token, name=socket.gethostname(), data_dir=home)
        return self._start("agent", "agent", "run", "--data-dir", str(home))

    def fleet(self) -> Child:
        """Start the simulated fleet."""
        for home in (
            self._fleet_home,
            *(home_of(self._fleet_home, appliance) for appliance in self._fleet),
        ):
            self._trust_ca(home)
        authority = self._fleet_home / PORTAL_AUTHORITY_NAME
        # The demo users call the REST API with requests.
        variables = {"REQUESTS_CA_BUNDLE": str(authority)} if authority.exists() else {}
        arguments = ("demo-fleet", "--portal-url", self._url, "--data-dir", str(self._fleet_home))
        return self._start("fleet", *arguments, **variables)

    @property
    def fleet_size(self) -> int:
        """The number of simulated appliances."""
        return len(self._fleet)

    @property
    def _fleet(self) -> tuple[Member, ...]:
        return fleet_of(has_marketplace=self._settings.marketplace)

    @property
    def _url(self) -> str:
        """The URL of the server for agents on this host, even if it listens on all addresses."""
        settings = self._settings
        if settings.public_url or settings.host == local_address(settings.host):
            return settings.resolved_public_url
        return replace(settings, host=local_address(settings.host)).resolved_public_url

    def _trust_ca(self, home: Path) -> None:
        """Make an agent trust the CA of the server certificate, as it is at this start."""
        authority = advertised_ca(self._settings)
        if authority is not None:
            store_portal_authority(authority.pem, data_dir=home)

    def _write_fleet_tokens(self, sessions: SessionFactory) -> None:
        missing = Counter(
            member.tenant
            for member in self._fleet
            if load_identity(home_of(self._fleet_home, member)) is None
        )
        tokens = {
            slug: create_token(sessions, slug, uses=uses, now=utc_now())
            for slug, uses in missing.items()
        }
        replace_file(self._fleet_home / TOKENS_NAME, json.dumps(tokens).encode())

    def _start(self, name: str, *arguments: str, **variables: str) -> Child:
        logs = self._settings.data_dir / "logs"
        logs.mkdir(exist_ok=True)
        environ = {**self._environ, **variables}
        child = Child(name, arguments, environ=environ, log_path=logs / f"{name}.log")
        child.start()
        return child


def _registry_url(settings: ServerSettings) -> str | None:
    """Return the address of the registry that this command runs: the port after the portal's."""
    is_installed = shutil.which(REGISTRY_PROGRAM) is not None
    if settings.registry_url or not is_installed or settings.port == MAX_PORT:
        return None
    host = local_address(settings.host)
    try:
        check_port(host, settings.port + 1)
    except ConfigurationError:
        return None
    return f"http://{host}:{settings.port + 1}"
