"""The job form in Chromium, which gets its pages from the application without a server."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.conftest import headless_chromium
from tests.unit.portal.conftest import Browser

pytestmark = pytest.mark.needs_chromium

URL = "http://portal.example"
ZONE = "Europe/Oslo"
FIT = f"{URL}/jobs/new/fit"
# Others are streams, and what pages ask for every few seconds.
ANSWERED = (f"{URL}/jobs/new", f"{URL}/static/")


@pytest.fixture
def page(alice: Browser) -> Iterator[Page]:
    """A page of alice's."""

    def answer(route: Route) -> None:
        request = route.request
        if not request.url.startswith(ANSWERED):
            route.abort()
            return
        reply = alice.client.open(
            request.url.removeprefix(URL),
            method=request.method,
            data=request.post_data_buffer,
            content_type=request.headers.get("content-type"),
        )
        with closing(reply):
            headers = {"Content-Type": reply.content_type}
            route.fulfill(status=reply.status_code, headers=headers, body=reply.data)

    # Without, the page is loaded again.
    alice.client.set_cookie("vedette-zone", ZONE)
    with headless_chromium() as chromium:
        opened = chromium.new_page(timezone_id=ZONE)
        opened.route(f"{URL}/**", answer)
        yield opened


def test_an_answer_that_arrives_during_a_click_moves_no_button(page: Page) -> None:
    with page.expect_response(FIT):  # what the page asks when it opens
        page.goto(f"{URL}/jobs/new")
    with page.expect_response(FIT):
        page.get_by_label("Container image").fill("acme/notebook:5.2")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(FIT, hold)
    page.get_by_label("GPUs", exact=True).fill("1")
    button = page.get_by_role("button", name="Check placement")
    button.hover()
    page.mouse.down()
    while not held:
        page.wait_for_timeout(20)
    before = button.bounding_box()
    with page.expect_response(FIT):
        held.pop().fallback()
    # The script has shown the answer, or left it until later.
    page.evaluate("new Promise((done) => setTimeout(() => requestAnimationFrame(done), 100))")
    assert button.bounding_box() == before
    page.mouse.up()
    expect(page.locator("#name-error")).to_be_visible()

    page.get_by_label("GPUs", exact=True).hover()
    page.unroute(FIT, hold)
    with page.expect_response(FIT):
        page.get_by_label("GPUs", exact=True).fill("2")
    expect(page.locator("[data-offers]")).to_be_visible()
