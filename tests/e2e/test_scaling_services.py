"""A service that scales, in Chromium: it grows, sleeps, and wakes when its page is opened.

Everything is real: server, scheduler, agent, tunnel, engine, and the web servers in containers.
"""

import threading
from collections.abc import Iterator

import pytest
import requests
from playwright.sync_api import Browser, BrowserContext, expect

from tests.deployment import BOB, agent_of, api_token, make_deployment, serving
from tests.e2e.conftest import screenshot
from tests.e2e.walking import sign_in
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.file_modes import no_umask
from tests.fixtures.polling import eventually
from tests.integration.test_jobs import QUICK, Portal, enroll

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.needs_docker,
    pytest.mark.needs_chromium,
    pytest.mark.timeout(900),
]

PORT = 8000
SERVE = (
    "mkdir -p /tmp/www && echo '<title>Model</title><h1>The model serves</h1>' "
    "> /tmp/www/index.html "
    f"&& exec busybox httpd -f -p {PORT} -h /tmp/www"
)
POLICY = {
    "min_instances": 0,
    "max_instances": 2,
    "metric": "requests_per_second",
    "target": 1,
    "down_seconds": 15,
    "zero_seconds": 30,
    "hold_seconds": 60,
}
SLOW_MS = 120_000


@pytest.fixture(scope="module")
def portal(
    networked_engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Portal]:
    folder = tmp_path_factory.mktemp("deployment")
    deployment, home = make_deployment(folder), folder / "agent"
    with no_umask(), serving(deployment):
        enroll(deployment, home, "host-1")
        config = f'{QUICK}docker_url = "{networked_engine.url}"\n'
        with agent_of(deployment, home=home, toml=config):
            portal = Portal(deployment)
            portal.token = api_token(deployment, BOB)  # type: ignore[attr-defined]
            portal.wait_for_appliance("docker")
            yield portal


@pytest.fixture
def context(portal: Portal, chromium: Browser) -> Iterator[BrowserContext]:
    """A browser in which Bob is signed in to the portal."""
    context = chromium.new_context(base_url=portal.url, viewport={"width": 1440, "height": 900})
    context.set_default_timeout(SLOW_MS)
    sign_in(context.new_page(), BOB)
    yield context
    context.close()


def call(portal: Portal, job_id: str) -> requests.Response:
    """Send a request to the service as a program, with an API token."""
    address = portal.url.removeprefix("http://")
    host = f"{job_id}-{PORT}.jobs.localhost:{address.rpartition(':')[2]}"
    headers = {"Host": host, "X-Vedette-Token": portal.token}  # type: ignore[attr-defined]
    return requests.get(portal.url, headers=headers, timeout=120)


def test_a_service_grows_sleeps_and_wakes_on_a_request(
    portal: Portal, context: BrowserContext, networked_engine: DockerEngine
) -> None:
    job_id = portal.submit(
        name="model",
        kind="service",
        image=networked_engine.image,
        command=["sh", "-c", SERVE],
        ports=[{"name": "web", "container_port": PORT}],
        health_check={"kind": "tcp", "port": PORT, "interval_seconds": 1},
        autoscaling=POLICY,
    )
    portal.wait_for_state(job_id, "running", seconds=120)
    # The first request opens the tunnel.
    is_served = lambda: "The model serves" in call(portal, job_id).text  # noqa: E731 - short
    eventually(is_served, within_seconds=120, what="the page of the service")

    done = threading.Event()

    def load() -> None:
        while not done.wait(0.3):
            call(portal, job_id)

    def awake() -> int:
        return int(portal.get(f"/jobs/{job_id}/autoscaling").json()["ready"])

    loading = threading.Thread(target=load)
    loading.start()
    try:
        eventually(lambda: awake() == 2, within_seconds=120, what="two instances")
        [page] = context.pages
        page.goto(f"/jobs/{job_id}")
        service = page.locator("section[aria-labelledby=service-title]")
        expect(service).to_contain_text("2 of 2 awake instances serve")
        expect(page.get_by_text("Scaled from 1 to 2 instances").first).to_be_visible()
        screenshot(page, "service-grows")
    finally:
        done.set()
        loading.join()

    portal.wait_for_state(job_id, "asleep", seconds=180)
    page.reload()
    expect(page.get_by_text("asleep").first).to_be_visible()
    expect(page.get_by_text("no requests for").first).to_be_visible()
    screenshot(page, "service-sleeps")

    with context.expect_page() as tab:
        page.get_by_role("link", name="Open").click()
    expect(tab.value.get_by_role("heading", name="The service is starting")).to_be_visible()
    screenshot(tab.value, "service-wakes")
    serves = tab.value.get_by_role("heading", name="The model serves")
    expect(serves).to_be_visible(timeout=SLOW_MS)

    def wake_seconds() -> float | None:
        status = portal.get(f"/jobs/{job_id}/autoscaling").json()
        seconds: float | None = status["wake_seconds"]
        return seconds

    seconds = eventually(wake_seconds, within_seconds=30, what="the measured wake-up")
    assert 0 < seconds < 60
    page.reload()
    expect(page.get_by_text("The last wake-up took")).to_be_visible()

    portal.wait_for_state(job_id, "asleep", seconds=180)
    eventually(is_served, within_seconds=120, what="the request of a program, which waits")
    portal.post(f"/jobs/{job_id}/stop")
    portal.wait_for_state(job_id, "stopped", seconds=60)
