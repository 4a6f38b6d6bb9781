"""What the platform believes of simulated providers, and what follows: by the portal's own code.

Jobs and ratings are weighed by customer as the portal does; cases of each day move and fade the
distributions of the other dimensions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from marketplace.cases import Case, Dimension
from marketplace.consequences.decisions import Breach, Evidence, Position, next_step
from marketplace.consequences.policy import Policy, listing_for, placement_factor
from marketplace.consequences.states import StandingState
from marketplace.reputation.beta import PRIOR, Beta, decay, distribution, overall
from marketplace.reputation.ratings import (
    JOB_LIMIT,
    Entry,
    GivenRating,
    bounded_weights,
    rating_cases,
    tied_groups,
)
from marketplace.states import Listing

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
_STEADY = (Dimension.AVAILABILITY, Dimension.CHECKS, Dimension.RESPONSE)


@dataclass(slots=True)
class Dealings:
    """What a customer did at a provider, faded to `day`.

    Attributes:
        jobs: that ended.
        good: of these, that no fault of the provider ended.
        gpu_hours: that it paid for.
        stars: its rating; 0 for none.
        rated_on: the day of the rating.
    """

    day: int
    jobs: float = 0.0
    good: float = 0.0
    gpu_hours: float = 0.0
    stars: int = 0
    rated_on: int = 0

    def fade(self, day: int, half_life: timedelta) -> None:
        """Let what was before a day count less."""
        if day == self.day:
            return
        factor = decay((day - self.day) * DAY, half_life)
        self.jobs, self.good = self.jobs * factor, self.good * factor
        self.gpu_hours, self.day = self.gpu_hours * factor, day


@dataclass(slots=True)
class Judged:
    """A provider as the platform sees it.

    Attributes:
        name: its id.
        groups: of tenants that are tied to it or to each other.
        customers: what each did there.
    """

    name: str
    groups: Mapping[str, str] = field(default_factory=dict)
    customers: dict[str, Dealings] = field(default_factory=dict)
    steady: dict[Dimension, Beta] = field(default_factory=lambda: dict.fromkeys(_STEADY, PRIOR))
    breaches: list[Breach] = field(default_factory=list)
    is_failing: bool = False
    position: Position = field(
        default_factory=lambda: Position(state=StandingState.GOOD, since=START)
    )
    counted_from: datetime = START
    score: float = 0.5
    factor: float = 1.0
    listing: Listing = Listing.NORMAL

    @property
    def is_open(self) -> bool:
        """Whether jobs may start there."""
        return self.position.state is not StandingState.SUSPENDED

    def dealings(self, customer: str, day: int, half_life: timedelta) -> Dealings:
        """Return what a customer did there, as of a day."""
        dealings = self.customers.get(customer)
        if dealings is None:
            dealings = self.customers[customer] = Dealings(day)
        dealings.fade(day, half_life)
        return dealings

    def add_day(self, cases: Iterable[tuple[Dimension, float]], half_life: timedelta) -> None:
        """Fade the steady dimensions by a day, and add its cases."""
        factor = decay(DAY, half_life)
        self.steady = {name: beta.faded(factor) for name, beta in self.steady.items()}
        for dimension, good in cases:
            self.steady[dimension] = self.steady[dimension].with_case(good)


def judge(
    provider: Judged, policy: Policy, day: int, half_life: timedelta, *, only_ratings: bool
) -> None:
    """Compute a provider's score, and take the step and the effects that follow.

    Args:
        provider: changes in place.
        policy: of the operator.
        day: that has ended.
        half_life: of evidence.
        only_ratings: whether the score is of ratings alone, each of which counts 1.
    """
    now = START + day * DAY
    for dealings in provider.customers.values():
        dealings.fade(day, half_life)
    if only_ratings:
        provider.score = _of_ratings(provider, now, half_life).score
    else:
        provider.score = overall(provider.steady | _of_customers(provider, now, half_life)).score
    since = max(now - timedelta(days=policy.window_days), provider.counted_from)
    provider.breaches = [breach for breach in provider.breaches if breach.at >= since]
    failing = frozenset({provider.name} if provider.is_failing else ())
    evidence = Evidence(score=provider.score, breaches=provider.breaches, failing=failing, size=2)
    step = next_step(provider.position, evidence, policy, now=now)
    if step is not None:
        is_probation = step.state is StandingState.PROBATION
        is_noticed = step.state is StandingState.NOTICED
        former = provider.position.probation_until if is_noticed else None
        provider.position = Position(
            state=step.state,
            since=now,
            mend_until=step.until if is_noticed else None,
            returns_at=step.until if step.state is StandingState.SUSPENDED else None,
            probation_until=step.until if is_probation else former,
        )
        if step.forgets:
            provider.counted_from, provider.breaches = now, []
    listing = listing_for(policy, provider.score, provider.listing)
    is_last = provider.position.is_on_probation(now) and listing is Listing.NORMAL
    provider.listing = Listing.LAST if is_last else listing
    provider.factor = placement_factor(policy, provider.score)


def _of_ratings(provider: Judged, now: datetime, half_life: timedelta) -> Beta:
    """Return the distribution of ratings, whoever they are of."""
    cases = [
        Case(dimension=Dimension.SATISFACTION, good=rating.good, at=rating.at, kind="rated")
        for rating in _ratings(provider)
    ]
    return distribution(cases, now=now, half_life=half_life)


def _of_customers(provider: Judged, now: datetime, half_life: timedelta) -> dict[Dimension, Beta]:
    """Return the distributions of jobs and ratings, weighed by whose they are."""
    customers = [item for item in provider.customers.items() if item[1].jobs > 0]
    options: Any = {"provider_id": provider.name, "now": now, "half_life": half_life}
    entries = [
        Entry(customer_id=name, amount=dealings.jobs, at=now) for name, dealings in customers
    ]
    weights = bounded_weights(entries, provider.groups, JOB_LIMIT, **options)
    jobs = [
        Case(
            dimension=Dimension.JOBS,
            good=dealings.good / dealings.jobs,
            weight=weight,
            at=now,
            kind="jobs",
        )
        for (_, dealings), weight in zip(customers, weights, strict=True)
    ]
    rated = rating_cases(_ratings(provider), provider.groups, **options)
    return {
        Dimension.JOBS: distribution(jobs, now=now, half_life=half_life),
        Dimension.SATISFACTION: distribution(rated, now=now, half_life=half_life),
    }


def _ratings(provider: Judged) -> list[GivenRating]:
    return [
        GivenRating(
            id=name,
            customer_id=name,
            stars=dealings.stars,
            gpu_hours=dealings.gpu_hours,
            at=START + dealings.rated_on * DAY,
        )
        for name, dealings in provider.customers.items()
        if dealings.stars
    ]


def ring_of(names: list[str], raters: Mapping[str, list[str]], hidden: int) -> list[Judged]:
    """Return the providers of a ring: each praises the next, and has raters that praise it.

    Args:
        names: of the providers.
        raters: of each.
        hidden: of the raters of each, the number that share no email domain with it.
    """
    praises = {name: (names[(number + 1) % len(names)],) for number, name in enumerate(names)} | {
        rater: (name,) for name, listed in raters.items() for rater in listed
    }
    ring = []
    for name in names:
        tied = [name, *raters[name][hidden:]]
        affiliations = dict.fromkeys(tied, (f"{name}.example",))
        groups = tied_groups(affiliations, provider_id=name, praises=praises)
        ring.append(Judged(name, groups=groups))
    return ring
