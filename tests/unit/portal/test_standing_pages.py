"""Standings: the provider's page, the operator's pages, and the API."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from core.db import SessionFactory
from marketplace.consequences.models import Standing
from marketplace.consequences.policies import current_policy
from marketplace.consequences.policy import FeeTier, Policy
from marketplace.consequences.standing import evaluate
from marketplace.models import Account
from portal.forms.standings import format_tier, parse_tier
from tests.cast import FrozenClock
from tests.unit.marketplace.builders import add_late_starts
from tests.unit.portal.conftest import Browser
from tests.unit.portal.market import Market

CONSOLE = "/console/market/standings"
FORM = {
    "placement_weight": "2",
    "last_below": "0.5",
    "unlisted_below": "0.4",
    "fee_tiers": "0.9: -2\n0.5: 3",
    "suspension_breaches": "3",
    "breaches_per_hundred": "5",
    "window_days": "30",
    "mend_days": "5",
    "mend_breaches": "1",
    "suspension_days": "10",
    "requires_checks": "y",
    "probation_days": "0",
    "probation_max_gpus": "0",
    "probation_breaches": "1",
    "note": "Stricter",
}


@pytest.fixture
def suspended(sessions: SessionFactory, market: Market, clock: FrozenClock) -> str:
    """acme, which was suspended for late starts; its id."""
    provider_id, day = market.contract.provider_id, timedelta(days=1)
    with sessions.begin() as session:
        add_late_starts(session, market.contract, *(clock.now - n * day for n in range(1, 6)))
        evaluate(session, provider_id, now=clock.now)
        add_late_starts(session, market.contract, clock.now + day, clock.now + 2 * day)
        evaluate(session, provider_id, now=clock.now + 7 * day)
    return provider_id


def read(browser: Browser, path: str) -> Any:  # noqa: ANN401 - JSON
    return browser.get(f"/api/v1/market/{path}").json


def state(browser: Browser) -> str:
    return str(read(browser, "standing")["state"])


@pytest.mark.usefixtures("market")
def test_a_provider_in_good_standing_sees_what_follows_and_the_rules(alice: Browser) -> None:
    page = alice.get("/provider/standing").text
    assert "listed like others" in page
    assert "5 breaches within 30 days" in page
    assert "Nothing has changed yet" in page
    assert "Send appeal" not in page
    assert 'href="/provider/standing"' in alice.get("/provider").text


def test_a_suspended_provider_appeals_and_returns(
    alice: Browser, olivia: Browser, suspended: str
) -> None:
    assert "Why, and how to return" in alice.get("/provider").text
    page = alice.get("/provider/standing").text
    assert "You are suspended as a provider." in page
    assert "2 breaches since the notice" in page
    assert "Late start: 900 s of 300 s promised." in page
    assert "The suspension lasts until" in page
    empty = alice.post("/provider/standing", {"text": " "})
    assert empty.status_code == 422
    assert "Say why the suspension is wrong." in empty.text
    alice.post("/provider/standing", {"text": "Our carrier was down."})
    assert "Send appeal" not in alice.get("/provider/standing").text
    assert alice.post("/provider/standing", {"text": "Again."}).status_code == 409

    assert "1 appeal" in olivia.get("/console/market").text
    queue = olivia.get(CONSOLE).text
    assert "Our carrier was down." in queue
    assert "alice@acme.example" in queue
    appeal_id = read(olivia, "appeals")["items"][0]["id"]
    olivia.post(f"{CONSOLE}/appeals/{appeal_id}/accept", {"answer": "The carrier confirms it."})
    assert state(alice) == "good"
    assert "The carrier confirms it." in alice.get("/provider/standing").text
    assert "No appeal waits" in olivia.get(CONSOLE).text
    assert "Appeal accepted" in olivia.get(f"{CONSOLE}/{suspended}").text


@pytest.mark.usefixtures("suspended")
def test_members_see_the_standing_but_cannot_appeal(bob: Browser) -> None:
    page = bob.get("/provider/standing").text
    assert "You are suspended as a provider." in page
    assert "Send appeal" not in page
    assert bob.post("/provider/standing", {"text": "x"}).status_code == 403


def test_operators_suspend_and_reinstate_with_a_reason(
    olivia: Browser, alice: Browser, market: Market
) -> None:
    path = f"{CONSOLE}/{market.contract.provider_id}"
    assert olivia.post(f"{path}/suspend", {"reason": " "}).status_code == 422
    olivia.post(f"{path}/suspend", {"reason": "It resells stolen accounts."})
    assert state(alice) == "suspended"
    page = alice.get("/provider/standing").text
    assert "It resells stolen accounts." in page
    assert "decides about its return" in page
    assert "olivia" not in page
    assert "olivia@vedette.example" in olivia.get(path).text
    olivia.post(f"{path}/reinstate", {"reason": "A mistake."})
    assert state(alice) == "good"
    assert olivia.post(f"{path}/reinstate", {"reason": "Again."}).status_code == 302
    assert olivia.post(f"{path}/praise", {"reason": "x"}).status_code == 404


def test_operators_change_the_policy(olivia: Browser, sessions: SessionFactory) -> None:
    assert "The defaults above apply" in olivia.get(f"{CONSOLE}/policy").text
    form = FORM
    wrong = olivia.post(f"{CONSOLE}/policy", {**form, "fee_tiers": "0.9", "mend_days": "0"})
    assert wrong.status_code == 422
    assert "write score: points" in wrong.text
    wrong = olivia.post(f"{CONSOLE}/policy", {**form, "mend_days": "0"})
    assert "mend_days is 0; enter 1 to 365." in wrong.text
    olivia.post(f"{CONSOLE}/policy", form)
    with sessions() as session:
        number, policy = current_policy(session)
    assert (number, policy.placement_weight, policy.mend_days) == (1, 2.0, 5)
    assert [format_tier(tier) for tier in policy.fee_tiers] == ["0.9: -2", "0.5: 3"]
    assert "Stricter" in olivia.get(f"{CONSOLE}/policy").text


def test_a_policy_is_previewed_before_it_is_saved(
    olivia: Browser,
    alice: Browser,
    sessions: SessionFactory,
    market: Market,
    clock: FrozenClock,
) -> None:
    days = [clock.now - timedelta(days=number) for number in (1, 2, 3)]
    with sessions.begin() as session:
        add_late_starts(session, market.contract, *days)
        account = session.get_one(Account, market.contract.provider_id)
        account.reputation, account.placement_factor = 0.55, 0.55

    def preview(**policy: object) -> dict[str, Any]:
        path = "/api/v1/market/standing-policies/preview"
        answer = olivia.call("POST", path, {"policy": policy})
        assert answer.status_code == 200, answer.get_json()
        return dict(answer.get_json())

    strict = {
        "suspension_breaches": 3,
        "placement_weight": 2.0,
        "last_below": 0.6,
        "unlisted_below": 0.6,
        "fee_tiers": [],
    }
    shown = preview(**strict)
    assert (shown["compared"], shown["total"]) == (2, 2)
    row = next(row for row in shown["changed"] if row["tenant_id"] == account.tenant_id)
    assert (row["state"], row["listing"]) == (["good", "noticed"], ["normal", "hidden"])
    assert row["placement_factor"] == [0.55, 0.3025]
    assert "3 breaches in the last 30 days; 3 lead to notice." in row["cause"]
    lax = preview(**strict | {"suspension_breaches": 0, "placement_weight": 1.0})
    row = next(row for row in lax["changed"] if row["tenant_id"] == account.tenant_id)
    assert row["state"] == ["good", "good"]
    assert row["placement_factor"] == [0.55, 0.55]
    refused = olivia.call(
        "POST", "/api/v1/market/standing-policies/preview", {"policy": {"mend_days": 0}}
    )
    assert refused.status_code == 422
    page = olivia.post(f"{CONSOLE}/policy", FORM | {"preview": "1"})
    assert page.status_code == 200
    assert "What it would change" in page.text
    assert "<strong>noticed</strong>" in page.text
    with sessions() as session:
        assert current_policy(session)[0] == 0
        assert session.scalars(select(Standing)).all() == []
    path = "/api/v1/market/standing-policies/preview"
    assert alice.call("POST", path, {"policy": {}}).status_code == 403


def test_the_list_of_standings_is_filtered(olivia: Browser, suspended: str) -> None:
    assert f"{CONSOLE}/{suspended}" in olivia.get(f"{CONSOLE}?state=suspended").text
    assert "No provider has this state." in olivia.get(f"{CONSOLE}?state=noticed").text


@pytest.mark.parametrize("path", [CONSOLE, f"{CONSOLE}/policy"])
def test_tenants_have_no_pages_of_operators(alice: Browser, path: str) -> None:
    assert alice.get(path).status_code == 403


class TestAPI:
    def test_shows_the_standing_with_what_is_missing(
        self, alice: Browser, suspended: str, charlie: Browser
    ) -> None:
        shown = read(alice, "standing")
        assert (shown["state"], shown["breach_limit"], shown["appeal"]) == ("suspended", 5, None)
        assert shown["missing"][0].startswith("The suspension lasts until")
        events = read(alice, "standing/events")["items"]
        assert [event["kind"] for event in events if "state" in event["details"]] == [
            "suspended",
            "noticed",
        ]
        assert read(charlie, "standing")["state"] == "good"
        assert charlie.get(f"/api/v1/market/standings/{suspended}").status_code == 403
        assert read(charlie, "appeals")["total"] == 0

    def test_takes_policies_with_defaults(self, olivia: Browser, sessions: SessionFactory) -> None:
        current = read(olivia, "standing-policies/current")
        assert (current["number"], current["policy"]["fee_tiers"][0]["points"]) == (0, "-2")
        body = {"policy": {"placement_weight": 0.5}, "note": "Price first"}
        made = olivia.call("POST", "/api/v1/market/standing-policies", body)
        assert made.status_code == 201, made.text
        with sessions() as session:
            assert current_policy(session) == (1, Policy(placement_weight=0.5))
        wrong = olivia.call(
            "POST", "/api/v1/market/standing-policies", {"policy": {"placement_weight": 9}}
        )
        assert wrong.status_code == 422
        assert "placement_weight" in wrong.text
        assert read(olivia, "standing-policies")["total"] == 1

    def test_accounts_follow(
        self, alice: Browser, suspended: str, sessions: SessionFactory
    ) -> None:
        assert read(alice, "account")["provider_state"] == "suspended"
        with sessions() as session:
            assert session.get_one(Account, suspended).provider_state == "suspended"


def test_tiers_are_written_as_lines() -> None:
    for line in ("0.9: -2", "0.6: 3.5"):
        assert format_tier(parse_tier(line)) == line
    assert isinstance(parse_tier("1:1"), FeeTier)
    for line in ("x: 1", "0.5", "0.5: x"):
        with pytest.raises(ValueError, match="write score: points"):
            parse_tier(line)
