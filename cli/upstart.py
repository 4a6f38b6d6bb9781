"""What one start of `vedette up` runs: which processes, with which folders and enrolment tokens."""

import json
import os
import socket
from collections import Counter
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from cli.agent_enroll import enrol_here, write_config
from cli.bootstrap import PLAIN_TENANT, enrolment_secret
from cli.demo.fleet import FLEET, SECRETS_NAME, home_of, members_without_identity
from cli.supervision import Child
from collector.certificates.portal_authority import AUTHORITY_NAME, keep_authority
from collector.identity import load_identity
from core.clock import utc_now
from core.db import SessionFactory
from core.settings import ServerSettings
from core.told_authority import told_authority

DEMO_HOST_TENANT = "acme"
IPV6 = 6
DEMO_INTERVAL_SECONDS = 2.0
INTERVAL_SECONDS = 10.0
# The demo shows what happens within minutes, so its clocks run faster than a data centre's.
DEMO_SETTINGS = {
    "VEDETTE_STALE_AFTER_SECONDS": "12",
    "VEDETTE_UNREACHABLE_AFTER_SECONDS": "30",
    "VEDETTE_EVALUATION_INTERVAL_SECONDS": "2",
}


def here(host: str) -> str:
    """Return the address by which this host reaches what listens on `host`, perhaps on all."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "::1" if address.version == IPV6 else "127.0.0.1"


class Upstart:
    """Starts the processes of one `vedette up`, and enrols the agents that are new."""

    def __init__(self, settings: ServerSettings, *, is_demo: bool, with_agent: bool) -> None:
        self._settings = settings
        self._is_demo = is_demo
        self._with_agent = with_agent
        self._agent_home = settings.data_dir / "agent"
        self._fleet_home = settings.data_dir / "fleet"
        self._agent_secret = ""
        self._environ = {**(DEMO_SETTINGS if is_demo else {}), **os.environ}

    def make_enrolment_secrets(self, sessions: SessionFactory) -> None:
        """Make tokens for the agents that have no identity yet."""
        if self._with_agent and load_identity(self._agent_home) is None:
            slug = DEMO_HOST_TENANT if self._is_demo else PLAIN_TENANT
            self._agent_secret = enrolment_secret(sessions, slug, uses=1, now=utc_now())
        if self._is_demo:
            self._write_fleet_secrets(sessions)

    def server(self) -> Child:
        """Start the cloud side."""
        return self._start("server", "server")

    def agent(self) -> Child:
        """Enrol this host if need be, and start its agent."""
        home, url = self._agent_home, self._url
        self._tell_authority(home)
        if self._agent_secret:
            home.mkdir(parents=True, exist_ok=True)
            seconds = DEMO_INTERVAL_SECONDS if self._is_demo else INTERVAL_SECONDS
            write_config(home, url, interval_seconds=seconds)
            enrol_here(url, self._agent_secret, name=socket.gethostname(), data_dir=home)
        return self._start("agent", "agent", "run", "--data-dir", str(home))

    def fleet(self) -> Child:
        """Start the simulated fleet."""
        for home in (self._fleet_home, *(home_of(self._fleet_home, one) for one in FLEET)):
            self._tell_authority(home)
        authority = self._fleet_home / AUTHORITY_NAME
        # The demo's people ask as programs do, by requests.
        more = {"REQUESTS_CA_BUNDLE": str(authority)} if authority.exists() else {}
        arguments = ("demo-fleet", "--portal-url", self._url, "--data-dir", str(self._fleet_home))
        return self._start("fleet", *arguments, **more)

    @property
    def _url(self) -> str:
        """Where this host's agents find the server, also when it listens on every address."""
        settings = self._settings
        if settings.public_url or settings.host == here(settings.host):
            return settings.resolved_public_url
        return replace(settings, host=here(settings.host)).resolved_public_url

    def _tell_authority(self, home: Path) -> None:
        """Have an agent trust who signed for the server, as its file says at this start."""
        told = told_authority(self._settings)
        if told is not None:
            keep_authority(told.pem, data_dir=home)

    def _write_fleet_secrets(self, sessions: SessionFactory) -> None:
        waiting = Counter(member.tenant for member in members_without_identity(self._fleet_home))
        found = {
            slug: enrolment_secret(sessions, slug, uses=uses, now=utc_now())
            for slug, uses in waiting.items()
        }
        self._fleet_home.mkdir(exist_ok=True)
        path = self._fleet_home / SECRETS_NAME
        path.touch(mode=0o600)
        path.write_text(json.dumps(found), encoding="utf-8")

    def _start(self, name: str, *arguments: str, **more: str) -> Child:
        logs = self._settings.data_dir / "logs"
        logs.mkdir(exist_ok=True)
        environ = {**self._environ, **more}
        child = Child(name, arguments, environ=environ, log_path=logs / f"{name}.log")
        child.start()
        return child
