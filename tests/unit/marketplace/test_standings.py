"""Standings in the database: evidence, effects, notice, suspension, appeal and the way back."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import select, true
from sqlalchemy.orm import Session

import marketplace.consequences.evidence
from alerting.notification.models import Notification
from core.db import SessionFactory
from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from core.periodic_tasks import SchedulerContext
from core.settings import ServerSettings
from marketplace.accounts import admit, require_provider
from marketplace.cases import Case, Dimension
from marketplace.catalogue import CatalogueFilter, published_offer, refresh, search
from marketplace.consequences.evidence import read_evidence
from marketplace.consequences.models import Standing, StandingEvent
from marketplace.consequences.policies import current_policy, list_policies, set_policy
from marketplace.consequences.policy import Policy
from marketplace.consequences.service import (
    accept_appeal,
    appeal,
    get_appeal,
    get_standing,
    list_appeals,
    list_events,
    list_standings,
    missing_of,
    reinstate,
    reject_appeal,
    suspend,
)
from marketplace.consequences.standing import (
    KEPT_FOR,
    evaluate,
    forget_events,
    providers_to_judge,
)
from marketplace.consequences.states import AppealState, EventKind, StandingState
from marketplace.contracts.grants import write_grant
from marketplace.invoices.fees import fee_percent_of, fee_percents
from marketplace.models import Account, Contract
from marketplace.periodic_tasks import ProviderTasks
from marketplace.states import AccountState, Listing, Side
from tenants.models import AuditEntry
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.marketplace.builders import add_late_starts, admit_sides, publish, take
from timeseries.store import Store

DAY = timedelta(days=1)
URL = "https://portal.example"


@pytest.fixture
def contract(session: Session, cast: Cast) -> Contract:
    """A contract of globex about acme's dgx-01."""
    admit_sides(session, cast)
    add_appliance(session, cast.acme, "dgx-01")
    offer = publish(session, cast, "dgx-01")
    refresh(session, now=NOON)
    return take(session, cast, offer)


def score(session: Session, cast: Cast, value: float) -> Account:
    """Let acme have a score."""
    account = session.get_one(Account, cast.acme.id)
    account.reputation = value
    session.flush()
    return account


def suspended(session: Session, contract: Contract) -> datetime:
    """Let acme be suspended by the policy; return when."""
    add_late_starts(session, contract, *(NOON - number * DAY for number in range(1, 6)))
    evaluate(session, contract.provider_id, now=NOON, mail_url=URL)
    add_late_starts(session, contract, NOON + DAY, NOON + 2 * DAY)
    at = NOON + 7 * DAY
    evaluate(session, contract.provider_id, now=at, mail_url=URL)
    return at


def events(session: Session, cast: Cast) -> list[EventKind]:
    """Return the kinds of acme's events about its state, the oldest first."""
    effects = {EventKind.LISTING, EventKind.PLACEMENT, EventKind.FEE}
    page = list_events(session, scope_of(cast.alice), sort="at")
    return [event.kind for event in page.items if event.kind not in effects]


def subjects(session: Session) -> list[str]:
    rows = session.scalars(select(Notification).order_by(Notification.created_at))
    return [str(row.payload["subject"]) for row in rows]


class TestEvidence:
    def read(self, session: Session, contract: Contract, **changes: Any) -> Any:  # noqa: ANN401
        account = session.get_one(Account, contract.provider_id)
        options = {"counted_from": None, "now": NOON} | changes
        return read_evidence(session, account, Policy(), **options)

    def test_late_starts_of_a_contract_and_day_count_once(
        self, session: Session, contract: Contract
    ) -> None:
        same_day = (NOON - DAY, NOON - DAY + timedelta(hours=1))
        add_late_starts(session, contract, *same_day, NOON - 2 * DAY, NOON - 31 * DAY)
        evidence = self.read(session, contract)
        assert [breach.at for breach in evidence.breaches] == [NOON - 2 * DAY, NOON - DAY]
        assert evidence.breaches[0].text == "Late start: 900 s of 300 s promised."
        assert evidence.size == 2
        assert len(self.read(session, contract, counted_from=NOON - 1.5 * DAY).breaches) == 1

    def test_several_contracts_of_a_customer_count_no_more_than_one(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        add_appliance(session, cast.acme, "dgx-02")
        other = take(session, cast, publish(session, cast, "dgx-02", name="B200s"))
        for late in (contract, other):
            add_late_starts(session, late, NOON - DAY)
        assert len(self.read(session, contract).breaches) == 1

    def test_failed_checks_count_and_keep_an_appliance_failing_until_it_passes(
        self,
        session: Session,
        cast: Cast,
        contract: Contract,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        appliance = add_appliance(session, cast.acme, "dgx-02")
        checks: list[Case] = []
        monkeypatch.setattr(marketplace.consequences.evidence, "check_cases", fake_checks(checks))
        checks += [check(appliance.id, 0.0, NOON - DAY), check(appliance.id, 0.0, NOON - DAY)]
        evidence = self.read(session, contract)
        assert [breach.kind for breach in evidence.breaches] == ["check_failed"]
        assert evidence.failing == {appliance.id}
        checks.append(check(appliance.id, 1.0, NOON))
        assert self.read(session, contract).failing == frozenset()
        checks.append(check("gone", 0.0, NOON))
        assert self.read(session, contract).failing == frozenset()


def check(appliance_id: str, good: float, at: datetime) -> Case:
    return Case(
        dimension=Dimension.CHECKS,
        good=good,
        at=at,
        kind="challenge",
        subject=appliance_id,
        text="Less memory than claimed.",
    )


def fake_checks(cases: Sequence[Case]) -> Any:  # noqa: ANN401 - a function
    def check_cases(_session: Session, _provider_id: str, *, since: datetime) -> Sequence[Case]:
        return [case for case in cases if case.at >= since]

    return check_cases


class TestEffects:
    def test_of_a_low_score_reach_placement_and_the_catalogue(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        score(session, cast, 0.4)
        assert not evaluate(session, cast.acme.id, now=NOON, mail_url=URL)
        grant = write_grant(session, contract, now=NOON)
        assert grant is not None
        assert grant.placement_factor == 0.4
        assert grant.is_open
        assert search(session, CatalogueFilter()) == ([], 0)
        with pytest.raises(NotFoundError):
            published_offer(session, contract.offer_id)
        page = list_events(session, scope_of(cast.alice))
        causes = {event.kind: event.cause for event in page.items}
        assert causes == {
            EventKind.LISTING: "The score is 0.40: the offers are not listed, and take no new "
            "contracts.",
            EventKind.PLACEMENT: "The score is 0.40: placement compares the prices divided by "
            "0.40.",
            EventKind.FEE: "The score is 0.40: 3 percentage points are added to the fee from April "
            "2026 on.",
        }
        assert subjects(session) == ["Acme is listed differently"]
        # Nothing changes, so that nothing is recorded.
        evaluate(session, cast.acme.id, now=NOON + DAY, mail_url=URL)
        assert list_events(session, scope_of(cast.alice)).total == 3

    def test_of_listing_come_before_every_sort(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        admit(
            session,
            scope_of(cast.olivia),
            cast.globex.id,
            Side.PROVIDER,
            AccountState.ACTIVE,
            now=NOON,
        )
        score(session, cast, 0.55)
        evaluate(session, cast.acme.id, now=NOON)
        assert session.get_one(Account, cast.acme.id).listing is Listing.LAST
        entries, total = search(session, CatalogueFilter(), sort="price")
        assert (total, entries[0].offer_id) == (1, contract.offer_id)

    def test_of_fees_begin_with_the_next_month_and_never_change_it_afterwards(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        acme, usual = cast.acme.id, Decimal(10)
        april, may = (
            datetime(2026, 4, 1, tzinfo=NOON.tzinfo),
            datetime(2026, 5, 1, tzinfo=NOON.tzinfo),
        )
        score(session, cast, 0.95)
        evaluate(session, acme, now=NOON)
        assert fee_percent_of(session, acme, NOON, default=usual) == 10
        assert fee_percent_of(session, acme, april, default=usual) == 8
        # What happens in April is of May.
        score(session, cast, 0.3)
        evaluate(session, acme, now=april)
        assert fee_percent_of(session, acme, april, default=usual) == 8
        assert fee_percent_of(session, acme, may, default=usual) == 13
        percent_of = fee_percents(session, since=NOON, default=usual)
        assert [percent_of(acme, at) for at in (NOON, april, may)] == [10, 8, 13]
        session.get_one(Account, acme).fee_percent = Decimal(1)
        assert fee_percent_of(session, acme, april, default=usual) == 0
        assert contract.provider_id == acme

    def test_small_moves_of_a_score_change_nothing(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        for value in (0.905, 0.895, 0.905, 0.893):
            score(session, cast, value)
            evaluate(session, contract.provider_id, now=NOON)
        kinds = [event.kind for event in list_events(session, scope_of(cast.alice)).items]
        assert sorted(kinds) == [EventKind.PLACEMENT]

    def test_are_forgotten_after_some_time(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        at = suspended(session, contract)
        forget_events(session, now=at + KEPT_FOR)
        assert {event.kind for event in list_events(session, scope_of(cast.alice)).items} == {
            EventKind.NOTICED,
            EventKind.SUSPENDED,
        }


class TestSuspension:
    def test_follows_notice_and_a_time_to_mend(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        score(session, cast, 0.8)
        at = suspended(session, contract)
        standing = get_standing(session, scope_of(cast.alice), now=at)
        assert standing.state is StandingState.SUSPENDED
        assert standing.returns_at == at + 14 * DAY
        assert events(session, cast) == [EventKind.NOTICED, EventKind.SUSPENDED]
        assert subjects(session) == [
            "Acme has notice of breaches",
            "Acme is suspended as a provider",
        ]
        with pytest.raises(ForbiddenError):
            require_provider(session, scope_of(cast.alice))
        grant = write_grant(session, contract, now=at)
        assert grant is not None
        assert not grant.is_open
        assert search(session, CatalogueFilter()) == ([], 0)

    def test_is_in_the_audit_log_of_the_provider(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        suspended(session, contract)
        session.commit()
        rows = session.scalars(
            select(AuditEntry).where(AuditEntry.action == "standing.suspended")
        ).all()
        assert [row.chain for row in rows] == [cast.acme.id]
        assert "2 breaches since the notice" in rows[0].reason

    def test_ends_by_itself_with_a_probation_that_has_limits(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        score(session, cast, 0.95)
        at = suspended(session, contract)
        alice = scope_of(cast.alice)
        assert missing_of(session, get_standing(session, alice, now=at), now=at) == [
            "The suspension lasts until 2026-03-23 12:00 UTC."
        ]
        back_at = at + 14 * DAY
        assert not evaluate(session, cast.acme.id, now=back_at - DAY)
        assert evaluate(session, cast.acme.id, now=back_at)
        account = session.get_one(Account, cast.acme.id)
        assert (account.provider_state, account.listing) == (AccountState.ACTIVE, Listing.LAST)
        grant = write_grant(session, contract, now=back_at)
        assert grant is not None
        assert (grant.max_gpus, grant.is_open) == (8, True)
        # No discount until the end of the probation.
        assert (
            fee_percent_of(session, account.tenant_id, back_at + 10 * DAY, default=Decimal(10))
            == 10
        )
        evaluate(session, cast.acme.id, now=back_at + 30 * DAY)
        assert get_standing(session, alice, now=at).state is StandingState.GOOD
        assert (account.listing, account.max_contract_gpus) == (Listing.NORMAL, 0)
        assert events(session, cast)[2:] == [EventKind.PROBATION, EventKind.REINSTATED]

    def test_by_an_operator_lasts_until_an_operator_ends_it(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        olivia, acme = scope_of(cast.olivia), cast.acme.id
        with pytest.raises(InvalidInputError, match="Enter the reason"):
            suspend(session, olivia, acme, " ", now=NOON)
        suspend(session, olivia, acme, "It resells stolen accounts.", now=NOON, mail_url=URL)
        with pytest.raises(ConflictError, match="suspended already"):
            suspend(session, olivia, acme, "Again.", now=NOON)
        evaluate(session, acme, now=NOON + 100 * DAY)
        assert session.get_one(Account, acme).provider_state is AccountState.SUSPENDED
        reinstate(session, olivia, acme, "A mistake.", now=NOON + 101 * DAY)
        assert session.get_one(Account, acme).provider_state is AccountState.ACTIVE
        with pytest.raises(ConflictError, match="in good standing already"):
            reinstate(session, olivia, acme, "Again.", now=NOON)
        assert contract.provider_id == acme

    def test_by_the_policy_can_be_taken_over_by_an_operator(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        at, olivia = suspended(session, contract), scope_of(cast.olivia)
        suspend(session, olivia, cast.acme.id, "It resells stolen accounts.", now=at)
        evaluate(session, cast.acme.id, now=at + 100 * DAY)
        assert session.get_one(Account, cast.acme.id).provider_state is AccountState.SUSPENDED
        with pytest.raises(ConflictError, match="suspended already"):
            suspend(session, olivia, cast.acme.id, "Again.", now=at)
        appeal(session, scope_of(cast.alice), "We don't.", now=at)

    def test_of_the_account_itself_is_followed(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        olivia, acme = scope_of(cast.olivia), contract.provider_id
        admit(session, olivia, acme, Side.PROVIDER, AccountState.SUSPENDED, now=NOON)
        evaluate(session, acme, now=NOON)
        assert session.get_one(Standing, acme).is_by_operator
        admit(session, olivia, acme, Side.PROVIDER, AccountState.ACTIVE, now=NOON)
        evaluate(session, acme, now=NOON)
        assert session.get_one(Standing, acme).state is StandingState.GOOD
        assert events(session, cast) == [EventKind.SUSPENDED, EventKind.REINSTATED]


class TestAppeal:
    def test_is_made_once_and_its_acceptance_ends_the_suspension(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        alice, olivia = scope_of(cast.alice), scope_of(cast.olivia)
        with pytest.raises(ConflictError, match="not suspended"):
            appeal(session, alice, "We did nothing.", now=NOON)
        at = suspended(session, contract)
        made = appeal(session, alice, "Our carrier was down.", now=at)
        with pytest.raises(ConflictError, match="has appealed"):
            appeal(session, alice, "Really.", now=at)
        assert list_appeals(session, olivia, state=AppealState.OPEN).items == [made]
        accept_appeal(session, olivia, made.id, "The carrier confirms it.", now=at, mail_url=URL)
        standing = get_standing(session, alice, now=at)
        assert (standing.state, standing.counted_from) == (StandingState.GOOD, at)
        assert made.state is AppealState.ACCEPTED
        assert require_provider(session, alice).provider_state is AccountState.ACTIVE
        assert not evaluate(session, cast.acme.id, now=at)
        with pytest.raises(ConflictError, match="decided already"):
            reject_appeal(session, olivia, made.id, "No.", now=at)
        assert subjects(session)[-1] == "Acme won its appeal"

    def test_that_is_rejected_leaves_the_suspension(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        alice, olivia = scope_of(cast.alice), scope_of(cast.olivia)
        at = suspended(session, contract)
        made = appeal(session, alice, "Our carrier was down.", now=at)
        reject_appeal(session, olivia, made.id, "It was up.", now=at, mail_url=URL)
        assert get_standing(session, alice, now=at).state is StandingState.SUSPENDED
        with pytest.raises(ConflictError, match="has appealed"):
            appeal(session, alice, "Once more.", now=at)
        assert events(session, cast)[-2:] == [EventKind.APPEALED, EventKind.APPEAL_REJECTED]

    def test_is_closed_when_the_suspension_ends_before(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        at = suspended(session, contract)
        made = appeal(session, scope_of(cast.alice), "Our carrier was down.", now=at)
        evaluate(session, cast.acme.id, now=at + 14 * DAY)
        session.refresh(made)
        assert made.state is AppealState.CLOSED
        with pytest.raises(ConflictError, match="is over"):
            accept_appeal(session, scope_of(cast.olivia), made.id, "Yes.", now=at + 15 * DAY)


class TestRights:
    def test_others_see_nothing(self, session: Session, cast: Cast, contract: Contract) -> None:
        at = suspended(session, contract)
        made = appeal(session, scope_of(cast.alice), "Our carrier was down.", now=at)
        charlie, bob = scope_of(cast.charlie), scope_of(cast.bob)
        with pytest.raises(NotFoundError):
            get_standing(session, charlie, cast.acme.id, now=at)
        with pytest.raises(NotFoundError):
            get_appeal(session, charlie, made.id)
        assert list_events(session, charlie, cast.acme.id).total == 0
        assert list_appeals(session, charlie).total == 0
        for forbidden in (
            lambda: list_standings(session, charlie),
            lambda: suspend(session, charlie, cast.acme.id, "x", now=at),
            lambda: accept_appeal(session, scope_of(cast.alice), made.id, "x", now=at),
            lambda: set_policy(session, scope_of(cast.alice), Policy(), now=at),
            lambda: list_policies(session, scope_of(cast.alice)),
            lambda: appeal(session, bob, "x", now=at),
        ):
            with pytest.raises(ForbiddenError):
                forbidden()

    def test_operators_see_the_suspended_first(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        admit(
            session,
            scope_of(cast.olivia),
            cast.globex.id,
            Side.PROVIDER,
            AccountState.ACTIVE,
            now=NOON,
        )
        assert set(providers_to_judge(session)) == {cast.acme.id, cast.globex.id}
        evaluate(session, cast.globex.id, now=NOON)
        suspended(session, contract)
        olivia = scope_of(cast.olivia)
        page = list_standings(session, olivia)
        assert [account.public_name for _, account in page.items] == ["Acme", "Globex"]
        assert list_standings(session, olivia, state=StandingState.NOTICED).total == 0


def test_the_task_judges_all_providers(
    sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        admit_sides(session, cast)
        olivia, active = scope_of(cast.olivia), AccountState.ACTIVE
        admit(session, olivia, cast.globex.id, Side.PROVIDER, active, now=NOON)
    context = SchedulerContext(
        sessions=sessions,
        clock=clock,
        listening_since=NOON,
        is_active=lambda: True,
        has_lease=true(),
        is_stopping=lambda: False,
        run_soon=lambda _task: None,
    )
    tasks = ProviderTasks(ServerSettings(marketplace=True), context, store)
    tasks.judge_providers()
    tasks.forget_standing_events()
    with sessions() as session:
        judged = session.scalars(select(Standing.tenant_id)).all()
    assert set(judged) == {cast.acme.id, cast.globex.id}


class TestPolicies:
    def test_are_versions_of_which_the_last_applies(self, session: Session, cast: Cast) -> None:
        olivia = scope_of(cast.olivia)
        assert current_policy(session) == (0, Policy())
        set_policy(session, olivia, Policy(placement_weight=2.0), "Reputation first.", now=NOON)
        set_policy(session, olivia, Policy(suspension_breaches=0), now=NOON)
        assert current_policy(session) == (2, Policy(suspension_breaches=0))
        assert [row.number for row in list_policies(session, olivia).items] == [2, 1]

    def test_with_errors_are_not_saved(self, session: Session, cast: Cast) -> None:
        with pytest.raises(InvalidInputError) as raised:
            set_policy(session, scope_of(cast.olivia), Policy(mend_days=0), "x" * 501, now=NOON)
        assert raised.value.errors.keys() == {"mend_days", "note"}
        assert current_policy(session)[0] == 0

    def test_apply_to_events_from_then_on(
        self, session: Session, cast: Cast, contract: Contract
    ) -> None:
        set_policy(session, scope_of(cast.olivia), Policy(placement_weight=2.0), now=NOON)
        evaluate(session, contract.provider_id, now=NOON)
        numbers = session.scalars(select(StandingEvent.policy_number)).all()
        assert set(numbers) == {1}
