"""MariaDB stops under a server: each answer is a 503 with Retry-After, and all works afterwards."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import requests

from cli.bootstrap import DEMO_PASSWORD
from core.db import create_database_engine, create_session_factory
from core.ids import new_id
from portal.app import create_portal
from tests.deployment import ALICE, OLIVIA, Deployment, api_token, make_deployment, serving
from tests.fixtures.mariadb import mariadb_server
from tests.fixtures.memory_stores import memory_store
from tests.fixtures.polling import eventually

pytestmark = [pytest.mark.nightly, pytest.mark.needs_mariadb, pytest.mark.timeout(180)]

Get = Callable[[str], requests.Response]
# For an outage of seconds: one of the database, and one for each kind of skipped task.
MAX_LOG_LINES = 6
# These need no database: they are static, ask for credentials of another kind, or are forms.
NEEDS_NO_DATABASE = re.compile(
    r"/static/|/api/registry/|/api/v1/\w+\.schema\.json|/api/(public/)?v1/openapi\.json|/agent/v1/authority"
    r"|/(login|password|invitation)\b"
)


@dataclass(frozen=True)
class Away:
    """What was answered while the database was away, and what the server has logged."""

    answers: dict[str, dict[str, requests.Response]]
    log: str
    is_well_afterwards: dict[str, int]


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Away]:
    folder = tmp_path_factory.mktemp("away")
    database_folder, data_dir = folder / "mariadb", folder / "server"
    database_folder.mkdir()
    data_dir.mkdir()
    with ExitStack() as stack:
        running = stack.enter_context(ExitStack())
        mariadb = running.enter_context(mariadb_server(database_folder))
        deployment = make_deployment(data_dir, database_url=mariadb.new_database())
        paths = _paths(deployment)
        stack.enter_context(serving(deployment, environ={"VEDETTE_MARKETPLACE": "true"}))
        clients = _clients(deployment, folder)
        for get in clients.values():
            get("/dashboards/")
        log_path = data_dir / "server.log"
        begin = log_path.stat().st_size

        running.close()
        answers = {
            name: {path: get(path) for path in paths if _is_walked(name, path)}
            for name, get in clients.items()
        }
        log = log_path.read_bytes()[begin:].decode()

        stack.enter_context(mariadb_server(database_folder, port=mariadb.port))
        eventually(lambda: clients["anonymous"]("/health").ok, what="the server to recover")
        afterwards = {
            f"{name} {path}": clients[name](path).status_code
            for name, path in (("browser", "/console"), ("token", "/api/v1/jobs"))
        }
        afterwards["agent"] = clients["agent"]("/agent/v1/desired").status_code
        yield Away(answers, log, afterwards)


def _clients(deployment: Deployment, folder: Path) -> dict[str, Get]:
    browser, program, agent = requests.Session(), requests.Session(), requests.Session()
    login = browser.get(f"{deployment.url}/login", timeout=60).text
    (csrf_token,) = re.findall(r'name="csrf_token"[^>]*value="([^"]+)"', login)
    form = {"email": OLIVIA, "password": DEMO_PASSWORD, "csrf_token": csrf_token}
    browser.post(f"{deployment.url}/login", data=form, timeout=60)
    program.headers["Authorization"] = f"Bearer {api_token(deployment, ALICE)}"
    token, home = deployment.enrollment_secret("acme"), str(folder / "agent")
    enrolled = deployment.vedette("agent", "enroll", deployment.url, token, "--data-dir", home)
    assert enrolled.returncode == 0, enrolled.stderr
    identity = json.loads((folder / "agent" / "identity.json").read_text())
    agent.headers["Authorization"] = f"Bearer {identity['agent_token']}"

    def get(session: requests.Session, path: str) -> requests.Response:
        return session.get(f"{deployment.url}{path}", timeout=60, allow_redirects=False)

    sessions = {"browser": browser, "token": program, "agent": agent}
    return {
        **{name: partial(get, session) for name, session in sessions.items()},
        "anonymous": lambda path: get(requests.Session(), path),
    }


def _paths(deployment: Deployment) -> list[str]:
    """Return an address of every route that is read, with ids that don't exist."""
    engine = create_database_engine(deployment.settings.resolved_database_url)
    store = memory_store()
    app = create_portal(deployment.settings, sessions=create_session_factory(engine), store=store)
    routes = [rule.rule for rule in app.url_map.iter_rules() if "GET" in (rule.methods or ())]
    store.close()
    engine.dispose()
    paths = {re.sub(r"<[^>]+>", new_id(), re.sub(r"<int[^>]+>", "1", route)) for route in routes}
    job = f"/api/v1/jobs/{new_id()}"
    return sorted(paths | {f"{job}/follow", f"{job}/files?path=/x", "/agent/v1/desired", "/ready"})


def _is_walked(client: str, path: str) -> bool:
    """Return whether a client walks a path: pages are for browsers, `/api/` is for programs."""
    if client == "agent":
        return path.startswith(("/agent/", "/health"))
    return client == "anonymous" or path.startswith("/api/") == (client == "token")


@pytest.mark.parametrize("client", ["browser", "token"])
def test_every_answer_to_a_user_is_503_with_the_time_to_wait(away: Away, client: str) -> None:
    wrong = {
        path: answer.status_code
        for path, answer in away.answers[client].items()
        if (answer.status_code != 503 or "Retry-After" not in answer.headers)
        and not NEEDS_NO_DATABASE.match(path)
        and path != "/agent/v1/desired"  # 401: its credentials are an agent's
    }
    assert wrong == {}


@pytest.mark.parametrize("client", ["anonymous", "agent"])
def test_no_answer_is_an_internal_error(away: Away, client: str) -> None:
    failed = [answer for answer in away.answers[client].values() if answer.status_code >= 500]
    assert {answer.status_code for answer in failed} == {503}
    assert all("Retry-After" in answer.headers for answer in failed)


def test_answers_say_what_is_away(away: Away) -> None:
    page = away.answers["browser"]["/jobs"]
    answer = away.answers["token"]["/api/v1/jobs"]
    health = away.answers["browser"]["/health"]

    assert "The database is busy or unavailable" in page.text
    assert page.headers["Content-Type"].startswith("text/html")
    assert answer.json()["code"] == health.json()["code"] == "database_unavailable"


def test_an_outage_is_a_line_in_the_log(away: Away) -> None:
    lines = away.log.splitlines()

    assert "Traceback" not in away.log
    assert 1 <= len(lines) <= MAX_LOG_LINES, away.log
    assert sum("database" in line for line in lines) <= 2


def test_all_works_when_the_database_is_back(away: Away) -> None:
    assert set(away.is_well_afterwards.values()) == {200}, away.is_well_afterwards
