"""The beta reputation system: prior, cases, decay, intervals, the overall score."""

from datetime import timedelta
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.cases import Case, Dimension
from marketplace.reputation.beta import (
    PRIOR,
    WEIGHTS,
    Beta,
    decay,
    distribution,
    overall,
    reputation,
)
from tests.cast import NOON

HALF_LIFE = timedelta(days=60)
PARAMETERS = st.floats(0.5, 5000)


def case(good: float, *, days: float = 0, weight: float = 1.0) -> Case:
    return Case(
        dimension=Dimension.JOBS,
        good=good,
        weight=weight,
        at=NOON - timedelta(days=days),
        kind="ended",
    )


@pytest.mark.parametrize(
    ("a", "b", "figure"),
    [(1, 1, 0.3), (2, 2, 0.5), (3, 7, 0.2), (40, 2, 0.99), (40, 2, 0.8), (9, 300, 0.04)],
)
def test_probabilities_are_those_of_the_binomial_distribution(
    a: int, b: int, figure: float
) -> None:
    # I_x(a, b) = P(at least a of a + b - 1 trials succeed), DLMF 8.17.5.
    n = a + b - 1
    expected = sum(comb(n, k) * figure**k * (1 - figure) ** (n - k) for k in range(a, n + 1))
    assert Beta(a, b).probability_below(figure) == pytest.approx(expected, abs=1e-9)


@given(PARAMETERS, PARAMETERS, st.floats(0.01, 0.99))
def test_a_quantile_has_its_probability(alpha: float, beta: float, probability: float) -> None:
    distributed = Beta(alpha, beta)
    figure = distributed.quantile(probability)
    below = distributed.probability_below(figure - 1e-8)
    above = distributed.probability_below(figure + 1e-8)
    assert below - 1e-6 <= probability <= above + 1e-6


@given(PARAMETERS, PARAMETERS)
def test_an_interval_is_ordered_and_narrows_with_cases(alpha: float, beta: float) -> None:
    low, high = Beta(alpha, beta).interval(0.9)
    assert 0 <= low < high <= 1
    narrow_low, narrow_high = Beta(alpha * 10 + 5, beta * 10 + 5).interval(0.9)
    assert narrow_high - narrow_low < high - low


def test_a_new_provider_is_uncertain_and_ranks_between_the_proven() -> None:
    new = reputation([], now=NOON, half_life=HALF_LIFE)
    low, high = new.overall.interval()
    assert new.overall.mean == pytest.approx(0.5)
    assert [low, high] == pytest.approx([0.135, 0.865], abs=1e-3)

    def proven(good: float) -> float:
        everywhere = Beta(PRIOR.alpha + 100 * good, PRIOR.beta + 100 * (1 - good))
        return overall(dict.fromkeys(Dimension, everywhere)).score

    assert proven(0.5) < new.score < proven(0.9)
    assert new.score == pytest.approx(0.7236, abs=1e-4)


def test_a_case_counts_half_after_the_half_life_and_never_more_than_once() -> None:
    assert decay(timedelta(), HALF_LIFE) == 1
    assert decay(HALF_LIFE, HALF_LIFE) == 0.5
    assert decay(2 * HALF_LIFE, HALF_LIFE) == 0.25
    assert decay(-HALF_LIFE, HALF_LIFE) == 1
    cases = [case(1.0), case(0.0, days=60), case(0.5, days=120, weight=4)]
    summed = distribution(cases, now=NOON, half_life=HALF_LIFE)
    assert [summed.alpha, summed.beta] == pytest.approx([2 + 1.0 + 0.5, 2 + 0.5 + 0.5])


def test_updating_day_by_day_is_the_same_as_summing_all_cases() -> None:
    stepwise = PRIOR
    for days in reversed(range(90)):
        stepwise = stepwise.with_case(days % 3 / 2, 2.0)
        if days:
            stepwise = stepwise.faded(decay(timedelta(days=1), HALF_LIFE))
    cases = [case(days % 3 / 2, days=days, weight=2.0) for days in range(90)]
    summed = distribution(cases, now=NOON, half_life=HALF_LIFE)
    assert stepwise.alpha == pytest.approx(summed.alpha)
    assert stepwise.beta == pytest.approx(summed.beta)


def test_the_past_of_a_provider_fades_to_uncertainty_not_to_good_or_bad() -> None:
    bad = [case(0.0, days=days) for days in range(30)]
    scores = [
        distribution(bad, now=NOON + timedelta(days=days), half_life=HALF_LIFE).mean
        for days in (0, 60, 600)
    ]
    assert scores[0] < scores[1] < scores[2] < PRIOR.mean
    assert scores[2] == pytest.approx(PRIOR.mean, abs=0.01)


@given(st.lists(st.floats(0, 1), max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_a_better_case_never_lowers_a_mean(goods: list[float], first: float, second: float) -> None:
    worse, better = sorted((first, second))
    start = distribution([case(good) for good in goods], now=NOON, half_life=HALF_LIFE)
    assert start.with_case(worse).mean <= start.with_case(better).mean + 1e-12


@given(st.dictionaries(st.sampled_from(Dimension), st.builds(Beta, PARAMETERS, PARAMETERS)))
def test_the_overall_distribution_is_the_weighted_mean(parts: dict[Dimension, Beta]) -> None:
    whole = overall(parts)
    expected = sum(weight * parts.get(name, PRIOR).mean for name, weight in WEIGHTS.items())
    assert whole.mean == pytest.approx(expected)
    assert whole.alpha > 0
    assert whole.beta > 0
    assert 0 < whole.score <= 1


def test_opinions_move_the_score_by_no_more_than_their_weight() -> None:
    assert sum(WEIGHTS.values()) == pytest.approx(1)
    praised = overall({Dimension.SATISFACTION: Beta(1e6, 2)})
    slandered = overall({Dimension.SATISFACTION: Beta(2, 1e6)})
    assert praised.mean - slandered.mean <= WEIGHTS[Dimension.SATISFACTION]
