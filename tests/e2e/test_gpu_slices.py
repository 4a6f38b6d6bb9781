"""A GPU that jobs share is a bar of its slots: readable in both themes, and a way to its jobs."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.deployment import ALICE
from tests.e2e.axe import faults_of
from tests.e2e.conftest import screenshot

pytestmark = [pytest.mark.nightly, pytest.mark.needs_chromium, pytest.mark.timeout(240)]
SignIn = Callable[..., Page]
# The demo submits jobs for slices once its agents run.
SLOW_MS = 120_000


def slots_of_jobs(page: Page) -> Locator:
    return page.locator("#gpu-slices .vdd-slot.is-job")


def test_the_slots_of_a_gpu_show_who_has_them_and_lead_to_their_jobs(sign_in: SignIn) -> None:
    page = sign_in(ALICE, path="/dashboards/?refresh=2s")
    page.get_by_role("link", name="lab-01", exact=True).click()
    bar = page.locator("#appliance-gpu-table .vdd-slots").first
    expect(bar.locator(".is-job").first).to_be_visible(timeout=SLOW_MS)
    page.get_by_role("link", name="GPU 0", exact=True).first.click()

    first = slots_of_jobs(page).first
    expect(first).to_be_visible(timeout=SLOW_MS)
    expect(first).to_have_attribute("title", re.compile(r"g\.\d+gb, slots? \d.*: job .+ of .+"))
    expect(page.locator("#gpu-slices tbody tr").first).to_contain_text("GiB")
    expect(page.locator("#gpu-slice-memory .js-line").first).to_be_visible(timeout=SLOW_MS)
    for theme in ("light", "dark"):
        page.evaluate("(theme) => (document.documentElement.dataset.bsTheme = theme)", theme)
        assert faults_of(page) == [], theme
        screenshot(page, f"gpu-slices-{theme}")

    page.set_viewport_size({"width": 390, "height": 844})
    assert faults_of(page) == []
    page.set_viewport_size({"width": 1440, "height": 900})

    name = first.inner_text()
    first.click()
    expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
    expect(page.locator("#job-stats")).to_contain_text("GPU slice")
