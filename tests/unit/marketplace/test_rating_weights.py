"""Weights of ratings: bounded by customer, by ties to each other and by ties to the provider."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.reputation.beta import decay
from marketplace.reputation.ratings import (
    RATING_LIMIT,
    Entry,
    GivenRating,
    bounded_weights,
    email_affiliation,
    rating_cases,
    ring,
    tied_groups,
)
from tests.cast import NOON

HALF_LIFE = timedelta(days=60)
DAY = timedelta(days=1)


def weights(entries: list[Entry], groups: dict[str, str] | None = None) -> list[float]:
    return bounded_weights(
        entries, groups or {}, RATING_LIMIT, provider_id="p", now=NOON, half_life=HALF_LIFE
    )


def entry(customer: str, hours: float, *, days: float = 0) -> Entry:
    return Entry(customer_id=customer, amount=hours, at=NOON - days * DAY)


def test_a_rating_weighs_more_the_more_its_customer_ran_there() -> None:
    small, large, huge = weights([entry("a", 1), entry("b", 20), entry("c", 1e6)])
    assert small == pytest.approx(5 / 21)
    assert large == pytest.approx(2.5)
    assert huge == pytest.approx(RATING_LIMIT.weight, abs=1e-3)
    assert weights([entry("a", 0)]) == [0]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e5), st.floats(0, 1000)), max_size=40)
)
def test_no_number_of_ratings_lets_a_customer_weigh_above_its_limit(
    given_ratings: list[tuple[str, float, float]],
) -> None:
    entries = [entry(customer, hours, days=days) for customer, hours, days in given_ratings]
    totals = dict.fromkeys("abc", 0.0)
    for item, weight in zip(entries, weights(entries), strict=True):
        totals[item.customer_id] += weight * decay(NOON - item.at, HALF_LIFE)
    assert all(total <= RATING_LIMIT.weight + 1e-9 for total in totals.values())


def test_tied_customers_count_as_one_and_those_of_the_provider_hardly() -> None:
    affiliations = {
        "p": ["p.example"],
        "own": ["p.example"],
        **{f"sybil-{n}": ["farm.example"] for n in range(50)},
        "free": ["free.example"],
    }
    groups = tied_groups(affiliations, provider_id="p", praises={})
    entries = [entry(name, 100) for name in affiliations if name != "p"]
    by_name = dict(
        zip((item.customer_id for item in entries), weights(entries, groups), strict=True)
    )
    assert sum(by_name[f"sybil-{n}"] for n in range(50)) < RATING_LIMIT.weight
    assert by_name["own"] <= RATING_LIMIT.tied_weight
    assert by_name["free"] == pytest.approx(5 * 100 / 120)


def test_a_ring_of_mutual_praise_is_tied_to_the_provider() -> None:
    praises = {"p": ["a"], "a": ["b"], "b": ["c"], "c": ["p"], "d": ["p"]}
    assert ring("p", praises) == {"a", "b", "c"}
    groups = tied_groups({name: [] for name in "abcd"}, provider_id="p", praises=praises)
    assert groups["c"] == groups["p"]
    assert groups["d"] != groups["p"]
    ratings = weights([entry(name, 1000) for name in "abcd"], groups)
    assert sum(ratings[:3]) <= RATING_LIMIT.tied_weight
    assert ratings[3] > 4


def test_a_tenant_that_is_no_customer_ties_nobody() -> None:
    # Mallory names the email domains of both; it rents nothing here, so it is not asked.
    affiliations = {"p": ["p.example"], "a": ["a.example"]}
    groups = tied_groups(affiliations, provider_id="p", praises={"mallory": ["a", "p"]})
    assert groups["a"] != groups["p"]


def test_a_customer_ties_no_others_by_naming_their_email_domains() -> None:
    affiliations = {
        "p": ["p.example"],
        "a": ["a.example"],
        "b": ["b.example"],
        "mallory": ["m.example", "p.example", "a.example", "b.example"],
    }
    groups = tied_groups(affiliations, provider_id="p", praises={})
    assert groups["mallory"] == groups["p"]
    assert len({groups[name] for name in "pab"}) == 3
    del affiliations["p"]
    groups = tied_groups(affiliations, provider_id="p", praises={})
    assert len({groups[name] for name in "pab"}) == 3


def test_a_provider_silences_no_customer_by_a_tie() -> None:
    # It names the email domain of its customer, or rents there and praises it.
    groups = tied_groups({"p": ["a.example"], "a": ["a.example"]}, provider_id="p", praises={})
    ratings = [
        GivenRating(id="r1", customer_id="a", stars=1, gpu_hours=20, at=NOON),
        GivenRating(id="r2", customer_id="a", stars=5, gpu_hours=20, at=NOON),
    ]
    tied_complaint, tied_praise = rating_cases(
        ratings, groups, provider_id="p", now=NOON, half_life=HALF_LIFE
    )
    complaint, praise = rating_cases(ratings, {}, provider_id="p", now=NOON, half_life=HALF_LIFE)
    assert tied_praise.weight < praise.weight / 2
    assert tied_complaint.weight == complaint.weight


def test_a_rating_is_a_case_of_satisfaction() -> None:
    ratings = [
        GivenRating(id="r1", customer_id="a", stars=5, gpu_hours=20, at=NOON, text="fast"),
        GivenRating(id="r2", customer_id="b", stars=2, gpu_hours=20, at=NOON - 60 * DAY),
    ]
    first, second = rating_cases(ratings, {}, provider_id="p", now=NOON, half_life=HALF_LIFE)
    assert (first.good, first.weight, first.kind, first.text) == (1, 2.5, "rated_5", "fast")
    assert second.good == 0.25
    # It decays to 10 GPU-hours, which are half as much beside the limit's 20.
    assert second.weight * decay(60 * DAY, HALF_LIFE) == pytest.approx(5 * 10 / 30)


def test_a_public_email_domain_ties_nobody_but_the_same_address() -> None:
    assert list(email_affiliation("Ann@Acme.example ")) == ["acme.example"]
    assert list(email_affiliation("ann@gmail.com")) == ["ann@gmail.com"]
    assert list(email_affiliation("")) == []
