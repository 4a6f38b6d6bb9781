"""The demo as a newcomer starts it, and headless Chromium to look at it."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    StorageState,
    expect,
    sync_playwright,
)

from cli.bootstrap import DEMO_PASSWORD, DEMO_USERS
from cli.process_plan import DEMO_SETTINGS
from tests.deployment import IS_MANY
from tests.e2e.inboxes import MailServer, WebhookServer
from tests.fixtures.file_modes import no_umask
from tests.fixtures.many_hosts import many_hosts
from tests.fixtures.polling import eventually
from tests.servers import free_port, require_program, running

SCREENSHOTS = Path(__file__).parent / "screenshots"
WIDTH, HEIGHT = 1440, 900
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
)
# No test runs in UTC, in which wrong times look right.
BROWSER_ZONE = "Asia/Kolkata"
READY_SECONDS = 180
STEP_MS = 30_000


@dataclass(frozen=True, slots=True)
class Demo:
    """A running `vedette up --demo`, with the inboxes that it sends to.

    With TEST_SHAPE=many, its server is the many processes of deploy/local.
    """

    url: str
    data_dir: Path
    mail: MailServer
    webhook: WebhookServer


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """The demo on a free port, in a scratch folder, for all tests of this folder."""
    folder, port = tmp_path_factory.mktemp("demo"), free_port()
    url = f"http://127.0.0.1:{port}"
    with MailServer() as mail, WebhookServer() as webhook, ExitStack() as stack:
        environ = {
            **os.environ,
            "VEDETTE_PORT": str(port),
            "VEDETTE_DATA_DIR": str(folder),
            "VEDETTE_SMTP_URL": mail.url,
            "VEDETTE_WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8",
            # A whole day would keep a core busy for minutes.
            "DEMO_HISTORY_HOURS": "1",
        }
        argv = [sys.executable, "-m", "cli.main", "up", "--demo"]
        stack.enter_context(no_umask())
        if IS_MANY:
            hosts = many_hosts(folder, environ=DEMO_SETTINGS | environ, public_port=port)
            environ |= stack.enter_context(hosts).environ
            argv.append("--no-server")
            folder = Path(environ["VEDETTE_DATA_DIR"])
        (folder / "old.txt").touch()
        folder.chmod(0o755)
        log = folder / "up.log"
        stack.enter_context(running(argv, log_path=log, environ=environ))

        def has_users() -> bool:
            return DEMO_USERS[-1].email in log.read_text() and _is_open(url)

        eventually(has_users, within_seconds=READY_SECONDS, what="the demo to open")
        yield Demo(url=url, data_dir=folder, mail=mail, webhook=webhook)


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, for all tests of this folder."""
    with headless_chromium() as browser:
        yield browser


@contextmanager
def headless_chromium() -> Iterator[Browser]:
    """Run Debian's Chromium, without a window, for the length of the block.

    Playwright keeps an event loop in this thread while it is open.
    """
    expect.set_options(timeout=STEP_MS)
    path = require_program("chromium", package="chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=list(QUIET), env={**os.environ, "TZ": BROWSER_ZONE}
        )
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def signed_in() -> dict[str, StorageState]:
    """The cookies of those who have signed in, by their email address."""
    return {}


@pytest.fixture
def sign_in(
    demo: Demo, chromium: Browser, signed_in: dict[str, StorageState]
) -> Iterator[Callable[..., Page]]:
    """Return a function that opens a page in a browser of its own for one person.

    Who is not signed in yet, or no longer, signs in on the way. A script error or a refused request
    on any page that a test opens fails the test.
    """
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def sign_in_as(
        email: str, password: str = DEMO_PASSWORD, *, path: str = "/dashboards/"
    ) -> Page:
        context = chromium.new_context(
            viewport={"width": WIDTH, "height": HEIGHT}, storage_state=signed_in.get(email)
        )
        contexts.append(context)
        context.set_default_timeout(STEP_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
        page.goto(demo.url + path)
        if "/login" in page.url:
            page.get_by_label("Email address").fill(email)
            page.get_by_label("Password").fill(password)
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url(lambda url: "/login" not in url)
            signed_in[email] = context.storage_state()
        return page

    yield sign_in_as
    for context in contexts:
        context.close()
    assert faults == []


def screenshot(page: Page, name: str) -> None:
    """Leave a picture of the whole page, if the folder for them is there."""
    if SCREENSHOTS.is_dir():
        page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


def _is_open(url: str) -> bool:
    try:
        return requests.get(f"{url}/health", timeout=10).ok
    except requests.RequestException:
        return False
