"""All benchmarks, one after the other: `python -m benchmarks [--quick] [--folder FOLDER]`.

Each document is kept in the folder; all together are printed as one.
"""

import json
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks import (
    accounts,
    agent_beside_collectd,
    alert_rules,
    backtest,
    dashboards,
    fleet_hold,
    follow,
    hostile,
    idle,
    ingest,
    month,
    partition,
    placement,
    plugins,
    polls,
    queries,
    size,
    slow_receivers,
    start,
    tunnel,
    usage,
)
from benchmarks.figures import keep_document
from benchmarks.gateway import HOST_PLUGINS

FOLDER = Path("var/bench")


@click.command()
@click.option("--quick", is_flag=True, help="A few seconds of each: to see that they run.")
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER, show_default=True)
def main(*, quick: bool, folder: Path) -> None:
    """Run all benchmarks and print one JSON document."""
    runs: dict[str, Callable[[], dict[str, object]]] = {
        "plugins": lambda: plugins.measure(plugins.QUICK if quick else plugins.FULL, HOST_PLUGINS),
        "agent_beside_collectd": lambda: agent_beside_collectd.measure(
            agent_beside_collectd.QUICK if quick else agent_beside_collectd.FULL
        ),
        "partition": lambda: partition.measure(partition.QUICK if quick else partition.FULL),
        "ingest": lambda: ingest.measure(ingest.QUICK if quick else ingest.FULL),
        "queries": lambda: queries.measure(
            (queries.quick if quick else queries.full)(queries.end_of_history())
        ),
        "size": lambda: size.measure(size.QUICK if quick else size.FULL),
        "backtest": lambda: backtest.measure(backtest.QUICK if quick else backtest.FULL),
        "month": lambda: month.measure(month.QUICK if quick else month.FULL),
        "accounts": lambda: accounts.measure(accounts.QUICK if quick else accounts.FULL),
        "fleet_hold": lambda: fleet_hold.measure(fleet_hold.QUICK if quick else fleet_hold.FULL),
        "follow": lambda: follow.measure(follow.QUICK if quick else follow.FULL),
        "placement": lambda: placement.measure(placement.QUICK if quick else placement.FULL),
        "polls": lambda: polls.measure(polls.QUICK if quick else polls.FULL),
        "start": lambda: start.measure(start.QUICK if quick else start.FULL),
        "tunnel": lambda: tunnel.measure(tunnel.QUICK if quick else tunnel.FULL),
        "usage": lambda: usage.measure(usage.QUICK if quick else usage.FULL),
        "alert_rules": lambda: alert_rules.measure(
            alert_rules.QUICK if quick else alert_rules.FULL
        ),
        "slow_receivers": lambda: slow_receivers.measure(
            slow_receivers.QUICK if quick else slow_receivers.FULL
        ),
        "idle": lambda: idle.measure(idle.QUICK if quick else idle.FULL),
        "dashboards": lambda: dashboards.measure(dashboards.QUICK if quick else dashboards.FULL),
        "hostile": lambda: hostile.measure(hostile.QUICK if quick else hostile.FULL),
    }
    documents = {}
    for name, run in runs.items():
        click.echo(f"• {name}", err=True)
        documents[name] = run()
        keep_document(documents[name], folder / f"{name}.json")
    print(json.dumps(documents, indent=2))


if __name__ == "__main__":
    main()
