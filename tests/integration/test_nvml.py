"""The nvml plugin through NVIDIA's own bindings, on a driver library built for the test."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers import require_program

SOURCE = Path(__file__).parent.parent / "fixtures" / "fake_nvml.c"
ROOT = SOURCE.parents[2]
GIB = 1024**3
# The loader reads its path when a process starts, so the plugin runs in one of its own.
GATHER = """
import json
from datetime import UTC, datetime
from collector.inventory import host_inventory
from plugins.base import PluginContext
from plugins.nvml.reader import NVMLConfig, NVMLPlugin

plugin = NVMLPlugin(NVMLConfig(), PluginContext())
points = plugin.gather(datetime.now(UTC))
plugin.close()
found = host_inventory()
print(json.dumps({
    "points": [{"tags": dict(point.tags), "fields": dict(point.fields)} for point in points],
    "driver": found.driver_version,
    "gpus": [gpu.uuid for gpu in found.gpus],
}))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What plugin and inventory say of the three cards."""
    compiler = require_program("gcc", package="gcc")
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, SOURCE], check=True
    )
    result = subprocess.run(
        [sys.executable, "-c", GATHER],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_a_card_that_supports_everything_is_read_in_our_units(seen: dict[str, Any]) -> None:
    point = seen["points"][0]

    assert point["tags"] == {
        "gpu": "0",
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "model": "NVIDIA H100 80GB HBM3",
    }
    assert point["fields"] == {
        "utilization_percent": 97.0,
        "memory_utilization_percent": 41.0,
        "memory_total_bytes": 80 * GIB,
        "memory_used_bytes": 20 * GIB,
        "memory_used_percent": 25.0,
        "temperature_celsius": 88.0,
        "power_watts": pytest.approx(612.345),
        "power_limit_watts": 700.0,
        "sm_clock_hertz": 1_155_000_000,
        "memory_clock_hertz": 2_619_000_000,
        "fan_percent": 63.0,
        "throttled": 1,
    }


def test_what_a_card_does_not_support_is_absent_and_not_zero(seen: dict[str, Any]) -> None:
    fields = seen["points"][1]["fields"]

    assert "fan_percent" not in fields
    assert "power_limit_watts" not in fields
    assert fields["power_watts"] == pytest.approx(612.345)


def test_an_idle_clock_is_not_throttled(seen: dict[str, Any]) -> None:
    assert seen["points"][1]["fields"]["throttled"] == 0


def test_a_lost_card_does_not_stop_the_others(seen: dict[str, Any]) -> None:
    assert [point["tags"]["gpu"] for point in seen["points"]] == ["0", "1"]


def test_the_inventory_names_driver_and_cards(seen: dict[str, Any]) -> None:
    assert seen["driver"] == "550.127.05"
    assert seen["gpus"] == [
        "GPU-00000000-0000-0000-0000-000000000000",
        "GPU-00000000-0000-0000-0000-000000000001",
    ]
