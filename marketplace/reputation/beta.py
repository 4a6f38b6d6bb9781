"""The beta reputation system: what is believed of a provider, as distributions.

Each dimension is a beta distribution of how well the provider will do. It starts from a prior that
says almost nothing, good and bad cases move it, and each case counts half as much after a
half-life. A new provider is uncertain, not bad: its score is the mean plus a deviation, so that
it ranks between those that are proven good and those that are proven bad, and gets work that
shows what it is.

Source: A. Josang and R. Ismail, "The Beta Reputation System" (2002).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import exp, fsum, lgamma, log, log1p, sqrt

from marketplace.cases import Case, Dimension

WEIGHTS: Mapping[Dimension, float] = {
    Dimension.AVAILABILITY: 0.3,
    Dimension.JOBS: 0.3,
    Dimension.CHECKS: 0.2,
    Dimension.RESPONSE: 0.1,
    Dimension.SATISFACTION: 0.1,
}
"""How much each dimension counts; together 1. Opinions can never move more than their part."""
INTERVAL_SHARE = 0.9
_MAX_TERMS = 10_000
_PRECISION = 1e-10
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Beta:
    """A beta distribution of a figure between 0 and 1; both parameters are above 0."""

    alpha: float
    beta: float

    @property
    def mean(self) -> float:
        """The expected figure."""
        return self.alpha / (self.alpha + self.beta)

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        total = self.alpha + self.beta
        return sqrt(self.alpha * self.beta / (total + 1)) / total

    @property
    def score(self) -> float:
        """What to rank by: the mean plus a deviation, which decides in favor of the unknown."""
        return min(self.mean + self.deviation, 1.0)

    def interval(self, share: float = INTERVAL_SHARE) -> tuple[float, float]:
        """Return the limits between which the figure is with a probability of `share`.

        As likely below the lower limit as above the upper.
        """
        tail = (1 - share) / 2
        return self.quantile(tail), self.quantile(1 - tail)

    def quantile(self, probability: float) -> float:
        """Return the figure that is not exceeded with a probability."""
        low, high = 0.0, 1.0
        while high - low > _PRECISION:
            middle = (low + high) / 2
            if self.probability_below(middle) < probability:
                low = middle
            else:
                high = middle
        return (low + high) / 2

    def probability_below(self, figure: float) -> float:
        """Return the probability of a smaller figure: the regularized incomplete beta function."""
        if figure <= 0 or figure >= 1:
            return float(figure >= 1)
        a, b = self.alpha, self.beta
        front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(figure) + b * log1p(-figure))
        if figure < (a + 1) / (a + b + 2):
            return front * _continued_fraction(a, b, figure) / a
        return 1 - front * _continued_fraction(b, a, 1 - figure) / b

    def with_case(self, good: float, weight: float = 1.0) -> "Beta":
        """Return the distribution after a case that speaks for a provider as far as `good`."""
        return Beta(self.alpha + weight * good, self.beta + weight * (1 - good))

    def faded(self, factor: float) -> "Beta":
        """Return the distribution when its cases count only a factor, see `decay`."""
        return Beta(
            PRIOR.alpha + (self.alpha - PRIOR.alpha) * factor,
            PRIOR.beta + (self.beta - PRIOR.beta) * factor,
        )


PRIOR = Beta(2.0, 2.0)
"""Two imagined good and two bad cases: one lost job says little."""


@dataclass(frozen=True, slots=True)
class Reputation:
    """What is believed of a provider.

    Attributes:
        dimensions: the distribution of each.
        overall: of the weighted mean of all dimensions.
    """

    dimensions: Mapping[Dimension, Beta]
    overall: Beta

    @property
    def score(self) -> float:
        """What placement and lists rank by, 0 to 1."""
        return self.overall.score


def decay(age: timedelta, half_life: timedelta) -> float:
    """Return how much a case of an age counts, 0 to 1; 0.5 after a half-life."""
    return float(0.5 ** max(age / half_life, 0.0))


def distribution(cases: Iterable[Case], *, now: datetime, half_life: timedelta) -> Beta:
    """Return the distribution that cases of a dimension lead to."""
    weighed = [(case.good, case.weight * decay(now - case.at, half_life)) for case in cases]
    return Beta(
        PRIOR.alpha + fsum(weight * good for good, weight in weighed),
        PRIOR.beta + fsum(weight * (1 - good) for good, weight in weighed),
    )


def overall(dimensions: Mapping[Dimension, Beta]) -> Beta:
    """Return the distribution of the weighted mean of the dimensions; those without are the prior.

    Its deviation is the weighted mean of theirs, the largest possible, as it is not known how the
    dimensions depend on each other.
    """
    parts = [(weight, dimensions.get(name, PRIOR)) for name, weight in WEIGHTS.items()]
    mean = fsum(weight * part.mean for weight, part in parts)
    deviation = fsum(weight * part.deviation for weight, part in parts)
    cases = mean * (1 - mean) / deviation**2 - 1
    return Beta(mean * cases, (1 - mean) * cases)


def reputation(cases: Iterable[Case], *, now: datetime, half_life: timedelta) -> Reputation:
    """Return what cases of all dimensions say of a provider."""
    by_dimension: dict[Dimension, list[Case]] = {name: [] for name in Dimension}
    for case in cases:
        by_dimension[case.dimension].append(case)
    dimensions = {
        name: distribution(listed, now=now, half_life=half_life)
        for name, listed in by_dimension.items()
    }
    return Reputation(dimensions, overall(dimensions))


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function.

    Source: Lentz's method for DLMF 8.17.22, which converges fast for x < (a + 1) / (a + b + 2).
    """
    ratio, c = 1.0, 1.0
    d = 1 / _nonzero(1 - (a + b) * x / (a + 1))
    ratio = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _nonzero(1 + term * d)
            c = _nonzero(1 + term / c)
            ratio *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return ratio


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
