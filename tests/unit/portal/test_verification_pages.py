"""Pages and API of verification: why an appliance is in no offer, and how to mend it."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from core.db import SessionFactory
from core.settings import ServerSettings
from marketplace.models import Offer
from marketplace.verification.findings import failure, stored
from marketplace.verification.gate import begin
from tenants.models import Appliance, Challenge, ChallengeOutcome, Verification, VerificationState
from tests.cast import Cast, FrozenClock, make_appliance
from tests.unit.portal.conftest import Browser, usual_settings
from tests.unit.portal.market import Market, gpus

FINDING = failure(
    "memory_missing", "GPU 0 lists 80 GiB, but 38.8 GiB could be filled.", "End other processes.",
    gpu=0,
)  # fmt: skip


@pytest.fixture
def appliance(
    market: Market, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> Appliance:
    """An appliance that failed."""
    assert market
    with sessions.begin() as session:
        made = make_appliance(session, cast.acme, "liar", now=clock.now, inventory=gpus(8))
        begin(session, cast.acme.id, [made.id], now=clock.now)
        row = session.get_one(Verification, made.id)
        row.state, row.reason = VerificationState.FAILED, FINDING.text
        row.findings, row.checked_at = stored([FINDING]), clock.now
        session.add(
            Challenge(
                tenant_id=cast.acme.id,
                appliance_id=made.id,
                number=1,
                spec={"seed": 4711},
                outcome=ChallengeOutcome.FAILED,
                ordered_at=clock.now,
                ended_at=clock.now,
                findings=stored([FINDING]),
            )
        )
        return made


def test_the_provider_sees_the_reason_and_what_to_do(alice: Browser, appliance: Appliance) -> None:
    for path in ("/provider", "/provider/checks", f"/appliances/{appliance.id}"):
        assert "38.8 GiB could be filled" in alice.get(path).text, path
    page = alice.get(f"/provider/checks/{appliance.id}").text
    assert "End other processes." in page
    assert "memory missing" in page
    assert "4711" not in page
    assert "No appliance is passed now" in alice.get("/provider/checks?state=passed").text


def test_verify_now_orders_it_and_says_so(
    alice: Browser, bob: Browser, olivia: Browser, appliance: Appliance, sessions: SessionFactory
) -> None:
    path = f"/provider/checks/{appliance.id}"
    assert "Verify now" not in bob.get(path).text
    assert bob.post(f"{path}/verify").status_code == 403
    for user in (alice, olivia):
        answer = user.post(f"{path}/verify")
        assert answer.status_code == 302
        assert "liar is verified as soon as it has no jobs" in user.get(path).text
    with sessions() as session:
        assert session.get_one(Verification, appliance.id).checked_at is None


def test_others_see_nothing_of_it(charlie: Browser, appliance: Appliance) -> None:
    path = f"/provider/checks/{appliance.id}"
    assert charlie.get(path).status_code == 404
    assert charlie.post(f"{path}/verify").status_code == 404
    assert "liar" not in charlie.get("/provider/checks").text


def test_without_appliances_it_says_how_to_get_there(charlie: Browser) -> None:
    assert "Nothing to check yet" in charlie.get("/provider/checks").text


@pytest.mark.parametrize(
    ("days", "text"),
    [(20, "leaves it out after that day"), (-1, "The catalogue leaves it out.</td>"), (90, "")],
)
def test_facts_that_expire_are_listed(  # noqa: PLR0917 - four of them are fixtures
    alice: Browser,
    market: Market,
    sessions: SessionFactory,
    clock: FrozenClock,
    days: int,
    text: str,
) -> None:
    until = (clock.now + timedelta(days=days)).date().isoformat()
    with sessions.begin() as session:
        offer = session.get_one(Offer, market.offer.id)
        facts = [{"name": "iso27001", "valid_until": until}]
        offer.terms = {**offer.terms, "facts": facts}
    page = alice.get("/provider/checks").text
    assert ("iso27001" in page) is bool(text)
    assert text in page


class TestWithoutMarketplace:
    """With `marketplace = false` nothing of it is there."""

    @pytest.fixture
    def settings(self, tmp_path: Path) -> ServerSettings:
        return replace(usual_settings(tmp_path), marketplace=False)

    def test_pages_are_unknown(self, alice: Browser, appliance: Appliance) -> None:
        assert alice.get("/provider/checks").status_code == 404
        assert alice.get(f"/provider/checks/{appliance.id}").status_code == 404
        assert "could be filled" not in alice.get(f"/appliances/{appliance.id}").text
