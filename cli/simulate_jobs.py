"""`vedette simulate --jobs`: replay recorded jobs, and show the figures beside today's."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from cli.client import print_table
from jobqueue.simulation.picture import picture
from jobqueue.simulation.recording import Recording
from jobqueue.simulation.results import Results, Waits
from jobqueue.simulation.scenarios import Changes, replay_all, scenarios

_UNKNOWN = "unknown"


def simulate_jobs(
    recording: Recording, changes: Changes, *, form: str, picture_path: Path | None
) -> None:
    """Replay a recording under today's rules and the changed ones, and print the figures."""
    steps = 100
    with click.progressbar(length=steps, label="Replaying", file=sys.stderr) as bar:
        results = replay_all(
            scenarios(recording, changes), lambda part: bar.update(round(steps * part) - bar.pos)
        )
    if picture_path is not None:
        picture_path.write_text(picture(results), encoding="utf-8")
    if form == "json":
        listed = [{"scenario": name, **msgspec.to_builtins(outcome)} for name, outcome in results]
        click.echo(json.dumps({"scenarios": listed}, indent=2))
        return
    titles = ("SCENARIO", "ALLOCATED", "BLOCKED", "WAIT P50", "WAIT P95", "JAIN", "FROM SHARES")
    rows = [(name, *_summary(outcome)) for name, outcome in results]
    print_table([(*titles, "PREEMPTED", "ENERGY"), *rows])
    impossible = max(outcome.impossible for _, outcome in results)
    if impossible:
        click.echo(f"{impossible} jobs fit no appliance, even if it is idle; they are left out.")
    _print_waits("PROJECT", [(name, _by_project(outcome)) for name, outcome in results])
    _print_waits("SIZE", [(name, _by_size(outcome)) for name, outcome in results])


def _summary(outcome: Results) -> tuple[str, ...]:
    energy = outcome.energy_kilowatt_hours
    return (
        f"{100 * outcome.allocated_ratio:.1f} %",
        f"{100 * outcome.blocked_ratio:.1f} %",
        _wait(outcome.waits.wait_seconds_p50),
        _wait(outcome.waits.wait_seconds_p95),
        f"{outcome.jain_index:.3f}",
        f"{100 * outcome.share_deviation:.1f} %",
        str(outcome.preemptions),
        _UNKNOWN if energy is None else f"{energy:.1f} kWh",
    )


def _by_project(outcome: Results) -> dict[str, Waits]:
    return {
        str(project.project) if project.project else "none": project for project in outcome.projects
    }


def _by_size(outcome: Results) -> dict[str, Waits]:
    return {size.size: size for size in outcome.sizes}


def _print_waits(title: str, results: Sequence[tuple[str, dict[str, Waits]]]) -> None:
    click.echo()
    rows = [
        (key, name, str(waits[key].jobs), _wait(waits[key].wait_seconds_p50),
         _wait(waits[key].wait_seconds_p95))
        for key in results[0][1]
        for name, waits in results
    ]  # fmt: skip
    print_table([(title, "SCENARIO", "JOBS", "WAIT P50", "WAIT P95"), *rows])


def _wait(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours >= 1:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"
