"""JupyterLab and TensorBoard as web pages of jobs, in Chromium through portal, agent and tunnel.

Everything is real: server, agent, engine, containers with a network, and the programs in them.
"""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.deployment import BOB, agent_of, make_deployment, serving
from tests.e2e.conftest import STEP_MS, screenshot
from tests.e2e.walking import sign_in
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.file_modes import no_umask
from tests.fixtures.polling import eventually
from tests.fixtures.web_apps import WebApps, web_apps
from tests.integration.test_jobs import QUICK, Portal, enroll

__all__ = ["web_apps"]

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.needs_docker,
    pytest.mark.needs_chromium,
    pytest.mark.timeout(600),
]

GIBIBYTE = 2**30
JUPYTER_PORT, TENSORBOARD_PORT = 8888, 6006
SLOW_MS = 120_000
WRITE_LOSSES = """
import os, sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter("/tmp/logs")
for step in range(20):
    value = Summary.Value(tag="loss", simple_value=1 / (step + 1))
    writer.add_event(Event(wall_time=1.7e9 + step, step=step, summary=Summary(value=[value])))
writer.close()
os.execv(sys.argv[1], sys.argv[1:])
"""


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
            portal.wait_for_appliance("docker")
            yield portal


@pytest.fixture
def context(portal: Portal, chromium: Browser) -> Iterator[BrowserContext]:
    """A browser in which Bob is signed in to the portal."""
    context = chromium.new_context(base_url=portal.url, viewport={"width": 1440, "height": 900})
    context.set_default_timeout(STEP_MS)
    sign_in(context.new_page(), BOB)
    yield context
    context.close()


def opened(context: BrowserContext, job_id: str) -> Page:
    """Open the port of a job from its page, as a user does, in a new tab."""
    [job_page] = context.pages
    job_page.goto(f"/jobs/{job_id}")
    with context.expect_page() as tab:
        job_page.get_by_role("link", name="Open").click()
    return tab.value


def test_a_kernel_and_a_terminal_of_jupyterlab(
    portal: Portal, context: BrowserContext, web_apps: WebApps
) -> None:
    arguments = ["--ip=0.0.0.0", f"--port={JUPYTER_PORT}", "--no-browser"]
    job_id = portal.submit(
        name="jupyterlab",
        image=web_apps.image,
        command=web_apps.command("jupyter-lab", *arguments, "--allow-root"),
        env={"HOME": "/tmp/home", "SHELL": "/bin/sh"},  # noqa: S108 - in the container
        working_dir="/tmp",  # noqa: S108
        ports=[{"name": "web", "container_port": JUPYTER_PORT}],
        memory_bytes=2 * GIBIBYTE,
    )
    portal.wait_for_state(job_id, "running", seconds=120)
    token = eventually(
        lambda: re.search(r"[?&]token=([0-9a-f]+)", portal.log(job_id)),
        within_seconds=120,
        what="the address with the token in the log",
    )
    page = opened(context, job_id)
    origin = f"{job_id}-{JUPYTER_PORT}.jobs.localhost"
    page.wait_for_url(f"http://{origin}:*/**", timeout=SLOW_MS)
    page.get_by_label("Password or token:").fill(token[1])
    page.get_by_role("button", name="Log in", exact=True).click()

    page.locator(".jp-LauncherCard[data-category=Notebook]").first.click(timeout=SLOW_MS)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=SLOW_MS)
    page.locator(".jp-Notebook .cm-content").first.click()
    page.keyboard.type("import os; print('kernel', 6 * 7, os.environ['VEDETTE_JOB_ID'])")
    page.keyboard.press("Shift+Enter")
    output = page.locator(".jp-OutputArea-output").first
    expect(output).to_contain_text(f"kernel 42 {job_id}", timeout=SLOW_MS)
    screenshot(page, "web-page-jupyterlab")

    received: list[str] = []
    page.on(
        "websocket",
        lambda websocket: websocket.on("framereceived", lambda data: received.append(str(data))),
    )
    page.locator("[data-command='launcher:create']").click()
    page.locator(".jp-LauncherCard[data-category=Other]", has_text="Terminal").last.click()
    page.locator(".jp-Terminal .xterm-screen").click(timeout=SLOW_MS)
    page.keyboard.type("echo terminal $((6 * 7)) $VEDETTE_JOB_ID\n")

    def has_output() -> bool:
        page.wait_for_timeout(100)  # the browser's events arrive meanwhile
        return f"terminal 42 {job_id}" in "".join(received)

    eventually(has_output, within_seconds=60, what="the terminal's output in the browser")
    screenshot(page, "web-page-terminal")
    portal.post(f"/jobs/{job_id}/stop")
    portal.wait_for_state(job_id, "stopped")
    page.reload()
    expect(page.get_by_role("heading", name="The job is not running")).to_be_visible()
    screenshot(page, "web-page-ended")


def test_the_charts_of_tensorboard(
    portal: Portal, context: BrowserContext, web_apps: WebApps
) -> None:
    arguments = ["--logdir=/tmp/logs", "--host=0.0.0.0", f"--port={TENSORBOARD_PORT}"]
    program = web_apps.command("tensorboard", *arguments)
    job_id = portal.submit(
        name="tensorboard",
        image=web_apps.image,
        command=web_apps.command("python", "-c", WRITE_LOSSES, *program),
        env={"HOME": "/tmp/home"},  # noqa: S108 - in the container
        ports=[{"name": "web", "container_port": TENSORBOARD_PORT}],
        memory_bytes=2 * GIBIBYTE,
    )
    portal.wait_for_state(job_id, "running", seconds=120)
    page = opened(context, job_id)
    page.wait_for_url(f"http://{job_id}-{TENSORBOARD_PORT}.jobs.localhost:*/**", timeout=SLOW_MS)
    expect(page.get_by_text("loss", exact=True).first).to_be_visible(timeout=SLOW_MS)
    expect(page.get_by_text("0.05", exact=True)).to_be_visible()  # the loss of the last step
    screenshot(page, "web-page-tensorboard")
