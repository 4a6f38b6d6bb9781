"""The page of a member's job in an admin's browser, which must not act on the admin's own job.

Portal, tunnel and both jobs' servers are real, and so is Chromium with its cookies and headers.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from cli.asgi import create_asgi_app
from cli.backend import Backend
from core.db import SessionFactory
from core.settings import ServerSettings
from jobqueue.executors.base import ExecSession, NoExecError
from jobqueue.models import Attempt
from protocol.attempts import ObservedState
from protocol.job_spec import Port
from tenants.users.sightings import Sightings
from tests.cast import NOON, PASSWORD, Cast, FrozenClock
from tests.e2e.conftest import STEP_MS
from tests.e2e.walking import sign_in
from tests.fixtures.serving import Serving
from tests.fixtures.tunnels import serve_wanted_tunnel
from tests.servers import free_port
from tests.unit.jobqueue.builders import add_appliance, dispatch, report, submit
from timeseries.store import Store

pytestmark = [pytest.mark.needs_chromium, pytest.mark.timeout(120)]

PORT = 8888
# Each returns once the browser has an answer or an error.
ATTEMPTS = {
    "a form in a frame": """target => new Promise(done => {
        const frame = document.createElement('iframe');
        frame.name = 'attack';
        document.body.append(frame);
        const form = document.body.appendChild(document.createElement('form'));
        Object.assign(form, {action: target, method: 'post', target: 'attack'});
        frame.addEventListener('load', done);
        form.submit();
    })""",
    "a post without reading": """target =>
        fetch(target, {method: 'POST', mode: 'no-cors', credentials: 'include', body: 'x'})
            .catch(() => null)""",
    "a request with CORS": """target =>
        fetch(target, {method: 'POST', credentials: 'include', body: 'x'}).catch(() => null)""",
    "a request with a preflight": """target =>
        fetch(target, {method: 'DELETE', credentials: 'include'}).catch(() => null)""",
    "an image": """target => new Promise(done => {
        const image = new Image();
        image.onload = image.onerror = done;
        image.src = target;
    })""",
    "a script": """target => new Promise(done => {
        const script = document.createElement('script');
        script.onload = script.onerror = done;
        script.src = target;
        document.head.append(script);
    })""",
    "a frame": """target => new Promise(done => {
        const frame = document.createElement('iframe');
        frame.addEventListener('load', done);
        frame.src = target;
        document.body.append(frame);
    })""",
    "a frame of no origin": """target => new Promise(done => {
        const frame = document.createElement('iframe');
        frame.sandbox = 'allow-scripts';
        addEventListener('message', done);
        frame.srcdoc = `<script>fetch('${target}', {method: 'POST', mode: 'no-cors',
            credentials: 'include'}).finally(() => parent.postMessage('', '*'))</script>`;
        document.body.append(frame);
    })""",
    "a WebSocket": """target => new Promise(done => {
        const socket = new WebSocket(target.replace('http', 'ws'));
        socket.onopen = socket.onerror = done;
    })""",
}
OWN_REQUESTS = """async () => {
    const answer = await fetch('/own', {method: 'POST', body: 'x'});
    const greeting = await new Promise((done, fail) => {
        const socket = new WebSocket(location.href.replace('http', 'ws'));
        socket.onmessage = message => done(message.data);
        socket.onerror = fail;
    });
    return [await answer.text(), greeting];
}"""


@dataclass
class JobServer:
    """The program of a job, which notes what reaches it."""

    received: list[str] = field(default_factory=list)

    def app(self) -> Starlette:
        async def page(request: Request) -> Response:
            self.received.append(f"{request.method} {request.url.path}")
            response = HTMLResponse("<!doctype html><title>A job</title>ready")
            response.headers["Set-Cookie"] = "planted=1; Domain =jobs.localhost"
            return response

        async def greet(websocket: WebSocket) -> None:
            self.received.append("WebSocket")
            await websocket.accept()
            await websocket.send_text("hello")

        methods = ["GET", "POST", "DELETE", "OPTIONS"]
        return Starlette(
            routes=[
                WebSocketRoute("/{path:path}", greet),
                Route("/{path:path}", page, methods=methods),
            ]
        )


@dataclass
class Site:
    """A portal with a job of bob and one of alice, on one appliance."""

    url: str
    attempts: dict[str, Attempt]
    servers: dict[str, JobServer]

    def origin(self, owner: str) -> str:
        port = self.url.rpartition(":")[2]
        return f"http://{self.attempts[owner].job_id}-{PORT}.jobs.localhost:{port}"


async def nothing_runs(_attempt_id: str, _session: ExecSession) -> int:
    raise NoExecError


def running_jobs(session: Session, cast: Cast) -> dict[str, Attempt]:
    """Start a job of alice and one of bob on one appliance."""
    add_appliance(session, cast.acme, "dgx-01")
    ports = [Port(container_port=PORT, name="web")]
    users = {"alice": cast.alice, "bob": cast.bob}
    jobs = {name: submit(session, user, ports=ports) for name, user in users.items()}
    dispatch(session, now=NOON)
    attempts = {}
    for name, job in jobs.items():
        session.refresh(job)
        assert job.attempt is not None
        report(session, job.attempt, ObservedState.RUNNING)
        attempts[name] = job.attempt
    return attempts


@pytest.fixture
def site(
    sessions: SessionFactory,
    cast: Cast,
    store: Store,
    clock: FrozenClock,
    tmp_path: Path,
) -> Iterator[Site]:
    port, stop = free_port(), threading.Event()
    url = f"http://127.0.0.1:{port}"
    with sessions.begin() as session:
        attempts = running_jobs(session, cast)
    settings = ServerSettings(data_dir=tmp_path, port=port)
    backend = Backend(settings, sessions, store, Sightings(sessions))
    app = create_asgi_app(backend, clock=clock)
    servers = {owner: JobServer() for owner in attempts}
    with (
        Serving(servers["alice"].app()) as of_alice,
        Serving(servers["bob"].app()) as of_bob,
        Serving(app, port=port),
    ):
        endpoints = {
            attempts["alice"].id: of_alice.removeprefix("http://"),
            attempts["bob"].id: of_bob.removeprefix("http://"),
        }
        agent = threading.Thread(
            target=serve_wanted_tunnel,
            args=(url,),
            kwargs={
                "stop": stop,
                "find_endpoint": lambda attempt_id, _port: endpoints[attempt_id],
                "execute": nothing_runs,
            },
        )
        agent.start()
        yield Site(url, attempts, servers)
        stop.set()
        agent.join()


@pytest.fixture
def context(site: Site, chromium: Browser, cast: Cast) -> Iterator[BrowserContext]:
    """A browser in which alice is signed in."""
    context = chromium.new_context(base_url=site.url)
    context.set_default_timeout(STEP_MS)
    sign_in(context.new_page(), cast.alice.email, PASSWORD)
    yield context
    context.close()


def opened(context: BrowserContext, site: Site, owner: str) -> Page:
    """Open the page of a job as a user does, in a new tab."""
    portal_page = context.pages[0]
    portal_page.goto(f"/jobs/{site.attempts[owner].job_id}")
    with context.expect_page() as tab:
        portal_page.get_by_role("link", name="Open").click()
    page = tab.value
    page.wait_for_url(f"{site.origin(owner)}/")
    expect(page.get_by_text("ready")).to_be_visible()
    return page


def test_the_page_of_a_job_does_not_act_on_another_job(context: BrowserContext, site: Site) -> None:
    own = opened(context, site, "alice")
    foreign = opened(context, site, "bob")
    received = site.servers["alice"].received
    del received[:]
    target = site.origin("alice")
    for name, script in ATTEMPTS.items():
        foreign.evaluate(script, f"{target}/attack")
        assert received == [], name
    foreign.evaluate(ATTEMPTS["an image"], target.replace(f"-{PORT}", f"-0{PORT}"))
    assert received == []

    assert own.evaluate(OWN_REQUESTS)[1] == "hello"
    assert received == ["POST /own", "WebSocket"]
    foreign.evaluate("target => location.assign(target)", f"{target}/linked")
    foreign.wait_for_url(f"{target}/linked")
    expect(foreign.get_by_text("ready")).to_be_visible()


@pytest.mark.nightly
def test_a_job_sets_no_cookie_of_another_job(context: BrowserContext, site: Site) -> None:
    opened(context, site, "alice")
    foreign = opened(context, site, "bob")
    domains = {cookie["name"]: cookie["domain"] for cookie in context.cookies()}
    assert domains["planted"] in {site.origin(name)[7:].partition(":")[0] for name in site.servers}
    # A script can; then the job still opens by its pass.
    foreign.evaluate("document.cookie = 'vedette-job=x; domain=jobs.localhost; path=/'")
    # It can't where no two jobs share a registrable domain, as below `localhost` itself.
    foreign.evaluate("document.cookie = 'vedette-job=y; domain=localhost; path=/'")
    shared = {cookie["domain"]: cookie["value"] for cookie in context.cookies()}
    assert (shared[".jobs.localhost"], shared.get(".localhost")) == ("x", None)
    assert opened(context, site, "alice").title() == "A job"
