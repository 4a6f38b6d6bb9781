"""`vedette simulate`: try the placement policies on a trace of a real cluster."""

import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import click

from jobqueue.placement.policies import POLICY_NAMES
from jobqueue.placement.trace import (
    Outcome,
    check_trace,
    read_nodes,
    read_pods,
)
from jobqueue.placement.trace import (
    simulate as simulate_once,
)
from jobqueue.placement.views import ApplianceView, JobShape

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--nodes", required=True, type=FILE, help="Node list of the trace (CSV).")
@click.option("--pods", required=True, type=FILE, help="Pod list of the trace (CSV).")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice([*POLICY_NAMES, "all"]),
    default=("all",),
    show_default=True,
    help="Placement policy; repeatable.",
)
@click.option(
    "--seeds",
    default=10,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Number of random sequences of jobs.",
)
@click.option(
    "--demand",
    "demand_percent",
    default=130.0,
    show_default=True,
    type=click.FloatRange(0, 1000, min_open=True),
    help="Requested GPUs in percent of the cluster's.",
)
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
)
def simulate(
    *,
    nodes: Path,
    pods: Path,
    policies: tuple[str, ...],
    seeds: int,
    demand_percent: float,
    form: str,
) -> None:
    """Show how much of a cluster's GPUs each placement policy can allocate.

    The files have the format of Alibaba's cluster-trace-gpu-v2023. Jobs are drawn from the pods at
    random, with replacement, until they have requested the demand; they arrive one by one, none
    ends, and one that fits nowhere is refused. The code is that of the job queue.
    """
    appliances, shapes = read_nodes(nodes), read_pods(pods)
    check_trace(appliances, shapes)
    names = POLICY_NAMES if "all" in policies else tuple(dict.fromkeys(policies))
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
