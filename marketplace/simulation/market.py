"""The days of a simulated market: customers run jobs, the platform judges providers.

Under each *strategy* the same providers meet the same demand. A job goes to one of the offers that
its customer has contracts for and that have room: any (`random`), the cheapest (`price`), the first
in the order of placement with a score of ratings alone, whoever they are of (`ratings`), or the
first in the order of placement, with the portal's reputation and all consequences (`policy`).
"""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum

import msgspec
import numpy as np

from jobqueue.placement.rentals import order_price
from marketplace.cases import Dimension
from marketplace.consequences.decisions import Breach
from marketplace.consequences.policy import Policy
from marketplace.reputation.ratings import MAX_STARS
from marketplace.simulation.judging import DAY, START, Judged, judge, ring_of
from marketplace.simulation.setup import Floats, Ints, MarketSetup, Mask, Population
from marketplace.states import Listing

# Providers are judged so often; the portal does so each hour.
JUDGE_DAYS = 5
_BATCH = 250
_RETRIES = 3
_MEAN_GPU_HOURS = 4.0
# Of contracts, replaced each day by new ones; offers that are listed last are chosen less often.
_CHURN = 1 / 60
_LAST_WEIGHT = 0.2
# Of customers that ran somewhere on a day, those that rate it.
_RATES = 0.02
_RATER_GPU_HOURS = 5.0
_CHECK_DAYS = 7
_FEW_STARS = 2
_MONTH = 30


class Strategy(StrEnum):
    """How jobs find their provider."""

    RANDOM = "random"
    PRICE = "price"
    RATINGS = "ratings"
    POLICY = "policy"


class MarketResults(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a market under a strategy; shares are of the GPU-hours of honest customers.

    Attributes:
        bad_share: on bad providers, for each day.
        bad_share_first: the same in the first 30 days.
        bad_share_last: in the last 30 days.
        ring_share_last: on providers of the ring, in the last 30 days.
        failed_share_last: in jobs that a provider's fault ended, in the last 30 days.
        mean_price_last: of a GPU-hour, in the last 30 days.
        useful_price_last: of a GPU-hour in jobs that no fault ended, in the last 30 days.
        late_share_last: on providers that joined half way, in the last 30 days.
        late_capacity_share: of all capacity, that they have.
        unserved_share: of jobs, that had no room.
        suspended_bad: bad providers that were ever suspended.
        suspended_good: good providers that were.
        score_bad: the mean score of bad providers outside of the ring at the end.
        score_ring: of the ring.
        score_good: of good providers.
    """

    bad_share: list[float]
    bad_share_first: float
    bad_share_last: float
    ring_share_last: float
    failed_share_last: float
    mean_price_last: float
    useful_price_last: float
    late_share_last: float
    late_capacity_share: float
    unserved_share: float
    suspended_bad: int
    suspended_good: int
    score_bad: float
    score_ring: float
    score_good: float


def simulate(
    setup: MarketSetup,
    population: Population,
    policy: Policy,
    strategy: Strategy,
    *,
    seed: int,
    progress: Callable[[int], object] = lambda _days: None,
) -> MarketResults:
    """Run all days of a market under a strategy; the same arguments give the same results.

    Args:
        setup: the market.
        population: its providers.
        policy: of the operator.
        strategy: how jobs find their provider.
        seed: of chance.
        progress: is called after each day, with 1.
    """
    market = _Market(setup, population, policy, strategy, np.random.default_rng(seed))
    for day in range(setup.days):
        market.run_day(day)
        progress(1)
    return market.results()


class _Market:
    def __init__(
        self,
        setup: MarketSetup,
        population: Population,
        policy: Policy,
        strategy: Strategy,
        rng: np.random.Generator,
    ) -> None:
        self._setup, self._population, self._policy = setup, population, policy
        self._strategy, self._rng = strategy, rng
        self._half_life = timedelta(days=setup.half_life_days)
        self._is_judged = strategy in {Strategy.POLICY, Strategy.RATINGS}
        if strategy is Strategy.RATINGS:
            self._policy = msgspec.structs.replace(
                policy, suspension_breaches=0, last_below=0.0, unlisted_below=0.0
            )
        ring = int(population.in_ring.sum())
        names = [f"provider-{number}" for number in range(population.size)]
        self._raters = {
            name: [f"{name}-rater-{number}" for number in range(setup.raters)]
            for name in names[:ring]
        }
        hidden = round(setup.raters * setup.hidden_percent / 100)
        self._judged = ring_of(names[:ring], self._raters, hidden) + [
            Judged(name) for name in names[ring:]
        ]
        self._was_suspended: Mask = np.zeros(population.size, np.bool_)
        self._contracts = self._new_contracts(0, (setup.customers, setup.contracts))
        self._figures = np.zeros((setup.days, 7))
        self._unserved = 0

    def run_day(self, day: int) -> None:
        """Let customers run their jobs, then look at what happened."""
        population = self._population
        if day:
            is_new = self._rng.random(self._contracts.shape) < _CHURN
            self._contracts[is_new] = self._new_contracts(day, (int(is_new.sum()),))
        jobs = self._rng.integers(0, self._setup.customers, self._setup.jobs_per_day)
        hours = self._rng.exponential(_MEAN_GPU_HOURS, len(jobs))
        places = self._place(jobs, day)
        ran = places >= 0
        jobs, hours, places = jobs[ran], hours[ran], places[ran]
        failed = self._rng.random(len(jobs)) < population.fault_rates[places]
        cost = hours * population.prices[places]
        is_late = population.joins_at > 0
        self._figures[day] = (
            hours.sum(),
            hours[population.is_bad[places]].sum(),
            hours[population.in_ring[places]].sum(),
            hours[failed].sum(),
            cost.sum(),
            hours[is_late[places]].sum(),
            # Failed jobs are paid for, and have to be run again.
            hours[~failed].sum(),
        )
        self._unserved += int((~ran).sum())
        if self._is_judged:
            self._remember(day, jobs, hours, places, failed)
            self._observe(day)
            if day % JUDGE_DAYS == 0:
                only_ratings = self._strategy is Strategy.RATINGS
                for provider in self._judged:
                    judge(provider, self._policy, day, self._half_life, only_ratings=only_ratings)
                self._was_suspended |= [not provider.is_open for provider in self._judged]

    def _place(self, jobs: Ints, day: int) -> Ints:
        """Return the provider of each job; -1 for none."""
        population, keys = self._population, self._keys(day)
        room = population.slots.copy()
        places = np.full(len(jobs), -1, np.int64)
        for start in range(0, len(jobs), _BATCH):
            waiting = np.arange(start, min(start + _BATCH, len(jobs)))
            for _ in range(_RETRIES):
                choices = self._contracts[jobs[waiting]]
                if self._strategy is Strategy.RANDOM:
                    ranks = np.where(
                        np.isfinite(keys[choices]), self._rng.random(choices.shape), np.inf
                    )
                else:
                    ranks = keys[choices].copy()
                ranks[room[choices] <= 0] = np.inf
                rows = np.arange(len(waiting))
                best = ranks.argmin(axis=1)
                picked = np.where(np.isfinite(ranks[rows, best]), choices[rows, best], -1)
                taken = (picked >= 0) & (_turns(picked) < room[picked])
                places[waiting[taken]] = picked[taken]
                np.subtract.at(room, picked[taken], 1)
                waiting = waiting[~taken & (picked >= 0)]
                if not len(waiting):
                    break
        return places

    def _keys(self, day: int) -> Floats:
        """Return the price by which each provider is compared; infinite where no job may start."""
        prices, joins_at = self._population.prices, self._population.joins_at
        if not self._is_judged:
            return np.where(joins_at <= day, prices, np.inf)
        return np.array(
            [
                float(order_price(Decimal(str(price)), provider.factor))
                if provider.is_open and joined <= day
                else np.inf
                for provider, price, joined in zip(
                    self._judged, prices.tolist(), joins_at.tolist(), strict=True
                )
            ]
        )

    def _new_contracts(self, day: int, shape: tuple[int, ...]) -> Ints:
        """Return providers of new contracts: of those that are listed, by chance."""
        weights = (self._population.joins_at <= day).astype(np.float64)
        if self._is_judged:
            by_listing = {Listing.NORMAL: 1.0, Listing.LAST: _LAST_WEIGHT, Listing.HIDDEN: 0.0}
            weights *= [by_listing[judged.listing] * judged.is_open for judged in self._judged]
        chosen: Ints = self._rng.choice(len(weights), shape, p=weights / weights.sum())
        return chosen

    def _remember(self, day: int, jobs: Ints, hours: Floats, places: Ints, failed: Mask) -> None:
        """Note what customers and raters did where, and how they rate it."""
        is_rated = self._rng.random(len(jobs)) < _RATES
        columns = (jobs, hours, places, failed, is_rated)
        for customer, gpu_hours, place, is_failed, rates in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            provider = self._judged[place]
            dealings = provider.dealings(f"customer-{customer}", day, self._half_life)
            dealings.jobs += 1
            dealings.good += not is_failed
            dealings.gpu_hours += gpu_hours
            if rates:
                is_content = dealings.good > 0.9 * dealings.jobs
                dealings.stars = MAX_STARS if is_content else _FEW_STARS
                dealings.rated_on = day
        for number, (name, raters) in enumerate(self._raters.items()):
            provider = self._judged[number]
            following = self._judged[(number + 1) % len(self._raters)].name
            for rater in (*raters, following) if provider.is_open and name != following else ():
                dealings = provider.dealings(rater, day, self._half_life)
                dealings.jobs, dealings.good = dealings.jobs + 1, dealings.good + 1
                dealings.gpu_hours += _RATER_GPU_HOURS
                if day % _MONTH == 0:
                    dealings.stars, dealings.rated_on = MAX_STARS, day

    def _observe(self, day: int) -> None:
        """Note availability, answers, checks and breaches of each provider on a day."""
        population = self._population
        draws = self._rng.random((4, population.size))
        is_down = draws[0] < population.down_rates
        is_slow = draws[1] < population.slow_rates
        fails = draws[2] < population.check_rates
        breaches = draws[3] < population.breach_rates
        for number, provider in enumerate(self._judged):
            if population.joins_at[number] > day:
                continue
            cases = [(Dimension.AVAILABILITY, float(not is_down[number]))]
            if (day + number) % _CHECK_DAYS == 0:
                cases.append((Dimension.CHECKS, float(not fails[number])))
                cases.append((Dimension.RESPONSE, float(not is_slow[number])))
                provider.is_failing = bool(fails[number])
                if provider.is_failing:
                    self._add_breach(provider, "check_failed", day)
            provider.add_day(cases, self._half_life)
            # Nobody's jobs are there to be breached while it is suspended.
            if breaches[number] and provider.is_open:
                self._add_breach(provider, "availability", day)

    def _add_breach(self, provider: Judged, kind: str, day: int) -> None:
        at = START + day * DAY
        provider.breaches.append(Breach(at=at, kind=kind, subject=provider.name, text=kind))

    def results(self) -> MarketResults:
        """Return what became of the market."""
        population, figures = self._population, self._figures
        first, last = figures[:_MONTH].sum(axis=0), figures[-_MONTH:].sum(axis=0)
        is_late = population.joins_at > 0
        scores = np.array([provider.score for provider in self._judged])
        groups = {
            "score_bad": population.is_bad & ~population.in_ring,
            "score_ring": population.in_ring,
            "score_good": ~population.is_bad,
        }
        means = {
            name: _rounded(scores[group].mean()) if group.any() and self._is_judged else 0.0
            for name, group in groups.items()
        }
        daily = figures[:, 1] / np.maximum(figures[:, 0], 1)
        return MarketResults(
            bad_share=[_rounded(value) for value in daily],
            bad_share_first=_rounded(first[1] / max(first[0], 1)),
            bad_share_last=_rounded(last[1] / max(last[0], 1)),
            ring_share_last=_rounded(last[2] / max(last[0], 1)),
            failed_share_last=_rounded(last[3] / max(last[0], 1)),
            mean_price_last=_rounded(last[4] / max(last[0], 1)),
            useful_price_last=_rounded(last[4] / max(last[6], 1)),
            late_share_last=_rounded(last[5] / max(last[0], 1)),
            late_capacity_share=_rounded(population.slots[is_late].sum() / population.slots.sum()),
            unserved_share=_rounded(self._unserved / (self._setup.jobs_per_day * self._setup.days)),
            suspended_bad=int((self._was_suspended & population.is_bad).sum()),
            suspended_good=int((self._was_suspended & ~population.is_bad).sum()),
            **means,
        )


def _turns(picked: Ints) -> Ints:
    """Return for each job how many jobs before it picked the same provider."""
    order = np.argsort(picked, kind="stable")
    ordered = picked[order]
    is_first = np.r_[True, ordered[1:] != ordered[:-1]]
    starts = np.maximum.accumulate(np.where(is_first, np.arange(len(ordered)), 0))
    turns = np.empty(len(picked), np.int64)
    turns[order] = np.arange(len(ordered)) - starts
    return turns


def _rounded(value: float) -> float:
    return round(float(value), 4)
