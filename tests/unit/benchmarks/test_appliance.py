"""The made-up appliance gives what docs/metrics.md says, and varies."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.appliance import CORES, GPUS, Appliance
from benchmarks.appliance_gpu import LINKS
from benchmarks.outage import SetClock, fill, tick_templates
from collector.buffering.buffer import DiskBuffer
from timeseries.lineprotocol import parse
from timeseries.points import Point

ROOT = Path(__file__).parents[3]
STARTED_AT = datetime(2026, 1, 5, 8, tzinfo=UTC)


@pytest.fixture
def ticks(tmp_path: Path) -> list[list[Point]]:
    appliance = Appliance(seed=1, scratch=tmp_path, started_at=STARTED_AT, interval_seconds=10.0)
    found = [list(appliance.tick()) for _ in range(3)]
    appliance.close()
    return found


def documented_names() -> dict[str, set[str]]:
    """Return measurement to the names of tags and fields that docs/metrics.md has for it."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    names: dict[str, set[str]] = {}
    for measurement, rest in re.findall(r"^\| `(\w+)` \|(.*)$", text, re.MULTILINE):
        names.setdefault(measurement, set()).update(re.findall(r"\w+", rest))
    groups = text.partition("Fields of `gpu`:")[2].partition("## ")[0]
    names["gpu"] |= set(re.findall(r"\w+", groups))
    names["cpu_core"] |= names["cpu"]  # "the same as `cpu`"
    return names


def test_every_name_is_documented(ticks: list[list[Point]]) -> None:
    documented = documented_names()
    used = {
        (point.measurement, name) for point in ticks[0] for name in (*point.tags, *point.fields)
    }
    assert {one for one in used if one[1] not in documented.get(one[0], set())} == set()


def test_it_has_every_core_gpu_and_link(ticks: list[list[Point]]) -> None:
    counts = {
        name: sum(point.measurement == name for point in ticks[0])
        for name in ("cpu_core", "gpu", "gpu_link")
    }
    assert counts == {"cpu_core": CORES, "gpu": GPUS, "gpu_link": GPUS * LINKS}


def test_no_link_and_hardly_a_core_reads_the_same_twice(ticks: list[list[Point]]) -> None:
    first, second = (
        {
            (point.measurement, *point.tags.values()): dict(point.fields)
            for point in tick
            if point.measurement in {"cpu_core", "gpu_link"}
        }
        for tick in ticks[:2]
    )
    assert first.keys() == second.keys()
    same = [key for key, fields in first.items() if second[key] == fields]
    assert len(same) < 0.01 * len(first)


def test_a_played_outage_puts_the_ticks_into_the_buffer_at_the_clocks_times(
    tmp_path: Path,
) -> None:
    templates = tick_templates(2, seed=1, interval_seconds=10.0)
    clock = SetClock(STARTED_AT)
    buffer = DiskBuffer(tmp_path, max_bytes=2**30, max_age_seconds=604_800, clock=clock)
    filled = fill(buffer, clock, templates, ticks=5, interval_seconds=10.0)
    batch = buffer.read()
    buffer.close()
    assert filled.points == sum(templates[turn % 2].points for turn in range(5))
    assert filled.dropped_points == 0
    assert clock.now == STARTED_AT + timedelta(seconds=50)
    assert batch is not None
    parsed = parse(batch.frames[0].payload, default_time_ns=0)
    assert parsed.errors == []
    assert len(parsed.points) == templates[0].points
    at_ns = int((STARTED_AT + timedelta(seconds=10)).timestamp()) * 10**9
    assert all(0 <= point.time_ns - at_ns < 10**7 for point in parsed.points)
