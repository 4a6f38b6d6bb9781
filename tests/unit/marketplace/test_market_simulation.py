"""The simulated market: bad providers lose their work, and rings of raters gain little."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from cli.simulate import simulate as command
from core.errors import InvalidInputError
from marketplace.consequences.policy import Policy
from marketplace.simulation.market import MarketResults, Strategy, simulate
from marketplace.simulation.picture import market_picture
from marketplace.simulation.setup import MarketSetup, check_setup, populate

SETUP = MarketSetup(providers=100, customers=200, jobs_per_day=500, days=60)


def run(
    strategy: Strategy, setup: MarketSetup = SETUP, policy: Policy | None = None
) -> MarketResults:
    return simulate(setup, populate(setup, 1), policy or Policy(), strategy, seed=1)


@pytest.fixture(scope="module")
def results() -> dict[Strategy, MarketResults]:
    return {strategy: run(strategy) for strategy in Strategy}


def test_chance_gives_bad_providers_their_share_and_prices_alone_more(
    results: dict[Strategy, MarketResults],
) -> None:
    assert results[Strategy.RANDOM].bad_share_last == pytest.approx(0.1, abs=0.03)
    assert results[Strategy.PRICE].bad_share_last > results[Strategy.RANDOM].bad_share_last


def test_the_policy_takes_the_work_from_bad_providers(
    results: dict[Strategy, MarketResults],
) -> None:
    policy, price = results[Strategy.POLICY], results[Strategy.PRICE]
    assert policy.bad_share_last < price.bad_share_last / 2
    assert policy.bad_share_last < policy.bad_share_first
    assert policy.failed_share_last < price.failed_share_last
    assert policy.useful_price_last < price.useful_price_last
    assert policy.suspended_bad > 0
    assert policy.suspended_good == 0


def test_new_providers_get_work(results: dict[Strategy, MarketResults]) -> None:
    assert results[Strategy.POLICY].late_share_last > 0


def test_a_ring_of_raters_gains_much_by_ratings_alone_and_little_under_the_policy(
    results: dict[Strategy, MarketResults],
) -> None:
    policy, ratings = results[Strategy.POLICY], results[Strategy.RATINGS]
    assert ratings.score_ring > ratings.score_bad + 0.2
    assert ratings.ring_share_last > 2 * policy.ring_share_last
    assert policy.score_ring - policy.score_bad < (policy.score_good - policy.score_bad) / 2


def test_many_raters_gain_little_more_than_few() -> None:
    many = MarketSetup(
        providers=50, customers=100, jobs_per_day=250, days=40, raters=100, hidden_percent=0
    )
    few = MarketSetup(
        providers=50, customers=100, jobs_per_day=250, days=40, raters=5, hidden_percent=0
    )
    scores = [run(Strategy.POLICY, setup).score_ring for setup in (few, many)]
    assert scores[1] - scores[0] < 0.05


def test_the_same_seed_gives_the_same_market(results: dict[Strategy, MarketResults]) -> None:
    assert run(Strategy.PRICE) == results[Strategy.PRICE]


def test_a_weight_of_zero_leaves_the_order_to_prices() -> None:
    lenient = Policy(
        placement_weight=0, last_below=0, unlisted_below=0, fee_tiers=(), suspension_breaches=0
    )
    assert run(Strategy.POLICY, policy=lenient).bad_share_last == pytest.approx(
        run(Strategy.PRICE).bad_share_last, abs=0.03
    )


def test_the_picture_has_a_line_for_each_strategy(results: dict[Strategy, MarketResults]) -> None:
    named = {strategy.value: result for strategy, result in results.items()}
    root = ET.fromstring(market_picture(named))  # noqa: S314 - our own
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == len(Strategy)


def test_a_setup_is_checked() -> None:
    check_setup(MarketSetup())
    with pytest.raises(InvalidInputError) as raised:
        check_setup(MarketSetup(providers=5, days=0, contracts=50))
    assert raised.value.errors.keys() == {"providers", "days", "contracts"}


def test_the_command_prints_the_strategies_side_by_side(tmp_path: Path) -> None:
    small = ("--providers", "30", "--customers", "50", "--jobs-per-day", "100", "--days", "10")
    picture = tmp_path / "market.svg"
    ran = CliRunner().invoke(command, ["--market", *small, "--picture", str(picture)])
    assert ran.exit_code == 0, ran.output
    rows = {line.split()[0]: line for line in ran.stdout.splitlines() if line}
    assert rows.keys() >= {"STRATEGY", "random", "price", "ratings", "policy"}
    assert "BAD, FIRST 30 D" in rows["STRATEGY"]
    assert picture.read_text().startswith("<svg")
    ran = CliRunner().invoke(command, ["--market", *small, "--seed", "2", "-o", "json"])
    document = json.loads(ran.stdout)
    assert (document["seed"], document["setup"]["providers"]) == (2, 30)
    assert len(document["strategies"]["policy"]["bad_share"]) == 10


def test_the_command_names_what_is_out_of_its_limits() -> None:
    ran = CliRunner().invoke(command, ["--market", "--providers", "5"])
    assert isinstance(ran.exception, InvalidInputError)
    assert "providers is 5; enter 10 to 10000." in ran.exception.message
