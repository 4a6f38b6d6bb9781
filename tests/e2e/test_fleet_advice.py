"""Fleet advice in Chromium: computed by the server from two weeks of jobs, read, and dismissed."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import select

from cli.database import open_database
from core.clock import utc_now
from tenants.models import Appliance, Tenant, User
from tests.deployment import ALICE, OLIVIA, Deployment, make_deployment, serving
from tests.e2e.axe import faults_of
from tests.e2e.conftest import STEP_MS, screenshot
from tests.e2e.walking import NARROW_DARK, NARROW_LIGHT, WIDE_DARK, WIDE_LIGHT, put_on, sign_in
from tests.fixtures.file_modes import no_umask
from tests.unit.jobqueue.advice_builders import A100, DAY, H100, busy_fleet, close_ledger

pytestmark = [pytest.mark.nightly, pytest.mark.needs_chromium, pytest.mark.timeout(900)]

COMPUTED_MS = 300_000


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """A server with a fleet of acme's that was busy until this Monday."""
    made, now = make_deployment(tmp_path), utc_now()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    monday = midnight - timedelta(days=now.weekday()) - 14 * DAY
    with open_database(made.settings) as (_engine, sessions), sessions.begin() as session:
        tenant = session.scalars(select(Tenant).where(Tenant.slug == "acme")).one()
        alice = session.scalars(select(User).where(User.email == ALICE)).one()
        busy_fleet(session, alice, tenant, monday=monday)
        for appliance in session.scalars(select(Appliance)):
            appliance.last_seen_at = now
        close_ledger(session, until=now.replace(minute=0, second=0, microsecond=0))
    with no_umask(), serving(made):
        yield made


def opened(chromium: Browser, deployment: Deployment, email: str) -> Page:
    context = chromium.new_context(base_url=deployment.url)
    context.set_default_timeout(STEP_MS)
    page = context.new_page()
    sign_in(page, email)
    return page


def test_advice_is_computed_read_and_dismissed(chromium: Browser, deployment: Deployment) -> None:
    page = opened(chromium, deployment, ALICE)
    with closing(page.context):
        page.get_by_role("link", name="Fleet advice").click()
        # The server computes it when it starts; the page follows.
        short = page.get_by_role("listitem").filter(has_text=f"Too few {H100} GPUs")
        expect(short).to_contain_text("320 GPU-hours", timeout=COMPUTED_MS)
        expect(short).to_contain_text("With one more appliance like dgx-01 (8 GPUs)")
        expect(
            page.get_by_role("heading", name=f"1 appliance with {A100} had no jobs")
        ).to_be_visible()
        expect(page.get_by_role("row", name="One more like dgx-01")).to_contain_text("0s")
        page.get_by_role("combobox", name="GPU model").select_option(H100)
        page.get_by_role("combobox", name="Figure").select_option("GPUs that were short")
        week = page.get_by_role("region", name="GPUs that were short by day and hour")
        expect(week.locator("td.fa-level-5").first).to_be_visible()
        assert week.locator("td.fa-level-0").count() > week.locator("td.fa-level-5").count() > 0
        for look in (WIDE_LIGHT, WIDE_DARK, NARROW_LIGHT, NARROW_DARK):
            put_on(page, look)
            assert not faults_of(page)
            screenshot(page, f"60-advice-{look.width}-{look.theme}")
        put_on(page, WIDE_LIGHT)
        short.get_by_role("button", name="Dismiss").click()
        expect(page.get_by_text("Advice dismissed for 30 days")).to_be_visible()
        expect(short.get_by_role("button", name="Dismiss")).to_have_count(0)
        page.get_by_text("1 dismissed").click()
        page.get_by_role("button", name="Show again").click()
        expect(short.get_by_role("button", name="Dismiss")).to_be_visible()
        page.get_by_role("button", name="Compute now").click()
        expect(page.get_by_text("The advice is computed now.")).to_be_visible()
        expect(page.get_by_role("button", name="Compute now", disabled=False)).to_be_visible(
            timeout=COMPUTED_MS
        )
    operator = opened(chromium, deployment, OLIVIA)
    with closing(operator.context):
        operator.get_by_role("link", name="Fleet advice").click()
        expect(operator.get_by_role("row", name="Acme")).to_contain_text("320")
        assert not faults_of(operator)
