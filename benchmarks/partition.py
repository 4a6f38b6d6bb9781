"""A week without the portal: does it fit the buffer, and how does it come back?

1. A week of an appliance with eight GPUs and 96 cores, read every 10 s, goes into the agent's
   buffer with its default bounds, each tick flushed to disk. Nothing may be dropped.
2. The buffer is opened anew and drained to a real gateway, at the agent's own limit and without
   a limit, while live ticks come. Slices are measured; the time of the whole is computed from them.

A pool of distinct ticks is made once and goes into the buffer in turn, at later times. The pool is
far larger than a segment, so no compressor meets the same tick twice.
"""

import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from benchmarks.shared.big_appliance import TickTemplate, tick_templates
from benchmarks.shared.document import Outcome, Promise, rounded
from benchmarks.shared.recovery import drain
from benchmarks.shared.servers import enroll_agent
from collector.buffering.buffer import BACKLOG_POINTS_PER_SECOND
from collector.config import AgentConfig
from collector.sending.delivery import build_buffer
from core.clock import utc_now
from tests.cast import FrozenClock
from tests.deployment import make_deployment, serving

INTERVAL_SECONDS = 10.0
WEEK_TICKS = 60_480
MOST_LIVE_DELAY_SECONDS = 5.0
LIMITS = {"agent_limit": BACKLOG_POINTS_PER_SECOND, "no_limit": 1e12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The part of the week to play, and the time to watch each drain."""

    ticks: int = WEEK_TICKS
    distinct_ticks: int = 720
    slice_seconds: float = 60.0


FULL = Plan()
QUICK = Plan(ticks=1_440, distinct_ticks=360, slice_seconds=10.0)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Play the outage and the recovery."""
    click.echo(f"playing {plan.ticks} ticks of an outage", err=True)
    templates = tick_templates(plan.distinct_ticks)
    config = AgentConfig(portal_urls=["http://127.0.0.1"], data_dir=folder / "agent")
    week = _play(config, templates, plan)
    click.echo("draining", err=True)
    recovery = _recover(config, templates, folder, seconds=plan.slice_seconds)
    promises = [
        Promise(
            "a week's samples as a share of the buffer's default bound",
            week["share_of_the_bound"],
            1.0,
            "of it",
        ),
        Promise("points dropped in the outage", week["dropped_points"], 0.0, "points"),
        Promise(
            "delay of live samples while the backlog drains, p99",
            recovery["agent_limit"]["live_delay_seconds_p99"],
            MOST_LIVE_DELAY_SECONDS,
            "seconds",
        ),
    ]
    settings = {
        "interval_seconds": INTERVAL_SECONDS,
        "points_of_a_tick": len(templates[0].lines),
        "is_extrapolated": plan.ticks < WEEK_TICKS,
        "buffer_max_bytes": config.buffer_max_bytes,
    }
    return Outcome({"week": week, "recovery": recovery}, promises, settings)


def _play(config: AgentConfig, templates: list[TickTemplate], plan: Plan) -> dict[str, Any]:
    """Append tick after tick; return a week's figures, in proportion where less was played."""
    clock = FrozenClock(utc_now() - timedelta(seconds=plan.ticks * INTERVAL_SECONDS))
    buffer = build_buffer(config, clock=clock)
    points = samples = plain_bytes = 0
    began = time.process_time()
    for turn in range(plan.ticks):
        template = templates[turn % len(templates)]
        frame = template.frame(clock.advance(INTERVAL_SECONDS))
        buffer.append(frame)
        points += frame.points
        samples += template.samples
        plain_bytes += len(frame.payload)
    seconds = time.process_time() - began
    dropped = buffer.losses.dropped_points
    bytes_per_point = buffer.size_bytes / (points - dropped)
    buffer.close()
    share = WEEK_TICKS / plan.ticks
    disk_bytes = bytes_per_point * points
    return {
        "points": round(points * share),
        "samples": round(samples * share),
        "dropped_points": dropped,
        "plain_mebibytes": rounded(plain_bytes * share / 2**20),
        "disk_mebibytes": rounded(disk_bytes * share / 2**20),
        "share_of_the_bound": rounded(disk_bytes * share / config.buffer_max_bytes),
        "bytes_per_point": rounded(bytes_per_point),
        "bytes_per_sample": rounded(disk_bytes / samples),
        "append_milliseconds": rounded(1000 * seconds / plan.ticks),
    }


def _recover(
    config: AgentConfig, templates: list[TickTemplate], folder: Path, *, seconds: float
) -> dict[str, dict[str, Any]]:
    gateway = make_deployment(folder / "server")
    drains = {}
    with serving(gateway) as process:
        enroll_agent(gateway, config.data_dir)
        for name, limit in LIMITS.items():
            speaking = replace(config, portal_urls=[gateway.url], backlog_points_per_second=limit)
            drains[name] = drain(speaking, templates, seconds=seconds, server_pid=process.pid)
    return drains
