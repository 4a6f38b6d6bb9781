"""The marketplace in a browser: from an offer to an invoice that agrees with a ledger by hand."""

import csv
import io
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from core.db import SessionFactory
from marketplace.accounts import account_of, admit
from marketplace.states import AccountState, Side
from tests.cast import PASSWORD, Cast, FrozenClock, scope_of
from tests.e2e.conftest import STEP_MS, screenshot
from tests.fixtures.market_site import MarketSite, market_site, settings_of_market
from tests.servers import require_program
from timeseries.store import Store

pytestmark = [pytest.mark.nightly, pytest.mark.needs_chromium, pytest.mark.timeout(600)]

# A Monday: 14:00 in Paris. The month has 36 more hours.
OFFERED_AT = datetime(2026, 3, 30, 12, tzinfo=UTC)
APRIL = datetime(2026, 4, 1, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
BEGUN_AT, ENDED_AT = OFFERED_AT + 10 * MINUTE, OFFERED_AT + 3 * HOUR + 40 * MINUTE
DOWN_FROM, DOWN_UNTIL = OFFERED_AT + 10 * HOUR, OFFERED_AT + 12 * HOUR
ISSUED_AT = APRIL + timedelta(days=2, minutes=5)

CENT, LAST_PLACE = Decimal("0.01"), Decimal("0.00000001")
# Seconds of two GPUs in each hour, and the price: 3.10 until 16:00 in Paris, then 2.45.
USE = [
    (2 * 50 * 60, Decimal("3.10")),
    (2 * 60 * 60, Decimal("3.10")),
    (2 * 60 * 60, Decimal("2.45")),
    (2 * 40 * 60, Decimal("2.45")),
]


def cents(amount: Decimal) -> Decimal:
    return amount.quantize(CENT, ROUND_HALF_UP)


def exact(amount: Decimal) -> Decimal:
    return amount.quantize(LAST_PLACE, ROUND_HALF_EVEN)


def ledger_by_hand() -> dict[str, Decimal]:
    """Return what the documents of March say."""
    lines = [(price, exact(seconds * price / 3600)) for seconds, price in USE]
    discounts = [-exact(amount * Decimal("7.5") / 100) for _, amount in lines]
    use = sum((amount for _, amount in lines), Decimal(0))
    # Available for 34 of 36 hours, 94.44 %: below 95 %, a quarter of the month.
    credit = -exact((use + sum(discounts, Decimal(0))) * 25 / 100)
    items = {
        "at 3.10": cents(lines[0][1] + lines[1][1]),
        "at 2.45": cents(lines[2][1] + lines[3][1]),
        "discount": cents(sum(discounts, Decimal(0))),
        "credit": cents(credit),
    }
    net = sum(items.values(), Decimal(0))
    tax, fee = cents(net * 25 / 100), cents(net * 10 / 100)
    return items | {"net": net, "tax": tax, "total": net + tax, "fee": -fee, "earned": net - fee}


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(OFFERED_AT)


@pytest.fixture
def site(
    sessions: SessionFactory, cast: Cast, store: Store, clock: FrozenClock, tmp_path: Path
) -> Iterator[MarketSite]:
    """A portal that has admitted acme as a provider, and globex as a customer."""
    with sessions.begin() as session:
        for tenant, side in ((cast.acme, Side.PROVIDER), (cast.globex, Side.CUSTOMER)):
            state = AccountState.ACTIVE
            admit(session, scope_of(cast.olivia), tenant.id, side, state, now=clock())
        account_of(session, cast.globex.id).legal_name = "Globex GmbH"
    settings = settings_of_market(tmp_path)
    with market_site(
        settings, sessions=sessions, store=store, clock=clock, folder=tmp_path / "agent"
    ) as site:
        yield site


@pytest.fixture
def open_as(chromium: Browser, site: MarketSite) -> Iterator[Callable[[str], Page]]:
    """Return a function that signs in with a browser of its own; an error of a page fails."""
    faults: list[str] = []
    with ExitStack() as stack:

        def open_as(email: str) -> Page:
            context = stack.enter_context(
                chromium.new_context(base_url=site.url, viewport={"width": 1440, "height": 900})
            )
            context.set_default_timeout(STEP_MS)
            page = context.new_page()
            page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
            # A page without charts, which take seconds.
            page.goto("/market/terms")
            page.get_by_role("link", name="Sign in").first.click()
            page.get_by_label("Email address").fill(email)
            page.get_by_label("Password").fill(PASSWORD)
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url(lambda url: "/login" not in url)
            return page

        yield open_as
    assert faults == []


def offer_appliance(page: Page) -> None:
    page.goto("/provider")
    page.get_by_role("link", name="New offer").first.click()
    for label, text in {
        "Name": "H100 in Lyon",
        "Price of a GPU for an hour": "2.45",
        "Prices at certain hours": "Mon-Fri 08-16 3.10",
        "Time zone of hours": "Europe/Paris",
        "Discount in percent": "7.5",
        "Region": "eu-west",
        "Availability in percent of a month": "99.5",
        "Credits": "99.5: 10\n95: 25",
    }.items():
        page.get_by_label(re.compile(f"^{label}")).fill(text)
    page.get_by_label("dgx-01").check()
    page.get_by_role("button", name="Save draft").click()
    page.get_by_role("button", name="Publish").click()
    expect(page.locator(".mk-offer-state")).to_have_text("published")
    screenshot(page, "30-offer")


def rent(page: Page) -> str:
    """Take the offer that the catalogue lists; return the path of the contract."""
    page.goto("/rent")
    # 3.10 less 7.5 %.
    expect(page.locator("table.mk-entries")).to_contain_text("EUR 2.8675")
    page.get_by_role("link", name="H100 in Lyon").click()
    terms = page.locator("dl.mk-terms")
    for text in ("99.5 %", "7.5 %"):
        expect(terms).to_contain_text(text)
    page.get_by_role("button", name="Accept terms and rent").click()
    page.wait_for_url("**/contracts/*")
    expect(page.get_by_role("heading", level=1)).to_have_text("H100 in Lyon")
    return page.url


def submit(page: Page) -> str:
    """Submit a job that pays up to 3.00; return its address."""
    page.goto("/jobs/new")
    for label, text in {"Name": "train", "Container image": "python:3.13", "GPUs": "2"}.items():
        page.get_by_label(re.compile(f"^{label}\\b")).first.fill(text)
    page.get_by_text("Rented appliances").click()
    page.get_by_label(re.compile("^Highest price of a GPU-hour")).fill("3.00")
    expect(page.get_by_text("From EUR 5.74 an hour on rented appliances")).to_be_visible()
    page.get_by_role("button", name="Submit job").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("train"))
    return page.url


def downloaded(page: Page, name: str) -> bytes:
    with page.expect_download() as started:
        page.get_by_role("link", name=name, exact=True).click()
    return started.value.path().read_bytes()


def pdf_text(data: bytes) -> str:
    argv = [require_program("pdftotext", package="poppler-utils"), "-layout", "-", "-"]
    return subprocess.run(argv, input=data, capture_output=True, check=True).stdout.decode()


def assert_document(page: Page, kind: str, totals: dict[str, Decimal]) -> None:
    """Compare the page, PDF and CSV of the only document of a kind with the ledger by hand."""
    ledger = ledger_by_hand()
    items = [ledger[name] for name in ("at 3.10", "at 2.45", "discount", "credit")]
    page.goto("/billing")
    page.get_by_role("link", name="Invoices").first.click()
    page.get_by_role("row").filter(has_text=kind).get_by_role("link").click()
    shown = page.get_by_role("region", name="Items").locator("tbody td[data-label=Amount]")
    expect(shown).to_have_text([f"EUR {amount}" for amount in items])
    rows = page.get_by_role("region", name="Total").locator("tr")
    expect(rows).to_have_text([re.compile(f"^{name}.*EUR {totals[name]}$") for name in totals])
    screenshot(page, f"34-{kind.lower().replace(' ', '-')}")
    cells = list(csv.DictReader(io.StringIO(downloaded(page, "CSV").decode())))
    assert [Decimal(row["amount"]) for row in cells] == items
    assert [row["gpu_hours"] for row in cells[:2]] == ["3.666667", "3.333333"]
    lines = [" ".join(line.split()) for line in pdf_text(downloaded(page, "PDF")).splitlines()]
    for amount in (*items, *totals.values()):
        assert any(line.endswith(f" {amount}") for line in lines), (amount, lines)


def test_an_offer_becomes_an_invoice_that_agrees_with_the_ledger_by_hand(
    site: MarketSite, cast: Cast, open_as: Callable[[str], Page]
) -> None:
    provider, customer = open_as(cast.alice.email), open_as(cast.charlie.email)
    offer_appliance(provider)
    site.run("refresh_offers")
    contract = rent(customer)
    screenshot(customer, "31-contract")
    job = submit(customer)

    site.run("refresh_grants")
    site.pass_time(BEGUN_AT)
    site.place()
    attempt_id = site.agent.start()
    customer.goto(job)
    expect(customer.locator("main")).to_contain_text("running")
    expect(customer.locator("main")).to_contain_text("H100 in Lyon")
    site.pass_time(ENDED_AT)
    site.agent.finish(attempt_id)
    expect(customer.locator("main")).to_contain_text("succeeded")

    site.pass_time(DOWN_FROM - MINUTE)
    site.agent.is_connected = False
    site.pass_time(DOWN_UNTIL - MINUTE)
    site.agent.is_connected = True
    site.pass_time(APRIL)
    site.run("record_usage", "charge_ledger", "detect_breaches")
    for page in (customer, provider):
        page.goto(contract)
        breach = page.get_by_role("list", name="Breaches in 90 days")
        expect(breach).to_contain_text("94.444 % available in 2026-03, 99.5 % promised")
        expect(breach).to_contain_text("credit not settled yet")

    site.clock.now = ISSUED_AT
    for _ in range(3):
        site.run("record_usage")
    site.run("charge_ledger", "detect_breaches", "settle_breaches", "close_months")
    ledger = ledger_by_hand()
    assert [ledger[name] for name in ("credit", "net", "total", "earned")] == [
        *(Decimal("-4.52"), Decimal("13.55"), Decimal("16.94"), Decimal("12.19"))
    ]
    provider, customer = open_as(cast.alice.email), open_as(cast.charlie.email)
    for page in (customer, provider):
        page.goto(contract)
        breach = page.get_by_role("list", name="Breaches in 90 days")
        expect(breach).to_contain_text(f"credit EUR {-ledger['credit']}")
    net = {"Sum of the items": ledger["net"]}
    sums = net | {"Tax, 25 %": ledger["tax"], "Total": ledger["total"]}
    assert_document(customer, "Invoice", sums)
    party = customer.get_by_role("region", name="Made out to")
    expect(party).to_contain_text("Globex GmbH")
    sums = net | {"Fee, 10 %": ledger["fee"], "Total": ledger["earned"]}
    assert_document(provider, "Provider statement", sums)
