"""The portal on many processes: what a user of one does while the agent is connected to another.

The processes are those of deploy/local. Requests go to one of them directly, so that a test knows
whose answer it sees; a browser goes through nginx, which sends each request to the next.
"""

import json
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice

import pytest
import requests
from playwright.sync_api import expect

from cli.bootstrap import DEMO_PASSWORD, prepare_demo
from cli.database import open_database
from core.clock import utc_now
from tests.deployment import ALICE, BOB, Deployment, agent_of, api_token
from tests.e2e.conftest import STEP_MS, headless_chromium
from tests.e2e.inboxes import WebhookServer
from tests.e2e.walking import sign_in
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.many_hosts import OWN, ManyHosts, many_hosts
from tests.fixtures.polling import eventually
from tests.integration.test_jobs import FINAL, QUICK, Portal, enroll
from vedette.client import Client

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.needs_docker,
    pytest.mark.needs_mariadb,
    pytest.mark.needs_redis,
    pytest.mark.needs_chromium,
    pytest.mark.timeout(300),
]

WEB_PORT = 8080
SERVICE = (
    "mkdir /www && echo '<h1>Page of the job</h1>' > /www/index.html &&"
    f" busybox httpd -p {WEB_PORT} -h /www; n=0;"
    " while :; do n=$((n + 1)); echo line $n; sleep 0.2; done"
)
CSRF = re.compile(r'name="csrf_token"[^>]* value="([^"]+)"')


@dataclass(frozen=True, slots=True)
class Site:
    """The processes, and a running job on an appliance whose agent is connected to access B."""

    hosts: ManyHosts
    webhook: WebhookServer
    job_id: str

    def at(self, name: str) -> Deployment:
        """Return one of the processes."""
        return deployment_at(self.hosts, name)

    @contextmanager
    def client(self, name: str) -> Iterator[Client]:
        """Yield Bob's client of one of the processes."""
        token = api_token(self.at("portal-b"), BOB)
        with closing(Client(self.hosts.url_of(name), token)) as client:
            yield client


def deployment_at(hosts: ManyHosts, name: str) -> Deployment:
    """Return a process as a deployment, for helpers that talk to one."""
    return Deployment(hosts.folder / "a", hosts.ports[name], hosts.settings.database_url)


@pytest.fixture(scope="module")
def site(
    networked_engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("hosts")
    environ = {
        "VEDETTE_WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8",
        "VEDETTE_EVALUATION_INTERVAL_SECONDS": "2",
    }
    with WebhookServer() as webhook, many_hosts(folder, environ=environ) as hosts:
        with open_database(hosts.settings) as (_engine, sessions):
            prepare_demo(sessions, now=utc_now())
        access, home = deployment_at(hosts, "access-b"), folder / "agent"
        enroll(access, home, "host-1")
        config = f'{QUICK}docker_url = "{networked_engine.url}"\n'
        with agent_of(access, home=home, toml=config):
            portal = Portal(deployment_at(hosts, "portal-a"))
            portal.wait_for_appliance("docker")
            job_id = portal.submit(
                name="web",
                image=networked_engine.image,
                command=["busybox", "sh", "-c", SERVICE],
                ports=[{"name": "web", "container_port": WEB_PORT}],
                memory_bytes=64 * 2**20,
            )
            portal.wait_for_state(job_id, "running")
            yield Site(hosts, webhook, job_id)


def test_a_session_of_one_portal_is_valid_on_the_other(site: Site) -> None:
    first, second = (site.hosts.url_of(name) for name in ("portal-a", "portal-b"))
    with requests.Session() as browser:
        form = {
            "csrf_token": csrf_token(browser, f"{first}/login"),
            "email": ALICE,
            "password": DEMO_PASSWORD,
        }
        signed_in = browser.post(f"{second}/login", data=form, allow_redirects=False, timeout=60)
        assert signed_in.status_code in {302, 303}, signed_in.text
        page = browser.get(f"{first}/settings", allow_redirects=False, timeout=60)
        assert page.status_code == 200
        signed_out = browser.post(
            f"{second}/logout",
            data={"csrf_token": csrf_token(browser, f"{first}/settings")},
            allow_redirects=False,
            timeout=60,
        )
        assert signed_out.status_code in {302, 303}, signed_out.text
        page = browser.get(f"{first}/settings", allow_redirects=False, timeout=60)
        assert "/login" in page.headers.get("Location", "")


def test_a_job_submitted_on_either_portal_runs_and_its_log_is_on_both(
    site: Site, networked_engine: DockerEngine
) -> None:
    for name, other in (("portal-a", "portal-b"), ("portal-b", "portal-a")):
        job_id = Portal(site.at(name)).submit(
            image=networked_engine.image,
            command=["sh", "-c", "seq 1 500"],
            memory_bytes=64 * 2**20,
        )
        portal = Portal(site.at(other))
        assert portal.wait_for_state(job_id, *FINAL)["state"] == "succeeded"
        eventually(lambda: "500" in portal.log(job_id), what="the end of the log")  # noqa: B023
        assert portal.log(job_id).split() == [str(number) for number in range(1, 501)]


@pytest.mark.parametrize("name", ["portal-a", "portal-b", "nginx"])
def test_a_log_is_followed_on_any_portal(site: Site, name: str) -> None:
    with site.client(name) as client:
        present = len(list(client.log_lines(site.job_id)))
        lines = client.log_lines(site.job_id, follow=True)
        numbers = [int(line.text.split()[1]) for line in islice(lines, present + 10)]

    assert numbers == list(range(1, present + 11))


@pytest.mark.parametrize("name", ["portal-a", "portal-b", "nginx"])
def test_commands_and_files_of_a_job_go_to_the_process_that_holds_its_tunnel(
    site: Site, name: str
) -> None:
    with site.client(name) as client:
        output: list[bytes] = []
        with client.exec(site.job_id, ["sh", "-c", "read word; echo got $word"]) as command:
            command.write(b"it\n")
            assert command.wait(lambda data, _is_error: output.append(data)) == 0
        files = b"".join(client.copy_from(site.job_id, "/www"))
    assert b"".join(output) == b"got it\n"
    assert b"Page of the job" in files


def test_the_same_samples_are_on_both_portals(site: Site) -> None:
    query = {"measurement": "cpu", "fields": "usage_percent", "since": "-10m", "until": "now"}

    def groups(name: str) -> object:
        return Portal(site.at(name)).get("/query", **query).json()["items"]

    eventually(lambda: groups("portal-a"), what="samples on portal A")
    assert groups("portal-b")


def test_an_alert_of_a_rule_of_one_portal_is_sent_by_the_scheduler(site: Site) -> None:
    alice = Portal(site.at("portal-b"), ALICE)
    receiver = {"name": "Chat", "kind": "webhook", "target": site.webhook.url}
    receiver_id = alice.post("/receivers", receiver).json()["id"]
    rule = {
        "name": "Always",
        "expression": "last(uptime.uptime_seconds) over 2m by appliance > 0",
        "receiver_ids": [receiver_id],
    }
    created = alice.post("/rules", rule)
    assert created.status_code == 201, created.text

    def is_notified() -> bool:
        return any(json.loads(call.body).get("rule") == "Always" for call in site.webhook.calls)

    eventually(is_notified, what="the call of the webhook")
    other = Portal(site.at("portal-a"), ALICE)
    assert "Always" in {alert["rule_name"] for alert in other.get("/alerts").json()["items"]}


def test_operators_see_all_processes(site: Site) -> None:
    olivia = Portal(site.at("portal-a"), "olivia@vedette.example")
    processes = olivia.get("/platform/processes").json()["items"]

    assert {process["url"] for process in processes} == {site.hosts.url_of(name) for name in OWN}


def test_a_browser_behind_nginx_sees_one_portal(site: Site) -> None:
    faults: list[str] = []
    with headless_chromium() as chromium:
        context = chromium.new_context(base_url=site.hosts.url)
        context.set_default_timeout(STEP_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
        page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
        sign_in(page, BOB)
        expect(page.locator("#page")).to_contain_text("host-1")
        for path in ("/jobs", "/appliances", "/alerts", "/settings"):
            page.goto(path)
            expect(page.locator("h1")).to_be_visible()
        page.goto(f"/jobs/{site.job_id}")
        lines = page.locator("[data-log-text]").get_by_text(re.compile(r"line \d+"))
        count = lines.count()
        expect(lines.nth(count + 3)).to_be_attached()
        with context.expect_page() as tab:
            page.get_by_role("link", name="Open").click()
        expect(tab.value.get_by_role("heading", name="Page of the job")).to_be_visible()
        context.close()

    assert faults == []


def csrf_token(browser: requests.Session, url: str) -> str:
    """Return the token in the form of a page."""
    match = CSRF.search(browser.get(url, timeout=60).text)
    assert match is not None
    return match[1]
