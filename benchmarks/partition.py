"""A week without the portal: does it fit the buffer, and how does it come back?

    python -m benchmarks.partition [--quick] [--output FILE]

1. A week of an appliance with eight GPUs and 96 cores, read every 10 s, goes into the agent's
   buffer with its default bounds. Nothing may be dropped.
2. The buffer is opened again and drained to a real gateway, at the agent's own limit and without
   one, while live ticks come. Slices are measured; the time of the whole is computed from them.
3. The agent's way and influxdb-client's batching WriteApi are killed in an outage; what is lost is
   counted.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks import gateway as gateways
from benchmarks.figures import Promise, document, rounded, write_document
from benchmarks.loss import measure_loss
from benchmarks.outage import Filled, SetClock, TickTemplate, fill, tick_templates
from benchmarks.recovery import NO_LIMIT_POINTS_PER_SECOND, Slice, drain
from collector.buffering.buffer import BACKLOG_POINTS_PER_SECOND
from collector.config import AgentConfig
from collector.sending.delivery import build_buffer
from core.clock import utc_now

INTERVAL_SECONDS = 10.0
WEEK_TICKS = 60_480
NOWHERE = "http://127.0.0.1"
SEED = 3
MOST_LIVE_DELAY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The part of the week to play, and the time to watch each drain."""

    ticks: int
    distinct_ticks: int
    slice_seconds: float
    outage_seconds: float


FULL = Plan(ticks=WEEK_TICKS, distinct_ticks=720, slice_seconds=60.0, outage_seconds=20.0)
QUICK = Plan(ticks=1_440, distinct_ticks=360, slice_seconds=10.0, outage_seconds=8.0)


def measure(plan: Plan) -> dict[str, object]:
    """Play the outage and the recovery; return the document."""
    started_at, defaults = utc_now(), AgentConfig(portal_urls=[NOWHERE])
    _say(f"making {plan.distinct_ticks} distinct ticks")
    templates = tick_templates(plan.distinct_ticks, seed=SEED, interval_seconds=INTERVAL_SECONDS)
    with TemporaryDirectory(prefix="vedette-bench-") as folder:
        config = replace(defaults, data_dir=Path(folder) / "agent")
        filled = _fill(config, templates, ticks=plan.ticks)
        recovery = _recover(config, templates, Path(folder), seconds=plan.slice_seconds)
        _say("killing senders in an outage")
        loss = measure_loss(Path(folder) / "loss", outage_seconds=plan.outage_seconds)
    week = week_of(filled, bound_bytes=defaults.buffer_max_bytes)
    return document(
        "partition",
        started_at=started_at,
        settings={
            "interval_seconds": INTERVAL_SECONDS,
            "played_ticks": plan.ticks,
            "distinct_ticks": plan.distinct_ticks,
            "is_extrapolated": plan.ticks < WEEK_TICKS,
            "buffer_max_bytes": defaults.buffer_max_bytes,
        },
        results={"played": asdict(filled), "week": week, "recovery": recovery, "loss": loss},
        promises=promises(week, recovery, dropped_points=filled.dropped_points),
    )


def week_of(filled: Filled, *, bound_bytes: int) -> dict[str, float]:
    """Return a whole week's figures, in proportion where less was played or not all was kept."""
    share = WEEK_TICKS / filled.ticks
    bytes_per_point = filled.disk_bytes / (filled.points - filled.dropped_points)
    disk_bytes = bytes_per_point * filled.points
    return {
        "points": round(filled.points * share),
        "samples": round(filled.samples * share),
        "plain_mebibytes": rounded(filled.plain_bytes * share / 2**20),
        "disk_mebibytes": rounded(disk_bytes * share / 2**20),
        "share_of_the_bound": rounded(disk_bytes * share / bound_bytes),
        "bytes_per_point": rounded(bytes_per_point),
        "bytes_per_sample": rounded(disk_bytes / filled.samples),
        "compression_ratio": rounded(filled.plain_bytes / disk_bytes),
    }


def promises(
    week: Mapping[str, float],
    recovery: Mapping[str, Mapping[str, object]],
    *,
    dropped_points: int,
) -> list[Promise]:
    """Return what is promised of an outage, with what was measured."""
    delay = recovery["agent_limit"]["live_delay_seconds_p99"]
    return [
        Promise(
            name="a week's samples as a share of the buffer's default bound",
            bound=1.0,
            measured=week["share_of_the_bound"],
            unit="of it",
        ),
        Promise(
            name="points dropped in the outage", bound=0.0, measured=dropped_points, unit="points"
        ),
        Promise(
            name="delay of live samples while the backlog drains, p99",
            bound=MOST_LIVE_DELAY_SECONDS,
            measured=float(delay) if isinstance(delay, int | float) else None,
            unit="seconds",
        ),
    ]


def _fill(config: AgentConfig, templates: list[TickTemplate], *, ticks: int) -> Filled:
    _say(f"playing {ticks} ticks of an outage")
    clock = SetClock(utc_now() - timedelta(seconds=ticks * INTERVAL_SECONDS))
    buffer = build_buffer(config, clock=clock)
    filled = fill(buffer, clock, templates, ticks=ticks, interval_seconds=INTERVAL_SECONDS)
    buffer.close()
    return filled


def _recover(
    config: AgentConfig, templates: list[TickTemplate], folder: Path, *, seconds: float
) -> dict[str, dict[str, object]]:
    gateway = gateways.make_gateway(folder / "server")
    with gateways.serving(gateway) as server_pid:
        gateways.enroll(gateway, config.data_dir, name="bench")
        drains: dict[str, dict[str, object]] = {}
        limits = {"agent_limit": BACKLOG_POINTS_PER_SECOND, "no_limit": NO_LIMIT_POINTS_PER_SECOND}
        for name, limit in limits.items():
            _say(f"draining for {seconds:.0f} s: {name}")
            speaking = replace(config, portal_urls=[gateway.url], backlog_points_per_second=limit)
            drains[name] = drain(
                speaking, templates, part=Slice(seconds=seconds), server_pid=server_pid
            )
        return drains


def _say(progress: str) -> None:
    click.echo(progress, err=True)


@click.command()
@click.option("--quick", is_flag=True, help="Play four hours in place of a week.")
@click.option("--output", type=click.Path(path_type=Path), help="Also keep the JSON here.")
def main(*, quick: bool, output: Path | None) -> None:
    """Measure an outage and its end, and print JSON."""
    write_document(measure(QUICK if quick else FULL), output)


if __name__ == "__main__":
    main()
