"""`vedette simulate`: try the placement policies on recorded jobs, or a trace; or a market."""

import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import click

from cli.simulate_jobs import simulate_jobs
from cli.simulate_market import market_options, simulate_market
from core.errors import InvalidInputError
from jobqueue.placement.policies import POLICY_NAMES
from jobqueue.placement.views import ApplianceView, JobShape
from jobqueue.simulation.order import ORDER_NAMES
from jobqueue.simulation.public_trace import Outcome, check_trace, read_nodes, read_pods, read_trace
from jobqueue.simulation.public_trace import simulate as simulate_once
from jobqueue.simulation.recording import read_recording
from jobqueue.simulation.scenarios import Changes

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--jobs", type=FILE, help="Recorded jobs, of `vedette job export`.")
@click.option("--nodes", type=FILE, help="Node list of a trace (CSV).")
@click.option("--pods", type=FILE, help="Pod list of a trace (CSV).")
@click.option("--replay", is_flag=True, help="Replay the times of the trace; draw no jobs.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice([*POLICY_NAMES, "all"]),
    help="Placement policy; repeatable. [default: today's; for a trace all]",
)
@click.option(
    "--order",
    "orders",
    multiple=True,
    type=click.Choice(ORDER_NAMES),
    help="Order of the queue; repeatable. [default: today's]",
)
@click.option("--add", "added", multiple=True, help="Appliances to add, such as 2xdgx-01.")
@click.option("--shares", multiple=True, help="Shares of a project, such as 2=3; repeatable.")
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    help="Quota of a project, such as 2:gpus:guaranteed=4,maximum=8 or 2:gpus:none; repeatable.",
)
@click.option("--preemption/--no-preemption", default=None, help="Whether jobs may be displaced.")
@click.option(
    "--picture",
    "picture_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write a picture of the scenarios (SVG).",
)
@click.option(
    "--seeds",
    default=10,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Number of random sequences of jobs, for a trace.",
)
@click.option(
    "--demand",
    "demand_percent",
    default=130.0,
    show_default=True,
    type=click.FloatRange(0, 1000, min_open=True),
    help="Requested GPUs in percent of the cluster's, for a trace.",
)
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
)
@click.option("--json", "form", flag_value="json", help="Like -o json.")
@click.option("--market", "is_market", is_flag=True, help="Simulate a market of providers.")
@market_options
def simulate(
    *,
    jobs: Path | None,
    nodes: Path | None,
    pods: Path | None,
    replay: bool,
    policies: tuple[str, ...],
    orders: tuple[str, ...],
    added: tuple[str, ...],
    shares: tuple[str, ...],
    quotas: tuple[str, ...],
    preemption: bool | None,
    picture_path: Path | None,
    seeds: int,
    demand_percent: float,
    form: str,
    is_market: bool,
    placement_weight: float,
    seed: int,
    **market: Any,  # noqa: ANN401 - the fields of MarketSetup
) -> None:
    """Try placement policies, orders of the queue, shares, quotas, hardware; or a market.

    With --jobs, recorded jobs are replayed as they were submitted: first under the rules that the
    queue has today, then under each other policy and order, with the shares and quotas that you
    change and the appliances that you add. Projects are numbers, as in the recording.

    With --nodes and --pods, files in the format of Alibaba's cluster-trace-gpu-v2023, jobs are
    drawn from the pods at random, with replacement, until they have requested the demand; they
    arrive one by one, none ends, and one that fits nowhere is refused. With --replay, the pods are
    replayed like recorded jobs.

    With --market, honest and bad providers, customers, and a ring of raters meet for some months:
    the share of work on bad providers with random choice, by price alone, and under the policy of
    reputation and consequences.

    \b
    vedette job export > jobs.jsonl
    vedette simulate --jobs jobs.jsonl --policy best_fit --add 2xdgx-01 --picture wait.svg
    """
    if is_market:
        weight = placement_weight
        simulate_market(
            market, placement_weight=weight, seed=seed, form=form, picture_path=picture_path
        )
        return
    names = POLICY_NAMES if "all" in policies else tuple(dict.fromkeys(policies))
    if jobs is None and (nodes is None or pods is None):
        raise InvalidInputError(
            "Choose recorded jobs by --jobs, a trace by --nodes and --pods, or --market."
        )
    if jobs is None and nodes is not None and pods is not None and not replay:
        _try_trace(nodes, pods, names or POLICY_NAMES, (seeds, demand_percent), form=form)
        return
    recording = read_trace(nodes, pods) if nodes and pods else read_recording(jobs or Path())
    changes = Changes(
        policies=names,
        orders=orders,
        added=added,
        shares=shares,
        quotas=quotas,
        allows_preemption=preemption,
    )
    simulate_jobs(recording, changes, form=form, picture_path=picture_path)


def _try_trace(
    nodes: Path, pods: Path, names: Sequence[str], size: tuple[int, float], *, form: str
) -> None:
    """Show how much of a cluster's GPUs each policy allocates; `size`: seeds, demand in percent."""
    seeds, demand_percent = size
    appliances, shapes = read_nodes(nodes), read_pods(pods)
    check_trace(appliances, shapes)
    runs = [(name, seed, demand_percent / 100) for name in names for seed in range(seeds)]
    with click.progressbar(
        _outcomes(appliances, shapes, runs),
        length=len(runs),
        label="Simulating",
        file=sys.stderr,
    ) as outcomes:
        completed = list(outcomes)
    results = [
        _summary(name, [outcome for outcome in completed if outcome.policy == name])
        for name in names
    ]
    if form == "json":
        click.echo(json.dumps({"demand_percent": demand_percent, "policies": results}, indent=2))
        return
    click.echo(f"{'POLICY':<22}{'ALLOCATED':>10}{'LOWEST':>9}{'HIGHEST':>9}{'REFUSED':>9}")
    for row in results:
        figures = [row[f"allocated_percent_{name}"] for name in ("mean", "min", "max")]
        shown = [f"{figure:.2f}%" for figure in (*figures, row["refused_percent_mean"])]
        click.echo(f"{row['policy']:<22}{shown[0]:>10}{shown[1]:>9}{shown[2]:>9}{shown[3]:>9}")


def _outcomes(
    nodes: Sequence[ApplianceView],
    pods: Sequence[JobShape],
    runs: Sequence[tuple[str, int, float]],
) -> Iterator[Outcome]:
    """Run in as many processes as there are cores."""
    workers = min(os.cpu_count() or 1, len(runs))
    with ProcessPoolExecutor(workers, initializer=_set_trace, initargs=(nodes, pods)) as pool:
        for done in as_completed([pool.submit(_run, *run) for run in runs]):
            yield done.result()


# Each worker process gets the trace once.
_trace: tuple[Sequence[ApplianceView], Sequence[JobShape]] = ((), ())


def _set_trace(nodes: Sequence[ApplianceView], pods: Sequence[JobShape]) -> None:
    global _trace  # noqa: PLW0603 - set once, in a worker process
    _trace = nodes, pods


def _run(policy: str, seed: int, demand_ratio: float) -> Outcome:
    return simulate_once(*_trace, policy=policy, seed=seed, demand_ratio=demand_ratio)


def _summary(policy: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    shares = [100 * outcome.allocated_ratio for outcome in outcomes]
    refused = [100 * outcome.refused / outcome.arrived for outcome in outcomes]
    by_seed = sorted(outcomes, key=lambda outcome: outcome.seed)
    return {
        "policy": policy,
        "seeds": len(outcomes),
        "allocated_percent_mean": round(statistics.mean(shares), 3),
        "allocated_percent_min": round(min(shares), 3),
        "allocated_percent_max": round(max(shares), 3),
        "refused_percent_mean": round(statistics.mean(refused), 3),
        "allocated_percent": [round(100 * outcome.allocated_ratio, 3) for outcome in by_seed],
    }
