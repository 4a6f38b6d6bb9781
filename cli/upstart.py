"""What one start of `vedette up` runs: which processes, with which folders and enrolment tokens."""

import json
import os
import socket
from collections import Counter

from cli.agent_enroll import enrol_here, write_config
from cli.bootstrap import PLAIN_TENANT, enrolment_secret
from cli.demo.fleet import SECRETS_NAME, members_without_identity
from cli.supervision import Child
from collector.identity import load_identity
from core.clock import utc_now
from core.db import SessionFactory
from core.settings import ServerSettings

DEMO_HOST_TENANT = "acme"
DEMO_INTERVAL_SECONDS = 2.0
INTERVAL_SECONDS = 10.0
# The demo shows what happens within minutes, so its clocks run faster than a data centre's.
DEMO_SETTINGS = {
    "VEDETTE_STALE_AFTER_SECONDS": "12",
    "VEDETTE_UNREACHABLE_AFTER_SECONDS": "30",
    "VEDETTE_EVALUATION_INTERVAL_SECONDS": "2",
}


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
        home, url = self._agent_home, self._settings.resolved_public_url
        if self._agent_secret:
            home.mkdir(parents=True, exist_ok=True)
            seconds = DEMO_INTERVAL_SECONDS if self._is_demo else INTERVAL_SECONDS
            write_config(home, url, interval_seconds=seconds)
            enrol_here(url, self._agent_secret, name=socket.gethostname(), data_dir=home)
        return self._start("agent", "agent", "run", "--data-dir", str(home))

    def fleet(self) -> Child:
        """Start the simulated fleet."""
        url = self._settings.resolved_public_url
        return self._start(
            "fleet", "demo-fleet", "--portal-url", url, "--data-dir", str(self._fleet_home)
        )

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

    def _start(self, name: str, *arguments: str) -> Child:
        logs = self._settings.data_dir / "logs"
        logs.mkdir(exist_ok=True)
        child = Child(name, arguments, environ=self._environ, log_path=logs / f"{name}.log")
        child.start()
        return child
