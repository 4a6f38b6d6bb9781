"""A part of a GPU in the browser: what is offered while a user types, and how GPUs are shared."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import screenshot
from tests.fixtures.polling import eventually

pytestmark = [pytest.mark.nightly, pytest.mark.needs_chromium, pytest.mark.timeout(300)]

MIG_OFFER = re.compile(r"MIG 1g\.10gb with \S+ GiB on NVIDIA H100 80GB HBM3: \d+ of 14 free now")
# The form waits for a pause in typing, then for the portal.
ANSWER_MS = 1500
ALICE, BOB = "alice@acme.example", "bob@acme.example"


def test_the_form_offers_slices_with_their_isolation(sign_in: Callable[..., Page]) -> None:
    page = sign_in(BOB, path="/jobs/new")
    offers = page.locator("[data-offers]")
    expect(offers).to_be_hidden()
    expect(page.get_by_label("MIG profile")).to_be_hidden()
    page.get_by_label("GPU request").select_option("part")
    expect(page.get_by_label("GPUs", exact=True)).to_be_hidden()
    memory = page.get_by_label("GPU memory")

    def offered() -> bool:
        """Return whether the simulated appliances have been cut, which they are after a start."""
        memory.fill("")
        memory.press_sequentially("8 GiB")
        page.wait_for_timeout(ANSWER_MS)
        text = offers.inner_text()
        return bool(MIG_OFFER.search(text)) and "MPS share of 25 % with 20 GiB" in text

    eventually(offered, within_seconds=120, what="offers of slices")
    expect(offers).to_contain_text("a fatal fault of one job ends the others on the GPU")
    screenshot(page, "job-form-slices")
    page.get_by_label("GPU request").select_option("profile")
    page.get_by_label("MIG profile").fill("9g.99gb")
    expect(offers).to_have_text("No GPU that the job may use has that.")
    page.get_by_label("MIG profile").fill("1g.10gb")
    expect(offers).to_contain_text("MIG 1g.10gb")
    page.get_by_label("Name", exact=True).fill("sliced")
    page.get_by_label("Container image").fill("acme/notebook:5.2")
    page.get_by_role("button", name="Submit job").click()
    expect(page.locator("body")).to_contain_text("Job sliced submitted")
    requested = page.locator("dt", has_text="Requested").locator("xpath=following-sibling::dd[1]")
    expect(requested).to_contain_text("1g.10gb, 1 core")


def test_an_admin_previews_a_policy_before_it_is_saved(sign_in: Callable[..., Page]) -> None:
    page = sign_in(ALICE, path="/appliances/gpu-policies")
    page.get_by_label("Name").fill("Trial")
    page.get_by_label("Share GPUs by").select_option("mps")
    expect(page.get_by_label("MIG layout")).to_be_hidden()
    page.get_by_label("Shares").fill("8")
    page.get_by_label("GPU model").fill("H100")
    page.get_by_role("button", name="Preview effect").click()
    expect(page.get_by_role("status").filter(has_text="Not saved yet")).to_contain_text("Covers")
    expect(page.locator("table").first).not_to_contain_text("Trial")
    page.get_by_label("Shares").fill("49")
    page.get_by_role("button", name="Add policy").click()
    expect(page.locator("#shares-error")).to_contain_text("enter 1 to 48")
    screenshot(page, "gpu-policies")
