"""`vedette simulate --market`: what reputation and consequences do to bad providers over time."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from cli.client import print_table
from core.spec import spec_fields
from marketplace.consequences.policy import Policy
from marketplace.simulation.market import MarketResults, Strategy, simulate
from marketplace.simulation.picture import market_picture
from marketplace.simulation.setup import MarketSetup, check_setup, populate

F = TypeVar("F", bound=Callable[..., Any])
_COLUMNS: Mapping[str, Callable[[MarketResults], str]] = {
    "BAD, FIRST 30 D": lambda result: _percent(result.bad_share_first),
    "LAST 30 D": lambda result: _percent(result.bad_share_last),
    "ON RING": lambda result: _percent(result.ring_share_last),
    "FAILED": lambda result: _percent(result.failed_share_last),
    "PRICE": lambda result: f"{result.mean_price_last:.3f}",
    "OF USE": lambda result: f"{result.useful_price_last:.3f}",
    "ON NEW": lambda result: _percent(result.late_share_last),
    "SUSPENDED": lambda result: f"{result.suspended_bad} bad, {result.suspended_good} good",
    "SCORES": lambda result: (
        f"{result.score_good:.2f} good, {result.score_bad:.2f} bad, {result.score_ring:.2f} ring"
        if result.score_good
        else "-"
    ),
}


def market_options(command: F) -> F:
    """Add an option for each field of `MarketSetup`, and those of the policy and of chance."""
    options = [
        click.option(
            f"--{field.name.replace('_', '-')}",
            type=field.type,
            default=field.default,
            show_default=True,
            help=f"With --market: {field.about.help[:1].lower()}{field.about.help[1:]}",
        )
        for field in spec_fields(MarketSetup).values()
    ]
    options += [
        click.option(
            "--weight",
            "placement_weight",
            type=click.FloatRange(0, 4),
            default=Policy().placement_weight,
            show_default=True,
            help="With --market: of the score in the order of placement.",
        ),
        click.option("--seed", type=click.IntRange(0, 2**32), default=1, help="Of chance."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def simulate_market(
    values: Mapping[str, Any],
    *,
    placement_weight: float,
    seed: int,
    form: str,
    picture_path: Path | None,
) -> None:
    """Simulate a market under each strategy, and print the figures side by side.

    Raises:
        InvalidInputError: a value is out of its limits.
    """
    setup, policy = MarketSetup(**values), Policy(placement_weight=placement_weight)
    check_setup(setup)
    results = _run_all(setup, policy, seed)
    if picture_path is not None:
        picture_path.write_text(market_picture(results), encoding="utf-8")
    if form == "json":
        document = {
            "setup": msgspec.to_builtins(setup),
            "placement_weight": placement_weight,
            "seed": seed,
            "strategies": {name: msgspec.to_builtins(result) for name, result in results.items()},
        }
        click.echo(json.dumps(document, indent=2))
        return
    rows = [
        [name, *(text(result) for text in _COLUMNS.values())] for name, result in results.items()
    ]
    print_table([["STRATEGY", *_COLUMNS], *rows])


def _run_all(setup: MarketSetup, policy: Policy, seed: int) -> dict[str, MarketResults]:
    """Run the strategies in as many processes as there are cores."""
    results: dict[Strategy, MarketResults] = {}
    workers = min(os.cpu_count() or 1, len(Strategy))
    with (
        click.progressbar(length=len(Strategy), label="Simulating", file=sys.stderr) as bar,
        ProcessPoolExecutor(workers) as pool,
    ):
        runs = {
            pool.submit(run_strategy, setup, policy, strategy, seed): strategy
            # The slow ones first.
            for strategy in reversed(Strategy)
        }
        for run in as_completed(runs):
            results[runs[run]] = run.result()
            bar.update(1)
    return {strategy.value: results[strategy] for strategy in Strategy}


def run_strategy(
    setup: MarketSetup, policy: Policy, strategy: Strategy, seed: int
) -> MarketResults:
    """Run a strategy; all of a seed have the same providers."""
    return simulate(setup, populate(setup, seed), policy, strategy, seed=seed)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
