"""axe-core finds no serious fault on any page of any role, and the keyboard reaches everything.

The pages are found by following links, so that a new one is looked at without being named here.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page, expect

from cli.bootstrap import DEMO_PASSWORD
from tests.e2e.conftest import STEP_MS, Demo

pytestmark = [pytest.mark.needs_chromium, pytest.mark.timeout(900)]

ALICE, OLIVIA = "alice@acme.example", "olivia@vedette.example"
WIDE_LIGHT, NARROW_DARK = (1440, "light"), (390, "dark")
# What axe calls worse than an annoyance; the rest is taste.
FAULTS = {"serious", "critical"}
# The API reference is Swagger UI's: its rows are buttons with a lock within, which can be reached.
IN_VENDORED = {"nested-interactive": "opblock-summary-control"}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}
# Downloads, and what is no page of ours.
SKIPPED = re.compile(r"^/(static|api/v1/(?!docs))|/(export|qr\.svg|codes\.txt)$|^/login/oidc")
IDENT = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<=/gpus/)\d+")
OPEN_TO_NOBODY = ("/login", "/password/forgot", "/password/reset/used", "/invitation/used")
MOST_PAGES = 80

TOO_WIDE = """() => {
  const root = document.documentElement, found = [];
  const extra = root.scrollWidth - window.innerWidth;
  if (extra > 0) found.push(`the page is ${extra} px wider than the window`);
  for (const table of document.querySelectorAll("table.vd-table")) {
    const place = table.parentElement, spill = table.offsetWidth - place.clientWidth;
    if (spill > 1 && getComputedStyle(place).overflowX !== "auto")
      found.push(`a table is ${spill} px wider than its panel: ${table.innerText.slice(0, 60)}`);
  }
  return found;
}"""

# Past the last button the browser's own controls come, for which the body stands.
IS_HELD = """() => document.activeElement === document.body
    || document.querySelector("#confirm").contains(document.activeElement)"""

Open = Callable[[tuple[int, str]], Page]


@pytest.fixture
def open_browser(demo: Demo, chromium: Browser) -> Iterator[Open]:
    """Return a function that opens a browser of a width and a theme, into which axe may come."""
    contexts = []
    base = demo.url

    def open_one(look: tuple[int, str]) -> Page:
        context = chromium.new_context(
            viewport={"width": look[0], "height": 900},
            color_scheme="dark" if look[1] == "dark" else "light",
            bypass_csp=True,
            base_url=base,
        )
        contexts.append(context)
        context.set_default_timeout(STEP_MS)
        return context.new_page()

    yield open_one
    for context in contexts:
        context.close()


def sign_in(page: Page, email: str) -> None:
    page.goto("/login")
    page.get_by_label("Email address").fill(email)
    page.get_by_label("Password").fill(DEMO_PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/dashboards/**")


def show(page: Page, path: str) -> None:
    """Open a page and wait until it is drawn."""
    page.goto(path)
    if urlsplit(path).path.startswith("/dashboards/"):
        page.locator("#page > *").first.wait_for()
        page.wait_for_load_state("networkidle")
    if path == "/api/v1/docs":
        page.locator(".opblock").first.wait_for()


def pages_from(page: Page, start: str) -> Iterator[str]:
    """Open every kind of page that links lead to, one of each, and yield its path meanwhile."""
    waiting, seen = [start], {start}
    while waiting:
        path = waiting.pop(0)
        show(page, path)
        yield path
        hrefs = page.eval_on_selector_all("a[href]", "all => all.map(a => a.href)")
        for href in hrefs:
            url = urlsplit(urljoin(page.url, href))
            kind = IDENT.sub("ID", url.path)
            is_ours = url.netloc == urlsplit(page.url).netloc and not SKIPPED.search(url.path)
            if is_ours and kind not in seen:
                seen.add(kind)
                waiting.append(url.path)
        assert len(seen) <= MOST_PAGES


def faults_of(page: Page) -> list[str]:
    """Return what axe finds in the page as it is shown."""
    page.evaluate(AXE_SCRIPT)
    found: dict[str, Any] = page.evaluate("rules => axe.run(rules)", RULES)
    return [
        f"{violation['id']}: {node['html'][:150]} {' '.join(node['failureSummary'].split())}"
        for violation in found["violations"]
        if violation["impact"] in FAULTS
        for node in violation["nodes"]
        if IN_VENDORED.get(violation["id"], "\n") not in node["html"]
    ]


def too_wide(page: Page) -> list[str]:
    """Return what is wider than the place it has: the page, or a table in its panel."""
    found: list[str] = page.evaluate(TOO_WIDE)
    return found


@pytest.mark.parametrize(
    ("email", "look"),
    [
        (ALICE, WIDE_LIGHT),
        (ALICE, NARROW_DARK),
        (OLIVIA, (1440, "dark")),
        (OLIVIA, (390, "light")),
    ],
)
def test_no_page_has_a_serious_fault(open_browser: Open, email: str, look: tuple[int, str]) -> None:
    page = open_browser(look)
    sign_in(page, email)
    found = []
    for path in pages_from(page, "/dashboards/"):
        found += [f"{path}: {fault}" for fault in faults_of(page) + too_wide(page)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("look", [WIDE_LIGHT, NARROW_DARK])
@pytest.mark.parametrize("path", OPEN_TO_NOBODY)
def test_the_pages_before_signing_in_have_no_serious_fault(
    open_browser: Open, path: str, look: tuple[int, str]
) -> None:
    page = open_browser(look)
    page.goto(path)
    assert faults_of(page) + too_wide(page) == []


def test_the_first_stop_of_the_keyboard_skips_the_navigation(open_browser: Open) -> None:
    page = open_browser(WIDE_LIGHT)
    sign_in(page, ALICE)
    page.goto("/jobs")
    page.keyboard.press("Tab")
    link = page.get_by_role("link", name="Skip to content")
    expect(link).to_be_focused()
    expect(link).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()


def test_every_stop_of_the_keyboard_is_seen(open_browser: Open) -> None:
    page = open_browser(WIDE_LIGHT)
    sign_in(page, ALICE)
    page.goto("/jobs")
    unseen = []
    for _ in range(25):
        page.keyboard.press("Tab")
        mark = page.evaluate(
            "() => { const s = getComputedStyle(document.activeElement);"
            " return s.outlineStyle !== 'none' || s.boxShadow !== 'none'; }"
        )
        if not mark:
            unseen.append(page.evaluate("document.activeElement.outerHTML.slice(0, 120)"))
    assert unseen == []


def test_the_menu_of_the_user_is_used_without_a_mouse(open_browser: Open) -> None:
    page = open_browser(WIDE_LIGHT)
    sign_in(page, ALICE)
    page.goto("/jobs")
    button = page.locator("header .dropdown > button").last
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("ArrowDown")
    expect(page.locator("header .dropdown-menu.show .dropdown-item").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(button).to_be_focused()


def test_a_question_holds_the_focus_and_gives_it_back(open_browser: Open) -> None:
    page = open_browser(WIDE_LIGHT)
    sign_in(page, ALICE)
    page.goto("/users")
    button = page.get_by_role("button", name="Lock out").first
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
