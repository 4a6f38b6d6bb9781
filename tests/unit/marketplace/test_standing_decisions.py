"""What follows for a provider: steps of its standing, and effects of its score."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from marketplace.consequences.decisions import (
    Breach,
    Evidence,
    Position,
    missing_for_return,
    next_step,
)
from marketplace.consequences.policy import (
    FeeTier,
    Policy,
    breach_limit,
    fee_points,
    listing_for,
    placement_factor,
    policy_errors,
)
from marketplace.consequences.states import STANDING_TRANSITIONS, StandingState
from marketplace.states import Listing
from tests.cast import NOON

DAY = timedelta(days=1)
GOOD, NOTICED = StandingState.GOOD, StandingState.NOTICED
SUSPENDED, PROBATION = StandingState.SUSPENDED, StandingState.PROBATION


def breaches(count: int, at: datetime = NOON) -> list[Breach]:
    return [
        Breach(at=at, kind="late_start", subject=str(number), text="x") for number in range(count)
    ]


def position(state: StandingState, **changes: Any) -> Position:  # noqa: ANN401 - any field
    return Position(state=state, **({"since": NOON} | changes))


def evidence(**changes: Any) -> Evidence:  # noqa: ANN401 - any field
    return Evidence(**({"score": 0.9} | changes))


class TestNotice:
    def test_comes_with_the_breach_that_reaches_the_limit(self) -> None:
        below = evidence(breaches=breaches(4))
        assert next_step(position(GOOD), below, Policy(), now=NOON) is None
        step = next_step(position(GOOD), evidence(breaches=breaches(5)), Policy(), now=NOON)
        assert step is not None
        assert (step.state, step.until) == (NOTICED, NOON + 7 * DAY)
        assert "5 breaches in the last 30 days; 5 lead to notice" in step.cause

    def test_of_a_large_provider_needs_more_breaches(self) -> None:
        assert breach_limit(Policy(), 200, is_on_probation=False) == 20
        large = evidence(breaches=breaches(19), size=200)
        assert next_step(position(GOOD), large, Policy(), now=NOON) is None

    def test_comes_earlier_during_probation(self) -> None:
        back = position(PROBATION, probation_until=NOON + DAY)
        step = next_step(back, evidence(breaches=breaches(2)), Policy(), now=NOON)
        assert step is not None
        assert step.state is NOTICED

    def test_never_comes_if_the_policy_has_no_limit(self) -> None:
        policy = Policy(suspension_breaches=0)
        assert next_step(position(GOOD), evidence(breaches=breaches(99)), policy, now=NOON) is None


class TestTimeToMend:
    noticed = position(NOTICED, mend_until=NOON + 7 * DAY)

    def test_is_kept_however_many_breaches_follow(self) -> None:
        worse = evidence(breaches=breaches(99, NOON + DAY), failing=frozenset({"a"}))
        assert next_step(self.noticed, worse, Policy(), now=NOON + 6 * DAY) is None

    def test_ends_well_without_new_breaches(self) -> None:
        same = evidence(breaches=[*breaches(5), *breaches(1, NOON + DAY)])
        step = next_step(self.noticed, same, Policy(), now=NOON + 7 * DAY)
        assert step is not None
        assert (step.state, step.forgets) == (GOOD, True)

    @pytest.mark.parametrize(
        ("changes", "cause"),
        [
            ({"breaches": breaches(2, NOON + DAY)}, "2 breaches since the notice"),
            ({"failing": frozenset({"a"})}, "1 appliance did not pass the checks again"),
        ],
    )
    def test_ends_with_suspension_otherwise(self, changes: dict[str, Any], cause: str) -> None:
        step = next_step(self.noticed, evidence(**changes), Policy(), now=NOON + 7 * DAY)
        assert step is not None
        assert (step.state, step.until) == (SUSPENDED, NOON + 21 * DAY)
        assert cause in step.cause

    def test_returns_to_the_rest_of_a_probation(self) -> None:
        noticed = position(NOTICED, mend_until=NOON + DAY, probation_until=NOON + 9 * DAY)
        step = next_step(noticed, evidence(), Policy(), now=NOON + DAY)
        assert step is not None
        assert (step.state, step.until) == (PROBATION, NOON + 9 * DAY)

    def test_ends_when_the_policy_suspends_nobody(self) -> None:
        policy = Policy(suspension_breaches=0)
        step = next_step(self.noticed, evidence(breaches=breaches(9)), policy, now=NOON)
        assert step is not None
        assert step.state is GOOD


class TestReturn:
    suspended = position(SUSPENDED, returns_at=NOON + 14 * DAY)

    def test_waits_for_time_and_checks(self) -> None:
        failing = evidence(failing=frozenset({"a", "b"}))
        assert missing_for_return(self.suspended, failing, Policy(), now=NOON) == [
            "The suspension lasts until 2026-03-16 12:00 UTC.",
            "2 appliances must pass the checks again.",
        ]
        assert next_step(self.suspended, failing, Policy(), now=NOON + 15 * DAY) is None
        lenient = Policy(requires_checks=False)
        assert next_step(self.suspended, failing, lenient, now=NOON + 15 * DAY) is not None

    def test_begins_with_probation(self) -> None:
        step = next_step(self.suspended, evidence(), Policy(), now=NOON + 14 * DAY)
        assert step is not None
        assert (step.state, step.until, step.forgets) == (PROBATION, NOON + 44 * DAY, True)
        assert "each contract has 8 GPUs at most at once" in step.cause
        over = position(PROBATION, probation_until=step.until)
        last = next_step(over, evidence(), Policy(), now=NOON + 44 * DAY)
        assert last is not None
        assert last.state is GOOD

    def test_is_at_once_without_probation(self) -> None:
        policy = Policy(probation_days=0)
        step = next_step(self.suspended, evidence(), policy, now=NOON + 14 * DAY)
        assert step is not None
        assert step.state is GOOD

    def test_is_left_to_operators_that_suspended(self) -> None:
        by_operator = position(SUSPENDED, is_by_operator=True)
        assert next_step(by_operator, evidence(), Policy(), now=NOON + 400 * DAY) is None


def test_every_step_is_a_transition() -> None:
    """Whatever the evidence, a step leads where the table of transitions allows."""
    for state in StandingState:
        for until in (None, NOON - DAY, NOON + DAY):
            for count in (0, 2, 9):
                stands = position(
                    state, mend_until=NOON - DAY, returns_at=NOON - DAY, probation_until=until
                )
                facts = evidence(breaches=breaches(count, NOON + timedelta(seconds=1)))
                step = next_step(stands, facts, Policy(), now=NOON)
                assert step is None or step.state in STANDING_TRANSITIONS[state]


class TestEffects:
    def test_prices_are_divided_by_a_power_of_the_score(self) -> None:
        assert placement_factor(Policy(), 0.8) == 0.8
        assert placement_factor(Policy(placement_weight=2), 0.8) == 0.64
        assert placement_factor(Policy(placement_weight=0), 0.1) == 1
        assert placement_factor(Policy(), 0) == 0.05
        assert placement_factor(Policy(placement_weight=4), 0) > 0

    def test_listing_moves_up_only_above_a_margin(self) -> None:
        policy = Policy()
        assert listing_for(policy, 0.59, Listing.NORMAL) is Listing.LAST
        assert listing_for(policy, 0.61, Listing.LAST) is Listing.LAST
        assert listing_for(policy, 0.63, Listing.LAST) is Listing.NORMAL
        assert listing_for(policy, 0.44, Listing.LAST) is Listing.HIDDEN
        assert listing_for(policy, 0.46, Listing.HIDDEN) is Listing.HIDDEN
        assert listing_for(policy, 0.48, Listing.HIDDEN) is Listing.LAST
        never = Policy(last_below=0, unlisted_below=0)
        assert listing_for(never, 0, Listing.NORMAL) is Listing.NORMAL

    @pytest.mark.parametrize(
        ("score", "points"), [(0.95, -2), (0.9, -2), (0.89, 0), (0.6, 0), (0.59, 3)]
    )
    def test_fees_follow_the_tiers(self, score: float, points: int) -> None:
        assert fee_points(Policy(), score) == points

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"placement_weight": 5.0}, "placement_weight"),
            ({"unlisted_below": 0.7}, "unlisted_below"),
            ({"window_days": 0}, "window_days"),
            ({"fee_tiers": (FeeTier(score=0.5, points=Decimal(0)),)}, "fee_tiers"),
            ({"fee_tiers": (FeeTier(score=0.5, points=Decimal("NaN")),)}, "fee_tiers"),
            ({"fee_tiers": (FeeTier(score=0.5, points=Decimal(101)),)}, "fee_tiers"),
            ({"fee_tiers": (FeeTier(score=0.5, points=Decimal(1)),) * 2}, "fee_tiers"),
        ],
    )
    def test_a_policy_is_checked(self, changes: dict[str, Any], field: str) -> None:
        assert policy_errors(Policy()) == {}
        assert field in policy_errors(Policy(**changes))
