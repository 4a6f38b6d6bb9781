"""The public site of the marketplace, and the areas of customers, providers and operators."""

import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import select

from core.db import SessionFactory
from core.settings import ServerSettings
from marketplace.contracts.service import get_contract
from marketplace.models import Account, Contract, Offer
from marketplace.states import AccountState, ContractState, OfferState, VersionState
from marketplace.terms import terms_hash
from portal.forms.market import parse_days, parse_fact, parse_hourly_price, parse_window
from portal.presenters.market import format_hourly_price, format_window
from tenants.models import Membership, Role
from tests.cast import Cast, FrozenClock, make_appliance, scope_of
from tests.unit.portal.conftest import Browser, SignIn, usual_settings
from tests.unit.portal.market import Market, add_offer, admit_both, gpus, terms_of

PUBLIC = ("/market", "/market/terms", "/market/status", "/market/api", "/market/sign-up")


def row(sessions: SessionFactory, market: Market) -> Contract:
    with sessions() as session:
        return session.get_one(Contract, market.contract.id)


@pytest.mark.usefixtures("market")
def test_anybody_sees_what_is_on_offer(nobody: Browser) -> None:
    page = nobody.get("/market").text
    assert "H100 in Lyon" in page
    assert "Acme" in page
    assert "<strong>8</strong> of 8 GPUs are free now" in page
    assert "iso27001" in page
    assert "acme" not in page
    assert 'href="/market/sign-up"' in page


def test_public_pages_need_no_sign_in(nobody: Browser) -> None:
    for path in PUBLIC:
        assert nobody.get(path).status_code == 200


@pytest.mark.usefixtures("market")
def test_the_catalogue_is_filtered(nobody: Browser) -> None:
    for query, is_listed in (
        ("gpu_model=H100", True),
        ("gpu_model=B200", False),
        ("free=8&region=eu-west", True),
        ("free=9", False),
        ("max_price=3.10&memory=80+GiB", True),
        ("max_price=1", False),
        ("facts=iso27001,gdpr", False),
        ("availability=99.9", False),
        ("slices=no&search=lyon", True),
        ("slices=yes", False),
    ):
        assert ("H100 in Lyon" in nobody.get(f"/market?{query}").text) is is_listed


def test_invalid_filters_are_ignored_and_reported(nobody: Browser) -> None:
    for query in (
        "free=many",
        "max_price=-1",
        "availability=101",
        "memory=x",
        "slices=x",
        "sort=x",
        "page=x",
    ):
        name, _, value = query.partition("=")
        answer = nobody.get(f"/market?{query}")
        assert answer.status_code == 200
        assert f"Invalid {name} &#39;{value}&#39;" in answer.text


def test_an_offer_is_public_while_it_is_published(
    nobody: Browser, alice: Browser, market: Market
) -> None:
    path = f"/market/offers/{market.offer.id}"
    page = nobody.get(path).text
    assert "EUR 1.90" in page
    assert "30 days" in page
    assert page.count('class="mk-level-4"') == 5 * 12
    alice.post(f"/provider/offers/{market.offer.id}/state", {"state": "paused"})
    assert nobody.get(path).status_code == 404


def test_an_empty_market_says_so(nobody: Browser) -> None:
    assert "Nothing on offer yet" in nobody.get("/market").text


class TestWithoutMarketplace:
    """With `marketplace = false` nothing of it is there."""

    @pytest.fixture
    def settings(self, tmp_path: Path) -> ServerSettings:
        return replace(usual_settings(tmp_path), marketplace=False)

    def test_public_pages_are_unknown(self, nobody: Browser) -> None:
        for path in (
            *PUBLIC,
            "/api/public/v1/offers",
            "/api/public/v1/status",
        ):
            assert nobody.get(path).status_code == 404

    def test_areas_are_unknown_and_not_in_the_menu(self, alice: Browser) -> None:
        for path in (
            "/rent",
            "/provider",
            "/market-account",
            "/contracts/x",
        ):
            assert alice.get(path).status_code == 404
            menu = alice.get("/appliances").text
            assert "Marketplace" not in menu
            assert 'href="/rent"' not in menu

    def test_the_console_has_nothing_of_it(self, olivia: Browser) -> None:
        assert olivia.get("/console/market").status_code == 404
        assert "/console/market" not in olivia.get("/console").text


@pytest.mark.usefixtures("market")
def test_the_menu_has_the_areas(alice: Browser, olivia: Browser) -> None:
    page = alice.get("/appliances").text
    assert all(f'href="{path}"' in page for path in ("/rent", "/provider", "/market-account"))
    assert 'href="/console/market"' in olivia.get("/console").text


def test_a_customer_takes_an_offer(
    charlie: Browser, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    terms = terms_of()
    with sessions.begin() as session:
        admit_both(session, cast, now=clock.now)
        offer = add_offer(session, cast, "H100 in Lyon", terms, now=clock.now)
    page = charlie.get(f"/rent/offers/{offer.id}").text
    assert terms_hash(terms) in page
    answer = charlie.post(f"/rent/offers/{offer.id}/take", {"terms_hash": terms_hash(terms)})
    assert answer.status_code == 302
    page = charlie.get(answer.headers["Location"]).text
    assert "The contract is active" in page
    assert "Contract with Acme" in page
    assert "rented" in charlie.get("/rent").text
    assert "H100 in Lyon" in charlie.get("/rent/contracts").text


def test_changed_terms_are_not_accepted(
    charlie: Browser, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        admit_both(session, cast, now=clock.now)
        offer = add_offer(session, cast, "H100 in Lyon", terms_of(), now=clock.now)
    charlie.post(f"/rent/offers/{offer.id}/take", {"terms_hash": "0" * 64})
    assert "These are not the terms" in charlie.get("/rent").text
    with sessions() as session:
        assert session.scalars(select(Contract)).all() == []


def proposal(**changes: object) -> dict[str, object]:
    """Return the form of proposed terms."""
    return {
        "price": "2.20",
        "time_zone": "UTC",
        "region": "eu-west",
        "min_seconds": "1m",
        "max_seconds": "1d",
        "start_within_seconds": "0",
        "support_response_seconds": "4h",
        "availability_percent": "99.5",
        "credits": "99.5: 10\n99: 25",
        "facts": "iso27001 until 2027-03-31 https://acme.example/iso",
        "hourly_prices": "Mon-Fri 08-20 2.90",
        "notice_days": "14",
        "note": "For a year.",
        **changes,
    }


def test_a_new_version_is_proposed_compared_and_accepted(
    alice: Browser, charlie: Browser, market: Market, sessions: SessionFactory
) -> None:
    path = f"/contracts/{market.contract.id}"
    answer = alice.post(f"{path}/propose", proposal())
    assert answer.headers["Location"].endswith(path)
    page = charlie.get(path).text
    assert "Version 2 waits for Globex" in page
    assert "<del>EUR 2.45</del>" in page
    assert "<ins>EUR 2.20</ins>" in page
    assert "For a year." in page
    assert "alice@acme.example" not in page
    hashed = re.search(r'name="terms_hash" value="([0-9a-f]{64})"', page)
    assert hashed is not None
    charlie.post(f"{path}/versions/2/accept", {"terms_hash": hashed[1]})
    version = row(sessions, market).versions[1]
    assert (version.state, version.accepted_by) == (VersionState.ACCEPTED, "charlie@globex.example")
    assert version.decoded_terms.price == Decimal("2.20")
    assert len(version.decoded_terms.service_level.credits) == 2
    assert version.decoded_terms.facts[0].evidence_url == "https://acme.example/iso"


def test_a_side_withdraws_and_the_other_declines(
    alice: Browser, charlie: Browser, market: Market, sessions: SessionFactory
) -> None:
    path = f"/contracts/{market.contract.id}"
    alice.post(f"{path}/propose", proposal())
    alice.post(f"{path}/versions/2/withdraw")
    alice.post(f"{path}/propose", proposal(price="2.30"))
    charlie.post(f"{path}/versions/3/decline")
    states = [version.state for version in row(sessions, market).versions]
    assert states == [VersionState.ACCEPTED, VersionState.WITHDRAWN, VersionState.DECLINED]


def test_invalid_terms_are_refused_at_their_field(alice: Browser, market: Market) -> None:
    for changes, error in (
        ({"price": "cheap"}, "is no amount"),
        ({"price": ""}, "Enter a price"),
        ({"time_zone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"hourly_prices": "always 3"}, "write days, hours and price"),
        ({"hourly_prices": "Mon 20-08 3"}, "hours are from 0 until 24"),
        ({"hourly_prices": "Someday 08-20 3"}, "is no day"),
        ({"credits": "99.5"}, "write availability: credit"),
        ({"credits": "99.5: 101"}, "out of range"),
        ({"facts": "iso27001 since ever"}, "write NAME until"),
        ({"facts": "iso27001 until never"}, "is no date"),
        ({"discount_percent": "x"}, "is no number"),
        ({"max_gpus": "-1"}, "Number must be"),
        ({"min_seconds": "2d"}, "min_seconds"),
    ):
        answer = alice.post(f"/contracts/{market.contract.id}/propose", proposal(**changes))
        assert answer.status_code == 422
        assert error in answer.text
        assert 'aria-invalid="true"' in answer.text


def test_notice_is_given(charlie: Browser, market: Market, sessions: SessionFactory) -> None:
    path = f"/contracts/{market.contract.id}"
    charlie.post(f"{path}/notice")
    contract = row(sessions, market)
    assert contract.state is ContractState.NOTICED
    assert "by the customer" in charlie.get(path).text
    charlie.post(f"{path}/end")
    assert row(sessions, market).state is ContractState.NOTICED


def test_an_operator_ends_a_contract_with_a_reason(
    olivia: Browser, market: Market, sessions: SessionFactory
) -> None:
    path = f"/contracts/{market.contract.id}"
    assert "Globex rents from Acme" in olivia.get(path).text
    olivia.post(f"{path}/end", {"reason": " "})
    assert "Enter a reason" in olivia.get(path).text
    olivia.post(f"{path}/end", {"reason": "Fraud."})
    assert row(sessions, market).state is ContractState.ENDED


def test_both_sides_see_the_same_months(alice: Browser, charlie: Browser, market: Market) -> None:
    path = f"/contracts/{market.contract.id}"
    for browser in (alice, charlie):
        page = browser.get(path).text
        assert "EUR 12.25" in page
        assert "EUR -1.25" in page
        assert "EUR 11.00" in page
        assert "EUR 24.50" in page


@pytest.mark.usefixtures("market")
def test_a_provider_sees_offers_appliances_and_earnings(alice: Browser) -> None:
    page = alice.get("/provider").text
    assert "h100-in-lyon" in page
    assert "EUR 11.00" in page
    page = alice.get("/provider/earnings").text
    assert "Globex" in page
    assert "EUR 24.50" in page
    assert "10 %" in page
    page = alice.get("/provider/reputation").text
    assert "No evidence yet" in page
    assert "most likely 14 to 86" in page


@pytest.mark.usefixtures("market")
def test_a_customer_sees_nothing_of_the_provider_area(charlie: Browser, market: Market) -> None:
    page = charlie.get("/provider").text
    assert "h100-in-lyon" not in page
    assert charlie.get(f"/provider/offers/{market.offer.id}").status_code == 404


def offer_form(**changes: object) -> dict[str, object]:
    values = {"name": "Nights", "description": "At night.", "calendar": "open Mon-Fri 18-24"}
    return proposal(**{**values, **changes})


def test_an_offer_is_made_and_published(
    alice: Browser, sessions: SessionFactory, cast: Cast, clock: FrozenClock, nobody: Browser
) -> None:
    with sessions.begin() as session:
        admit_both(session, cast, now=clock.now)
        appliance = make_appliance(session, cast.acme, "dgx-09", inventory=gpus(4))
    answer = alice.post("/provider/offers/new", offer_form(appliance_ids=appliance.id))
    assert answer.status_code == 302
    path = answer.headers["Location"]
    page = alice.get(path).text
    assert "open Mon-Fri 18-24" in page
    assert "Mon-Fri 08-20 2.90" in page
    alice.post(f"{path}/state", {"state": "published"})
    with sessions() as session:
        assert session.scalars(select(Offer.state)).all() == [OfferState.PUBLISHED]
    assert "Nights" in nobody.get("/market").text
    answer = alice.post(path, offer_form(appliance_ids=appliance.id, price="2.00"))
    assert answer.status_code == 302
    with sessions() as session:
        assert session.scalars(select(Offer)).one().decoded_terms.price == 2


def test_an_offer_without_appliances_is_refused(
    alice: Browser, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        admit_both(session, cast, now=clock.now)
    answer = alice.post("/provider/offers/new", offer_form())
    assert answer.status_code == 422
    assert "Choose appliances" in answer.text
    answer = alice.post("/provider/offers/new", offer_form(labels="pool=rent", calendar="closed x"))
    assert "is no day" in answer.text


def test_an_offers_state_must_be_known(alice: Browser, market: Market) -> None:
    path = f"/provider/offers/{market.offer.id}/state"
    assert alice.post(path, {"state": "sold"}).status_code == 422
    alice.post(path, {"state": "draft"})
    assert "can&#39;t be draft" in alice.get("/provider").text


@pytest.mark.usefixtures("cast")
def test_a_tenant_asks_and_the_operator_admits(
    alice: Browser, olivia: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    assert "Ask for admission" in alice.get("/rent").text
    alice.post("/market-account/customer/request")
    assert "Admission requested" in alice.get("/rent").text
    assert "Acme" in olivia.get("/console/market").text
    olivia.post(f"/console/market/{cast.acme.id}/customer/admit")
    with sessions() as session:
        assert session.get_one(Account, cast.acme.id).customer_state is AccountState.ACTIVE
    olivia.post(f"/console/market/{cast.acme.id}/customer/suspend")
    assert "suspended your account" in alice.get("/rent").text
    assert alice.post("/market-account/landlord/request").status_code == 404
    assert olivia.post(f"/console/market/{cast.acme.id}/customer/x").status_code == 404


def test_the_account_is_changed_and_checked(
    alice: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    form = {"public_name": "Acme GPUs", "country": "fr", "billing_email": "ap@acme.example"}
    assert alice.post("/market-account", form).status_code == 302
    with sessions() as session:
        account = session.get_one(Account, cast.acme.id)
        assert (account.public_name, account.country) == ("Acme GPUs", "FR")
    answer = alice.post("/market-account", {**form, "country": "France"})
    assert answer.status_code == 422
    assert 'aria-invalid="true"' in answer.text


@pytest.mark.usefixtures("market")
def test_an_operator_sets_the_fee_of_an_account(
    olivia: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    path = f"/console/market/accounts/{cast.acme.id}"
    assert olivia.post(path, {"fee_percent": "7.5", "is_prepaid": "y"}).status_code == 302
    with sessions() as session:
        account = session.get_one(Account, cast.acme.id)
        assert (account.fee_percent, account.is_prepaid) == (Decimal("7.5"), True)
    assert "EUR 0.83" in olivia.get("/console/market").text
    assert olivia.post(path, {"fee_percent": "101"}).status_code == 422


def test_the_billing_role_reads_and_changes_the_account_alone(
    sessions: SessionFactory, cast: Cast, sign_in: SignIn, market: Market
) -> None:
    with sessions.begin() as session:
        for membership in session.scalars(select(Membership)):
            if membership.user_id == cast.bob.id:
                membership.role = Role.BILLING
    bob = sign_in(cast.bob)
    assert bob.get("/provider/earnings").status_code == 200
    assert bob.post("/market-account", {"public_name": "Acme"}).status_code == 302
    assert (
        bob.post(f"/provider/offers/{market.offer.id}/state", {"state": "paused"}).status_code
        == 403
    )
    assert bob.post(f"/contracts/{market.contract.id}/notice").status_code == 403
    assert "Propose new terms" not in bob.get(f"/contracts/{market.contract.id}").text


def test_a_viewer_sees_no_costs(bob: Browser, market: Market) -> None:
    assert "by month" not in bob.get(f"/contracts/{market.contract.id}").text
    assert bob.get("/provider/earnings").status_code == 403
    assert "Earned this month" not in bob.get("/provider").text


def test_a_third_tenant_gets_404_for_contract_and_offer(
    sessions: SessionFactory, cast: Cast, market: Market, charlie: Browser
) -> None:
    with sessions.begin() as session:
        contract = session.get_one(Contract, market.contract.id)
        contract.customer_id = "another"
    assert charlie.get(f"/contracts/{market.contract.id}").status_code == 404
    with sessions() as session:
        assert get_contract(session, scope_of(cast.alice), market.contract.id)


@pytest.mark.parametrize(
    "line", ["Mon-Fri 08-20 3.10", "Sat-Sun 00-24 1.90", "Mon,Wed 00-06 0.12345678"]
)
def test_prices_at_hours_are_read_as_they_are_written(line: str) -> None:
    assert format_hourly_price(parse_hourly_price(line)) == line


def test_days_may_pass_the_end_of_the_week() -> None:
    assert parse_days("Sat-Mon") == (0, 5, 6)


@pytest.mark.parametrize(
    "line",
    [
        "open",
        "open Mon-Fri 18-24",
        "closed from 2026-12-24 until 2026-12-27",
        "open Sat,Mon 08-12 until 2026-12-27",
    ],
)
def test_windows_are_read_as_they_are_written(line: str) -> None:
    assert format_window(parse_window(line)) == line.replace("Sat,Mon", "Mon,Sat")


def test_a_fact_has_name_end_and_evidence() -> None:
    fact = parse_fact("gdpr https://acme.example/gdpr")
    assert (fact.name, fact.valid_until, fact.evidence_url) == (
        "gdpr",
        "",
        "https://acme.example/gdpr",
    )
