"""Dashboards and reports while the time series store is slow, and while it is down."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from dash_app.reports.report import ReportKind
from tests.deployment import ALICE, Deployment, make_deployment, serving
from tests.e2e.conftest import STEP_MS
from tests.e2e.walking import sign_in
from tests.fixtures.databases import victoria_metrics_process

pytestmark = [pytest.mark.needs_chromium, pytest.mark.nightly, pytest.mark.timeout(600)]

NEEDING_SAMPLES = {ReportKind.DISK_CAPACITY, ReportKind.NETWORK}
PATIENCE_MS = 60_000


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return make_deployment(tmp_path)


@pytest.fixture
def page(chromium: Browser, deployment: Deployment) -> Iterator[Page]:
    context = chromium.new_context(base_url=deployment.url)
    context.set_default_timeout(STEP_MS)
    yield context.new_page()
    context.close()


def test_pages_say_that_the_store_is_slow_or_down_and_recover(
    page: Page, deployment: Deployment, tmp_path: Path
) -> None:
    with victoria_metrics_process(tmp_path) as (url, store):
        environ = {"TIMESERIES_URL": url.replace("http://", "victoriametrics://")}
        with serving(deployment, environ=environ):
            sign_in(page, ALICE)
            page.goto("/appliances/add")
            page.goto("/dashboards/?refresh=off")
            expect(page.locator("#page")).to_contain_text("No appliances yet")
            for number in (signal.SIGSTOP, signal.SIGKILL):
                store.send_signal(number)
                # A stopped process takes connections and never answers.
                page.goto("/dashboards/?refresh=5s", timeout=PATIENCE_MS)
                expect(page.locator("#fleet-problem")).not_to_be_empty(timeout=PATIENCE_MS)
                for kind in ReportKind:
                    answer = page.goto(f"/reports?kind={kind}", timeout=PATIENCE_MS)
                    assert answer is not None
                    is_lost = kind in NEEDING_SAMPLES
                    assert answer.status == (503 if is_lost else 200), kind
                    expect(page.locator("h1")).to_be_visible()
                if number == signal.SIGSTOP:
                    store.send_signal(signal.SIGCONT)
                    page.goto("/dashboards/?refresh=5s")
                    expect(page.locator("#fleet-problem")).to_be_empty(timeout=PATIENCE_MS)
