"""Reputation moves with its evidence: in Chromium, on a real server.

Globex runs jobs on an appliance of Acme and rates them; then the appliance fails.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import select

from cli.database import open_database
from core.clock import utc_now
from core.db import SessionFactory, transaction
from marketplace.cases import Dimension
from marketplace.models import Contract
from marketplace.reputation.days import DayCount, DayKey, day_of, write_days
from marketplace.reputation.refresh import refresh_reputations
from tenants.models import OfferedAppliance, Tenant, User
from tests.cast import Cast
from tests.deployment import ALICE, BOB, CHARLIE, OLIVIA, Deployment, make_deployment, serving
from tests.e2e.conftest import STEP_MS, screenshot
from tests.e2e.walking import sign_in
from tests.unit.marketplace.attempts import LOST, end_attempts
from tests.unit.portal.market import make_market
from timeseries.store import StoreUnavailableError

pytestmark = [pytest.mark.nightly, pytest.mark.needs_chromium, pytest.mark.timeout(300)]

DAYS = 20
SETTINGS = {
    "VEDETTE_MARKETPLACE": "true",
    "VEDETTE_MARKETPLACE_REQUIRES_VERIFICATION": "false",
}


class NoStore:
    """Stands for the samples, which only the server's own process can read."""

    def query_range(self, _query: object) -> Sequence[object]:
        raise StoreUnavailableError("the server has it")


class Market:
    """The contract of Globex with Acme, and what happens under it."""

    def __init__(self, deployment: Deployment, sessions: SessionFactory) -> None:
        self.url = deployment.url
        self._sessions = sessions
        with transaction(sessions) as session:
            tenants = {row.slug: row for row in session.scalars(select(Tenant))}
            users = {row.email: row for row in session.scalars(select(User))}
            self._cast = Cast(
                acme=tenants["acme"],
                globex=tenants["globex"],
                alice=users[ALICE],
                bob=users[BOB],
                charlie=users[CHARLIE],
                olivia=users[OLIVIA],
            )
            market = make_market(session, self._cast, now=utc_now() - DAYS * timedelta(days=1))
            self.contract_id, self.offer_id = market.contract.id, market.offer.id
            appliance_id = session.scalars(
                select(OfferedAppliance.appliance_id).where(
                    OfferedAppliance.offer_id == self.offer_id
                )
            ).one()
            today = day_of(utc_now())
            days = {
                DayKey(
                    today - age * timedelta(days=1),
                    Dimension.AVAILABILITY,
                    appliance_id,
                    "reachable",
                ): DayCount(total=1.0, good=1.0, measured=1.0)
                for age in range(1, DAYS)
            }
            write_days(session, self._cast.acme.id, days)

    def end(self, *outcomes: dict[str, object], at: datetime) -> None:
        """Let attempts of Globex end, and bring reputations up to date."""
        with transaction(self._sessions) as session:
            contract = session.get_one(Contract, self.contract_id)
            end_attempts(session, self._cast, contract, *outcomes, at=at)
        self.refresh()

    def refresh(self) -> None:
        """Bring reputations up to date, as the scheduler does each hour."""
        refresh_reputations(
            self._sessions,
            NoStore(),  # type: ignore[arg-type] # only what is asked of it
            now=utc_now(),
            half_life=timedelta(days=60),
        )


@pytest.fixture
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    deployment = make_deployment(tmp_path_factory.mktemp("deployment"))
    with (
        serving(deployment, environ=SETTINGS),
        open_database(deployment.settings) as (_engine, sessions),
    ):
        yield Market(deployment, sessions)


def enter(chromium: Browser, market: Market, email: str = "") -> Page:
    context = chromium.new_context(
        base_url=market.url, viewport={"width": 1280, "height": 900}, locale="en-US"
    )
    context.set_default_timeout(STEP_MS)
    page = context.new_page()
    if email:
        sign_in(page, email)
    return page


def score(page: Page) -> int:
    """Return the score of the page about the reputation."""
    text = page.locator(".mk-figures dd").first.inner_text()
    number = re.match(r"\d+", text)
    assert number is not None
    return int(number[0])


def test_reputation_moves_with_its_evidence(market: Market, chromium: Browser) -> None:
    now = utc_now()
    market.end(*([{}] * 12), at=now - timedelta(hours=3))
    provider = enter(chromium, market, ALICE)
    provider.goto("/provider/reputation")
    good = score(provider)
    assert good > 72
    expect(provider.get_by_text("12 attempts of a customer")).to_be_visible()
    expect(provider.get_by_text("Nothing speaks against you.")).to_be_visible()
    history = provider.get_by_role("img", name=re.compile("^Reputation from"))
    expect(history).to_be_visible()
    screenshot(provider, "reputation-good")

    customer = enter(chromium, market, CHARLIE)
    customer.goto(f"/contracts/{market.contract_id}")
    customer.get_by_role("link", name="Rate").click()
    customer.get_by_label("Rating").select_option("2")
    customer.get_by_label("Comment").fill("The disks are slow.")
    customer.get_by_role("button", name="Save rating").click()
    expect(customer.get_by_text("Rating saved. Thank you.")).to_be_visible()
    expect(customer.get_by_text("2 of 5 stars")).to_be_visible()
    screenshot(customer, "reputation-rated")

    market.end(*([LOST] * 6), at=now - timedelta(minutes=5))
    provider.reload()
    assert score(provider) < good - 5
    costs = provider.get_by_role("region", name="What costs most")
    costs.get_by_role("link", name="Appliance lost").click()
    expect(provider.get_by_text("6 attempts of a customer")).to_be_visible()
    expect(provider.get_by_text("12 attempts of a customer")).to_have_count(0)
    raising = provider.get_by_role("region", name="What would raise it")
    expect(raising.get_by_text("of new customers that no fault of your")).to_be_visible()
    screenshot(provider, "reputation-bad")
    provider.goto("/provider/reputation?dimension=satisfaction")
    expect(provider.get_by_text("The disks are slow.")).to_be_visible()
    expect(provider.locator("main")).not_to_contain_text("Globex")

    visitor = enter(chromium, market)
    visitor.goto(f"/market/offers/{market.offer_id}")
    expect(visitor.get_by_text("Reputation of Acme")).to_be_visible()
    expect(visitor.get_by_role("img", name=re.compile("^Jobs: .* of 100"))).to_be_visible()
    screenshot(visitor, "reputation-public")
