"""A whole Vedette for tests: the server as a process of its own, with its database beside it.

Integration and end-to-end tests start it on a free port and in a scratch folder, and talk to it as
agents, programs and browsers do. With TEST_SHAPE=many in the environment, the server is the many
processes of deploy/local, with their stores: `make test-many-hosts`.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import requests

from cli.bootstrap import DEMO_PASSWORD, create_token, prepare_demo
from cli.database import open_database
from core.clock import utc_now
from core.settings import ServerSettings
from tests.fixtures.command_forks import fork_command
from tests.fixtures.in_process import Result, run_vedette
from tests.fixtures.many_hosts import lasting_database, many_hosts_of
from tests.fixtures.migrated import copy_migrated
from tests.fixtures.polling import eventually
from tests.servers import free_port, running

READY_SECONDS = 100
IS_MANY = os.environ.get("TEST_SHAPE") == "many"
ALICE, BOB = "alice@acme.example", "bob@acme.example"
CHARLIE, OLIVIA = "charlie@globex.example", "olivia@vedette.example"


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where a test's Vedette lives; `serve` runs its server."""

    data_dir: Path
    port: int
    database_url: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> ServerSettings:
        return ServerSettings(
            data_dir=self.data_dir, port=self.port, database_url=self.database_url
        )

    def environ(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        return {
            **os.environ,
            "VEDETTE_DATA_DIR": str(self.data_dir),
            "VEDETTE_PORT": str(self.port),
            "DATABASE_URL": self.database_url or self.settings.resolved_database_url,
            "XDG_CONFIG_HOME": str(self.data_dir / "config"),
            **(extra or {}),
        }

    def enrollment_secret(self, tenant: str, *, uses: int = 1) -> str:
        with open_database(self.settings) as (_engine, sessions):
            return create_token(sessions, tenant, uses=uses, now=utc_now())

    def vedette(self, *arguments: str, environ: Mapping[str, str] | None = None) -> Result:
        """Run a command in this process: to start one takes a second."""
        return run_vedette(*arguments, environ=self.environ(environ))

    def process(
        self, *arguments: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a process of its own, as beside Playwright's event loop."""
        argv = [sys.executable, "-m", "cli.main", *arguments]
        with TemporaryFile() as out, TemporaryFile() as err:
            process = fork_command(
                argv, stdout=out.fileno(), stderr=err.fileno(), environ=self.environ(environ)
            )
            try:
                code = process.wait(180)
            finally:
                process.kill()
            texts = [(file.seek(0), file.read().decode())[1] for file in (out, err)]
        return subprocess.CompletedProcess(argv, code, *texts)

    def log(self, name: str) -> str:
        return (self.data_dir / f"{name}.log").read_text(errors="replace")[-4000:]


def make_deployment(data_dir: Path, *, database_url: str = "") -> Deployment:
    """Prepare a data folder with the demo's tenants and cast (password `DEMO_PASSWORD`)."""
    if IS_MANY:
        database_url = database_url or lasting_database()
    deployment = Deployment(data_dir=data_dir, port=free_port(), database_url=database_url)
    if not database_url:
        data_dir.mkdir(parents=True, exist_ok=True)
        copy_migrated(data_dir / "vedette.db")
    with open_database(deployment.settings, may_create=True) as (_engine, sessions):
        prepare_demo(sessions, now=utc_now())
    return deployment


@contextmanager
def serving(
    deployment: Deployment,
    *,
    environ: Mapping[str, str] | None = None,
    part: str = "server",
    is_awaited: bool = True,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server, or a part of it, for the length of the block.

    It answers when that begins, unless it is not awaited.
    """
    if IS_MANY and part == "server":
        with many_hosts_of(
            deployment.data_dir, port=deployment.port, environ=deployment.environ(environ)
        ) as portals:
            yield portals
        return
    log_path = deployment.data_dir / f"{part}.log"
    with running(
        [sys.executable, "-m", "cli.main", part],
        log_path=log_path,
        environ=deployment.environ(environ),
    ) as process:

        def is_ready() -> bool:
            assert process.poll() is None, f"the server has ended:\n{deployment.log(part)}"
            return _is_ready(deployment)

        if is_awaited:
            eventually(is_ready, within_seconds=READY_SECONDS, what="the server to answer")
        yield process


@contextmanager
def agent_of(
    deployment: Deployment,
    *,
    home: Path,
    toml: str,
    code: Path | None = None,
    module: str = "cli.main",
) -> Iterator[subprocess.Popen[bytes]]:
    """Run an enrolled agent with this configuration for the length of the block.

    `code` has the packages of another version, `module` is run in place of the command.
    """
    (home / "agent.toml").write_text(
        f'portal_urls = ["{deployment.url}"]\ndata_dir = "{home}"\n{toml}', encoding="utf-8"
    )
    with running(
        [sys.executable, "-P", "-m", module, "agent", "run", "--data-dir", str(home)],
        log_path=deployment.data_dir / "agent.log",
        environ=deployment.environ({"PYTHONPATH": str(code)} if code else None),
    ) as process:
        yield process


def api_token(deployment: Deployment, email: str) -> str:
    """Return a new API token of one of the cast."""
    reply = requests.post(
        f"{deployment.url}/api/v1/tokens",
        json={"name": "test"},
        auth=(email, DEMO_PASSWORD),
        timeout=60,
    )
    assert reply.status_code == 201, reply.text
    return str(reply.json()["secret"])


def _is_ready(deployment: Deployment) -> bool:
    try:
        return requests.get(f"{deployment.url}/healthz", timeout=60).ok
    except requests.RequestException:
        return False
