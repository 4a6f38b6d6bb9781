"""The keyboard alone is enough: it reaches everything, is seen, and finds its way back."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from cli.asgi import create_asgi_app
from cli.backend import Backend
from core.db import create_database_engine, create_session_factory
from core.settings import ServerSettings
from tenants.users.sightings import Sightings
from tests.cast import PASSWORD, FrozenClock
from tests.conftest import Template
from tests.deployment import ALICE
from tests.e2e.conftest import STEP_MS
from tests.e2e.walking import sign_in as sign_in_at
from tests.fixtures.serving import Serving
from tests.servers import free_port
from timeseries.duckdb.store import DuckDBStore

pytestmark = [pytest.mark.needs_chromium, pytest.mark.timeout(600)]

# Past the last button the browser's own controls come, for which the body stands.
IS_HELD = """() => document.activeElement === document.body
    || document.querySelector("#confirm").contains(document.activeElement)"""
# Past the last stop of the page the body stands for the browser's own.
IS_MARKED = """() => {
  if (document.activeElement === document.body) return true;
  const style = getComputedStyle(document.activeElement);
  return style.outlineStyle !== "none" || style.boxShadow !== "none";
}"""
HTML_OF_FOCUS = "document.activeElement.outerHTML.slice(0, 120)"

SignIn = Callable[..., Page]


@pytest.fixture(scope="module")
def context(
    cast_database: Template, chromium: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrowserContext]:
    """A browser in which alice of the cast is signed in to a portal of this process."""
    folder, port = tmp_path_factory.mktemp("portal"), free_port()
    path = shutil.copyfile(cast_database.path, folder / "vedette.db")
    engine = create_database_engine(f"sqlite:///{path}")
    sessions, settings = create_session_factory(engine), ServerSettings(data_dir=folder, port=port)
    with closing(DuckDBStore(":memory:")) as store:
        backend = Backend(settings, sessions, store, Sightings(sessions))
        with Serving(create_asgi_app(backend, clock=FrozenClock()), port=port) as url:
            context = chromium.new_context(base_url=url)
            context.set_default_timeout(STEP_MS)
            page = context.new_page()
            sign_in_at(page, cast_database.load_cast().alice.email, PASSWORD)
            page.close()
            yield context
            context.close()
    engine.dispose()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """Alice's list of jobs."""
    page = context.new_page()
    page.goto("/jobs")
    yield page
    page.close()


def test_the_first_stop_skips_the_navigation(page: Page) -> None:
    page.keyboard.press("Tab")
    link = page.get_by_role("link", name="Skip to content")
    expect(link).to_be_focused()
    expect(link).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()


@pytest.mark.nightly
def test_every_stop_is_seen(page: Page) -> None:
    unseen = []
    for _ in range(25):
        page.keyboard.press("Tab")
        if not page.evaluate(IS_MARKED):
            unseen.append(page.evaluate(HTML_OF_FOCUS))
    assert unseen == []


@pytest.mark.nightly
def test_the_menu_of_the_user_is_used_without_a_mouse(page: Page) -> None:
    button = page.locator("header .dropdown > button").last
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("ArrowDown")
    expect(page.locator("header .dropdown-menu.show .dropdown-item").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(button).to_be_focused()


@pytest.mark.nightly
def test_escape_closes_the_navigation_of_a_phone_and_gives_the_focus_back(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    button = page.get_by_role("button", name="Open navigation")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#sidebar")).to_be_focused()  # when it has come in
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Appliances")).not_to_be_in_viewport()
    expect(button).to_be_focused()


def test_a_question_holds_the_focus_and_gives_it_back(page: Page) -> None:
    page.goto("/users")
    button = page.get_by_role("button", name="Deactivate").first
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("#confirm")
    expect(dialog).to_be_focused()  # when it has come in
    for _ in range(6):
        page.keyboard.press("Tab")
        assert page.evaluate(IS_HELD)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(button).to_be_focused()


def test_a_refused_form_leads_to_its_first_wrong_field_and_says_what_is_wrong(
    page: Page,
) -> None:
    page.goto("/jobs/new")
    page.get_by_role("button", name="Submit job").focus()
    page.keyboard.press("Enter")
    name = page.get_by_label("Name")
    expect(name).to_be_focused()
    expect(name).to_have_attribute("aria-invalid", "true")
    expect(name).to_have_accessible_description(re.compile("name"))


@pytest.mark.nightly
def test_the_time_range_is_chosen_by_the_keyboard(sign_in: SignIn) -> None:
    page = sign_in(ALICE)
    page.locator("#range").focus()
    page.keyboard.press("Enter")
    link = page.get_by_role("link", name="Last 6 h", exact=True)
    expect(link).to_be_visible()
    while not link.evaluate("one => one === document.activeElement"):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**range=6h**")
    expect(page.locator("#range")).to_have_text("Last 6 h")
