"""The documents that the benchmarks print have the shape that benchmarks/README.md describes."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.agent_beside_collectd import CONTENDERS, CPU, MEMORY, promises, summary
from benchmarks.figures import Figures
from benchmarks.outage import Filled
from benchmarks.partition import WEEK_TICKS, week_of
from benchmarks.partition import promises as outage_promises

ROOT = Path(__file__).parents[3]


def test_a_quick_run_of_the_plugins_prints_the_document(tmp_path: Path) -> None:
    kept = tmp_path / "plugins.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.plugins", "--quick", "--output", str(kept)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert json.loads(kept.read_text()) == found
    assert found["benchmark"] == "plugins"
    assert "-m benchmarks.plugins --quick" in found["command"]
    assert found["settings"]["paced_readings"] == 5
    assert found["results"]["load"].keys() == {
        "gather_paced_microseconds", "gather_hot_microseconds", "points", "samples",
        "paced_microseconds_per_sample", "declared_metrics", "encode_hot_microseconds",
        "line_bytes",
    }  # fmt: skip
    assert found["results"]["load"]["samples"] == 3


def test_ratios_are_taken_within_a_repetition_before_the_median() -> None:
    repetitions: list[dict[str, Figures]] = [
        {name: {CPU: ours if name == "agent" else theirs, MEMORY: 50.0} for name in CONTENDERS}
        for ours, theirs in ((2.0, 4.0), (9.0, 10.0), (3.0, 4.0))
    ]
    found = summary(repetitions)
    agent = found["ratios_to_collectd"]["agent"]
    assert isinstance(agent, dict)
    assert agent[CPU] == 0.75
    kept = {promise.name: promise.is_kept for promise in promises(found)}
    assert list(kept.values()) == [True, True]


def test_a_part_of_the_week_is_extrapolated_in_proportion() -> None:
    filled = Filled(
        ticks=WEEK_TICKS // 10,
        points=1_000,
        samples=8_000,
        plain_bytes=100_000,
        disk_bytes=10_000,
        dropped_points=0,
        append_milliseconds=1.0,
    )
    week = week_of(filled, bound_bytes=200_000)
    assert week["points"] == 10_000
    assert week["share_of_the_bound"] == 0.5
    assert week["bytes_per_point"] == 10.0
    assert week["compression_ratio"] == 10.0


def test_what_was_dropped_is_counted_as_if_it_had_been_kept() -> None:
    filled = Filled(
        ticks=WEEK_TICKS,
        points=1_000,
        samples=8_000,
        plain_bytes=100_000,
        disk_bytes=5_000,
        dropped_points=500,
        append_milliseconds=1.0,
    )
    assert week_of(filled, bound_bytes=5_000)["share_of_the_bound"] == 2.0


def test_an_outage_that_dropped_a_point_has_broken_a_promise() -> None:
    recovery = {"agent_limit": {"live_delay_seconds_p99": 0.2}}
    found = outage_promises({"share_of_the_bound": 0.9}, recovery, dropped_points=1)
    assert [promise.is_kept for promise in found] == [True, False, True]
