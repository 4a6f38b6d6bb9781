"""Pages that refresh themselves, while the server is frozen."""

import re
import signal
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.deployment import ALICE, make_deployment, serving
from tests.e2e.conftest import STEP_MS, screenshot
from tests.e2e.walking import sign_in
from tests.fixtures.file_modes import no_umask

pytestmark = [pytest.mark.nightly, pytest.mark.needs_chromium, pytest.mark.timeout(300)]


def test_a_frozen_server_is_visible_on_dashboards_and_lists(
    chromium: Browser, tmp_path: Path
) -> None:
    deployment = make_deployment(tmp_path)
    context = chromium.new_context(base_url=deployment.url)
    context.set_default_timeout(STEP_MS)
    with no_umask(), serving(deployment) as server, closing(context):
        dashboard, jobs = context.new_page(), context.new_page()
        sign_in(dashboard, ALICE)
        jobs.goto("/jobs")
        for page in (dashboard, jobs):
            expect(page.locator("[data-updated]")).to_have_text(re.compile(r"Updated \ds ago"))
            expect(page.locator(".vd-outdated")).to_have_count(0)
        server.send_signal(signal.SIGSTOP)
        for page in (dashboard, jobs):
            warning = page.get_by_role("alert").filter(has_text="out of date")
            expect(warning).to_have_text(re.compile(r"^Updated (1[6-9]|[2-9]\d)s ago\."))
        screenshot(dashboard, "20-frozen")
        server.send_signal(signal.SIGCONT)
        for page in (dashboard, jobs):
            expect(page.locator(".vd-outdated")).to_have_count(0)
