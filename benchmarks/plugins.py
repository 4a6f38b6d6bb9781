"""Measure one reading of each plugin: CPU time, samples, bytes on the line.

    python -m benchmarks.plugins [--quick] [--gpus] [--output FILE]

A plugin is read in two ways. *Paced* sleeps between readings, as the agent does, so that caches are
cold and the clock has gone down: this is what a reading costs in the agent. *Hot* reads at once
again, and tells how much of that is the plugin's own work. `nothing` is what the measurement itself
costs. Plugins that have nothing to read on this machine are named as absent.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.figures import document, median, rounded, write_document
from benchmarks.gateway import HOST_PLUGINS
from core.clock import utc_now
from plugins.base import Plugin, PluginContext, PluginError
from plugins.registry import load_plugin_class
from timeseries.lineprotocol.encode import encode
from timeseries.points import Point

NS_PER_MICROSECOND = 1000
HOT_PER_PACED = 10
NVML_PLUGINS = ("nvml", "gpu_processes")
SETTLE_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The number of paced readings, and the time between them."""

    readings: int
    pause_seconds: float


FULL = Plan(readings=40, pause_seconds=0.25)
QUICK = Plan(readings=5, pause_seconds=0.05)


def measure(plan: Plan, names: Sequence[str]) -> dict[str, object]:
    """Read each plugin and return the document."""
    started_at = utc_now()
    results: dict[str, dict[str, object]] = {
        "nothing": {
            "gather_paced_microseconds": median(
                _microseconds(lambda: None, plan.readings, pause=plan.pause_seconds)
            )
        }
    }
    results |= {name: cost_of(name, plan) for name in names}
    return document(
        "plugins",
        started_at=started_at,
        settings={
            "paced_readings": plan.readings,
            "pause_seconds": plan.pause_seconds,
            "hot_readings": plan.readings * HOT_PER_PACED,
        },
        results=results,
    )


def cost_of(name: str, plan: Plan) -> dict[str, object]:
    """Return what one reading of a plugin costs, or why there is none."""
    plugin_class = load_plugin_class(name)
    plugin = plugin_class(plugin_class.config_class(), PluginContext())
    try:
        _gather(plugin)  # rates need one reading before, and libraries are loaded
        time.sleep(SETTLE_SECONDS)
        points = _gather(plugin)
        return {
            **_figures(plugin, points, plan),
            "declared_metrics": len(plugin_class.metrics),
            **_encoding(points, plan),
        }
    except PluginError as error:
        return {"absent": str(error)}
    finally:
        plugin.close()


def _figures(plugin: Plugin, points: list[Point], plan: Plan) -> dict[str, object]:
    samples = sum(len(point.fields) for point in points)
    paced = _microseconds(lambda: _gather(plugin), plan.readings, pause=plan.pause_seconds)
    hot = _microseconds(lambda: _gather(plugin), plan.readings * HOT_PER_PACED)
    return {
        "gather_paced_microseconds": median(paced),
        "gather_hot_microseconds": median(hot),
        "points": len(points),
        "samples": samples,
        "paced_microseconds_per_sample": (
            rounded((median(paced) or 0.0) / samples) if samples else None
        ),
    }


def _encoding(points: list[Point], plan: Plan) -> dict[str, object]:
    hot = _microseconds(lambda: encode(points), plan.readings * HOT_PER_PACED)
    return {"encode_hot_microseconds": median(hot), "line_bytes": len(encode(points))}


def _gather(plugin: Plugin) -> list[Point]:
    return list(plugin.gather(utc_now()))


def _microseconds(run: Callable[[], object], times: int, *, pause: float = 0.0) -> list[float]:
    """Return this thread's CPU time of each run; the driver's threads are not counted."""
    taken = []
    for _ in range(times):
        if pause:
            time.sleep(pause)
        began = time.thread_time_ns()
        run()
        taken.append((time.thread_time_ns() - began) / NS_PER_MICROSECOND)
    return taken


@click.command()
@click.option("--quick", is_flag=True, help="5 readings in place of 40.")
@click.option(
    "--gpus", is_flag=True, help="Also read the GPU plugins, from whatever driver is found."
)
@click.option("--output", type=click.Path(path_type=Path), help="Also keep the JSON here.")
def main(*, quick: bool, gpus: bool, output: Path | None) -> None:
    """Measure one reading of each plugin and print JSON."""
    names = (*HOST_PLUGINS, *(NVML_PLUGINS if gpus else ()))
    write_document(measure(QUICK if quick else FULL, names), output)


if __name__ == "__main__":
    main()
