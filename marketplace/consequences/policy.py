"""The operator's policy: what follows from a provider's score and from its breaches.

A *score* is 0 to 1, see `Account.reputation`. *Points* are added to the percentage of the fee.
"""

from collections.abc import Iterator
from decimal import Decimal
from math import ceil
from typing import Annotated

import msgspec

from core.money import exact
from core.spec import About, limit_errors
from marketplace.states import Listing

MAX_TIERS = 10
MAX_DAYS = 365
MAX_POINTS = 100
# No score makes an offer look infinitely dear.
MIN_SCORE, MIN_FACTOR = 0.05, 0.0001
# What a score must move by before an effect changes, so that small moves change nothing.
MARGIN = 0.02


class FeeTier(msgspec.Struct, frozen=True, kw_only=True):
    """A fee that differs from the usual one.

    Fewer points are for scores of at least `score`, more points for scores below it.
    """

    score: Annotated[
        float, About("From which points are taken off, or below which added.", maximum=1)
    ]
    points: Annotated[
        Decimal,
        About("Added to the percentage of the fee.", minimum=-MAX_POINTS, maximum=MAX_POINTS),
    ]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What follows for providers; the defaults apply until the operator changes them."""

    placement_weight: Annotated[
        float,
        About(
            "Placement compares prices divided by the score to this power; 0: prices alone.",
            maximum=4,
        ),
    ] = 1.0
    last_below: Annotated[
        float, About("Offers are listed last while the score is below it; 0: never.", maximum=1)
    ] = 0.6
    unlisted_below: Annotated[
        float, About("Offers are not listed while the score is below it; 0: never.", maximum=1)
    ] = 0.45
    fee_tiers: Annotated[
        tuple[FeeTier, ...], About("Fees by score, from the next month on.", maximum=MAX_TIERS)
    ] = (
        FeeTier(score=0.9, points=Decimal(-2)),
        FeeTier(score=0.6, points=Decimal(3)),
    )
    suspension_breaches: Annotated[
        int, About("Breaches in the window that lead to notice; 0: never.", maximum=1000)
    ] = 5
    breaches_per_hundred: Annotated[
        float,
        About("And at least as many for a hundred appliances and contracts.", maximum=1000),
    ] = 10.0
    window_days: Annotated[
        int, About("In which breaches are counted.", minimum=1, maximum=MAX_DAYS)
    ] = 30
    mend_days: Annotated[
        int, About("Between notice and suspension, to mend.", minimum=1, maximum=MAX_DAYS)
    ] = 7
    mend_breaches: Annotated[
        int, About("Breaches after the notice that lead to suspension.", minimum=1, maximum=1000)
    ] = 2
    suspension_days: Annotated[
        int, About("That a suspension lasts at least.", minimum=1, maximum=MAX_DAYS)
    ] = 14
    requires_checks: Annotated[
        bool, About("Whether failed checks must be passed before the return.")
    ] = True
    probation_days: Annotated[
        int, About("Of probation after a suspension; 0: none.", maximum=MAX_DAYS)
    ] = 30
    probation_max_gpus: Annotated[
        int, About("Of each contract at once during probation; 0: any.", maximum=100_000)
    ] = 8
    probation_breaches: Annotated[
        int, About("Breaches during probation that lead to notice.", minimum=1, maximum=1000)
    ] = 2


def policy_errors(policy: Policy) -> dict[str, list[str]]:
    """Return what is wrong with a policy, by field."""
    errors: dict[str, list[str]] = {}
    for field, problem in _problems(policy):
        errors.setdefault(field, []).append(problem)
    return errors


def _problems(policy: Policy) -> Iterator[tuple[str, str]]:
    yield from limit_errors(policy)
    if policy.last_below and policy.unlisted_below > policy.last_below:
        yield "unlisted_below", "It is more than last_below; enter less, or set last_below to 0."
    for tier in policy.fee_tiers:
        if not tier.points.is_finite():
            yield "fee_tiers", "Points are no number."
            return
    for tier in policy.fee_tiers:
        problems = [problem for _, problem in limit_errors(tier)]
        yield from (("fee_tiers", problem) for problem in problems)
        if not problems and (not tier.points or exact(tier.points) != tier.points):
            yield "fee_tiers", "Enter points other than 0 with at most 8 decimal places."
    scores = [(tier.score, tier.points > 0) for tier in policy.fee_tiers]
    if len(set(scores)) < len(scores):
        yield "fee_tiers", "Two tiers have the same score."


def placement_factor(policy: Policy, score: float) -> float:
    """Return what placement divides a provider's prices by, above 0 and up to 1."""
    factor = float(min(max(score, MIN_SCORE), 1.0) ** policy.placement_weight)
    return max(round(factor, 4), MIN_FACTOR)


def listing_for(policy: Policy, score: float, now: Listing) -> Listing:
    """Return how offers of a score are listed; to move up, it must be above a limit by a margin.

    Args:
        policy: the policy.
        score: of the provider.
        now: how they are listed at present.
    """
    hidden_below = policy.unlisted_below + MARGIN * (now is Listing.HIDDEN)
    last_below = policy.last_below + MARGIN * (now is not Listing.NORMAL)
    if policy.unlisted_below and score < hidden_below:
        return Listing.HIDDEN
    return Listing.LAST if policy.last_below and score < last_below else Listing.NORMAL


def fee_points(policy: Policy, score: float) -> Decimal:
    """Return the points of a score: the largest discount that it reaches, or surcharge."""
    off = [tier.points for tier in policy.fee_tiers if tier.points < 0 and score >= tier.score]
    added = [tier.points for tier in policy.fee_tiers if tier.points > 0 and score < tier.score]
    return min(off, default=Decimal(0)) + max(added, default=Decimal(0))


def breach_limit(policy: Policy, size: int, *, is_on_probation: bool) -> int:
    """Return the breaches that lead to notice; 0 for never.

    Args:
        policy: the policy.
        size: the appliances on offer and the contracts of the provider together.
        is_on_probation: whether it was suspended lately.
    """
    if not policy.suspension_breaches:
        return 0
    least = policy.probation_breaches if is_on_probation else policy.suspension_breaches
    return max(least, ceil(policy.breaches_per_hundred * size / 100))
