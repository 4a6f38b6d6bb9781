"""axe-core finds no serious issue on any page of any role, wide or narrow, light or dark.

The pages are found by following links, so that a new one is looked at without being named here.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.deployment import ALICE, BOB, OLIVIA
from tests.e2e.axe import faults_of
from tests.e2e.conftest import STEP_MS, Demo
from tests.e2e.inboxes import link_in_mail_to
from tests.e2e.walking import (
    NARROW_DARK,
    NARROW_LIGHT,
    REFERENCE,
    WIDE_DARK,
    WIDE_LIGHT,
    Look,
    pages_from,
    put_on,
    show,
    sign_in,
)

pytestmark = [pytest.mark.nightly, pytest.mark.needs_chromium, pytest.mark.timeout(900)]

VERA = "vera@acme.example"
ALL_LOOKS = (WIDE_LIGHT, WIDE_DARK, NARROW_DARK, NARROW_LIGHT)
OPEN_TO_NOBODY = ("/login", "/password/forgot", "/password/reset/used", "/invitation/used")
REASON = "Ticket 4711: a job stays queued"

OpenBrowser = Callable[[], Page]


@pytest.fixture
def open_browser(demo: Demo, chromium: Browser) -> Iterator[OpenBrowser]:
    """Return a function that opens a browser of its own, into which axe may come."""
    contexts = []

    def open_one() -> Page:
        context = chromium.new_context(bypass_csp=True, base_url=demo.url)
        contexts.append(context)
        context.set_default_timeout(STEP_MS)
        page = context.new_page()
        put_on(page, WIDE_LIGHT)
        return page

    yield open_one
    for context in contexts:
        context.close()


def faults_in(page: Page, looks: Sequence[Look]) -> list[str]:
    """Return what is wrong with the open page in any of the looks."""
    faults = []
    for look in looks:
        put_on(page, look)
        faults += [f"{page.url} {look.width} {look.theme}: {fault}" for fault in faults_of(page)]
    return faults


def become_vera(page: Page, demo: Demo) -> None:
    """Have alice invite a viewer, and accept."""
    sign_in(page, ALICE)
    page.goto("/users")
    page.get_by_label("Email address").fill(VERA)
    page.get_by_label("Role").select_option("viewer")
    page.get_by_role("button", name="Send invitation").click()
    expect(page.get_by_role("cell", name=VERA)).to_be_visible()
    page.context.clear_cookies()
    page.goto(link_in_mail_to(demo.mail, VERA))
    page.get_by_label("Your name").fill("Vera Viewer")
    page.get_by_label("Password", exact=True).fill("a long first password")
    page.get_by_label("Confirm password").fill("a long first password")
    page.get_by_role("button", name="Create account and join").click()
    page.wait_for_url("**/dashboards/**")


def faults_on_the_way(page: Page, looks: Sequence[Look], *, seen_kinds: set[str]) -> str:
    """Return what is wrong with the pages that links lead to, a line for each fault.

    Args:
        seen_kinds: the kinds of pages that need no look; the others are added.
    """
    faults = []
    for kind in pages_from(page, "/dashboards/", without={REFERENCE} & seen_kinds):
        if kind not in seen_kinds:
            faults += faults_in(page, looks)
            seen_kinds.add(kind)
    return "\n".join(faults)


def test_no_page_has_a_serious_fault(open_browser: OpenBrowser) -> None:
    seen_kinds = {REFERENCE}
    for email, look in ((ALICE, NARROW_LIGHT), (OLIVIA, WIDE_DARK)):
        page = open_browser()
        sign_in(page, email)
        assert faults_on_the_way(page, (look,), seen_kinds=seen_kinds) == ""


@pytest.mark.parametrize("email", [OLIVIA, ALICE, BOB])
def test_no_page_has_a_serious_fault_in_any_look(open_browser: OpenBrowser, email: str) -> None:
    page = open_browser()
    sign_in(page, email)
    # The API reference is long, and the same for everybody: alice looks at it for all.
    seen_kinds = set() if email == ALICE else {REFERENCE}
    assert faults_on_the_way(page, ALL_LOOKS, seen_kinds=seen_kinds) == ""


def test_no_page_of_a_viewer_has_a_serious_fault(open_browser: OpenBrowser, demo: Demo) -> None:
    page = open_browser()
    become_vera(page, demo)
    assert faults_on_the_way(page, (WIDE_LIGHT, NARROW_DARK), seen_kinds={REFERENCE}) == ""


def test_the_pages_before_signing_in_have_no_serious_fault(open_browser: OpenBrowser) -> None:
    page = open_browser()
    for path in OPEN_TO_NOBODY:
        page.goto(path)
        assert faults_in(page, (WIDE_LIGHT, NARROW_DARK)) == []


def test_answers_that_no_link_leads_to_have_no_serious_fault(open_browser: OpenBrowser) -> None:
    page = open_browser()
    sign_in(page, ALICE)
    page.goto("/nothing-is-here")
    faults = faults_in(page, (WIDE_DARK, NARROW_LIGHT))
    page.goto("/jobs/new")
    page.get_by_role("button", name="Submit job").click()
    expect(page.locator("#name-error")).to_be_visible()
    faults += faults_in(page, (WIDE_DARK, NARROW_LIGHT))
    page.goto("/settings/second-factor")
    page.get_by_role("button", name="Set up").click()
    expect(page.get_by_role("button", name="Turn on")).to_be_visible()
    faults += faults_in(page, (WIDE_DARK, NARROW_LIGHT))
    page.goto("/appliances")
    page.get_by_role("link", name="dgx-05", exact=True).click()
    page.wait_for_url("**/appliances/*")
    page.goto(f"{page.url}/events")
    faults += faults_in(page, (WIDE_DARK, NARROW_LIGHT))
    assert not faults, "\n".join(faults)


def test_a_support_visit_and_a_removal_have_no_serious_fault(open_browser: OpenBrowser) -> None:
    page = open_browser()
    sign_in(page, OLIVIA)
    page.goto("/tenants")
    page.get_by_label("Name", exact=True).fill("Initech")
    page.get_by_role("button", name=re.compile("Add")).click()
    expect(page.get_by_role("heading", name="Initech", level=1)).to_be_visible()
    page.locator(".vd-actions").get_by_role("button", name="Close").click()
    page.locator("[data-confirm-yes]").click()
    page.get_by_role("link", name="Remove").click()
    expect(page.get_by_role("heading", name="Remove Initech")).to_be_visible()
    faults = faults_in(page, (WIDE_DARK, NARROW_LIGHT))
    page.goto("/tenants")
    page.get_by_role("link", name="Acme Robotics").click()
    page.get_by_role("link", name="View as").first.click()
    page.get_by_label("Reason").fill(REASON)
    page.get_by_role("button", name="Start session").click()
    expect(page.get_by_text(REASON)).to_be_visible()
    show(page, "/jobs")
    faults += faults_in(page, (WIDE_DARK, NARROW_LIGHT))
    assert not faults, "\n".join(faults)
