"""A suspended provider appeals in the browser, and returns."""

from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import select
from sqlalchemy.orm import Session

from cli.bootstrap import DEMO_PASSWORD
from cli.database import open_database
from core.clock import utc_now
from marketplace.consequences.standing import evaluate
from tenants.models import Tenant, User
from tests.cast import Cast
from tests.deployment import ALICE, BOB, CHARLIE, OLIVIA, make_deployment, serving
from tests.e2e.conftest import STEP_MS, screenshot
from tests.e2e.walking import sign_in
from tests.fixtures.file_modes import no_umask
from tests.unit.marketplace.builders import add_late_starts
from tests.unit.portal.market import make_market

pytestmark = [pytest.mark.nightly, pytest.mark.needs_chromium, pytest.mark.timeout(300)]
DAY = timedelta(days=1)


def cast_of(session: Session) -> Cast:
    """Return the demo's tenants and users."""
    users = {user.email: user for user in session.scalars(select(User))}
    tenants = {tenant.slug: tenant for tenant in session.scalars(select(Tenant))}
    people = {
        address.partition("@")[0]: users[address] for address in (ALICE, BOB, CHARLIE, OLIVIA)
    }
    return Cast(acme=tenants["acme"], globex=tenants["globex"], **people)


def suspend_acme(session: Session) -> None:
    """Let acme be suspended yesterday, after it had notice and a week to mend."""
    now = utc_now()
    market = make_market(session, cast_of(session), now=now - 20 * DAY)
    noticed_at = now - 8 * DAY
    late = [noticed_at - number * DAY for number in range(1, 6)]
    add_late_starts(session, market.contract, *late)
    assert evaluate(session, market.contract.provider_id, now=noticed_at)
    add_late_starts(session, market.contract, noticed_at + DAY, noticed_at + 2 * DAY)
    assert evaluate(session, market.contract.provider_id, now=now - DAY)


def test_a_suspended_provider_appeals_and_returns(chromium: Browser, tmp_path: Path) -> None:
    deployment = make_deployment(tmp_path)
    with open_database(deployment.settings) as (_engine, sessions), sessions.begin() as session:
        suspend_acme(session)
    provider, operator = (chromium.new_context(base_url=deployment.url) for _ in range(2))
    for context in (provider, operator):
        context.set_default_timeout(STEP_MS)
    environ = {
        "VEDETTE_MARKETPLACE": "true",
        "VEDETTE_MARKETPLACE_REQUIRES_VERIFICATION": "false",
    }
    with (
        no_umask(),
        serving(deployment, environ=environ),
        closing(provider),
        closing(operator),
    ):
        page, console = provider.new_page(), operator.new_page()
        sign_in(page, ALICE)
        page.goto("/provider")
        page.get_by_role("link", name="Why, and how to return").click()
        alert = page.get_by_role("alert").filter(has_text="You are suspended as a provider.")
        expect(alert).to_contain_text("2 breaches since the notice")
        expect(page.get_by_text("The suspension lasts until")).to_be_visible()
        page.get_by_text("7 of 7 breaches").click()
        expect(page.get_by_text("Late start: 900 s of 300 s promised.").first).to_be_visible()
        page.get_by_label("Your appeal").fill("Our carrier was down; its report is public.")
        page.get_by_role("button", name="Send appeal").click()
        expect(page.get_by_text("Appeal sent to the operator")).to_be_visible()
        screenshot(page, "30-suspended-provider")

        console.goto("/login")
        console.get_by_label("Email address").fill(OLIVIA)
        console.get_by_label("Password").fill(DEMO_PASSWORD)
        console.get_by_role("button", name="Sign in").click()
        console.wait_for_url(lambda url: "/login" not in url)
        console.goto("/console/market")
        console.get_by_role("link", name="Standings 1 appeal").click()
        expect(console.get_by_text("Our carrier was down")).to_be_visible()
        console.get_by_label("Answer").fill("The carrier confirms it.")
        console.get_by_role("button", name="Accept appeal").click()
        expect(console.get_by_text("No appeal waits for an answer.")).to_be_visible()
        screenshot(console, "31-appeals")

        page.goto("/provider")
        expect(page.get_by_role("link", name="New offer")).to_be_visible()
        page.get_by_role("link", name="Standing").click()
        expect(
            page.get_by_text("The appeal was accepted: The carrier confirms it.")
        ).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)
        page.goto("/market")
        expect(page.get_by_text("H100 in Lyon").first).to_be_visible()
