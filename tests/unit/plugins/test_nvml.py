"""The nvml plugin on this host, with NVIDIA's driver or without, and its parts that need none."""

import ctypes.util
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from plugins.base import PluginContext, PluginUnavailableError
from plugins.gpu_processes.reader import GPUProcessesPlugin
from plugins.nvml.config import NVMLConfig
from plugins.nvml.reader import NVMLPlugin
from plugins.nvml.readings import Fields, present
from plugins.procfs import CounterRates
from tests.unit.plugins.conftest import FIRST_AT

HAS_DRIVER = Path("/proc/driver/nvidia").exists() or ctypes.util.find_library("nvidia-ml")


def test_gpus_are_read_with_a_driver_and_unavailable_without() -> None:
    plugin = NVMLPlugin(NVMLConfig(), PluginContext())
    if HAS_DRIVER:
        points = list(plugin.gather(FIRST_AT))
        assert points
        assert all(point.tags["uuid"].startswith("GPU-") for point in points)
    else:
        with pytest.raises(PluginUnavailableError, match="no NVIDIA driver"):
            plugin.gather(FIRST_AT)
    plugin.close()


def test_a_child_is_needed_only_where_there_is_a_driver() -> None:
    assert NVMLPlugin.needs_worker(PluginContext()) == bool(HAS_DRIVER)
    assert GPUProcessesPlugin.needs_worker(PluginContext()) == bool(HAS_DRIVER)


def test_without_a_driver_the_bindings_are_not_even_imported() -> None:
    code = (
        "import sys\n"
        "from plugins.nvml.reader import NVMLPlugin\n"
        "from plugins.gpu_processes.reader import GPUProcessesPlugin\n"
        "sys.exit('pynvml' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_a_number_that_the_driver_does_not_know_is_left_out() -> None:
    fields: Fields = {
        "pcie_replays": 2**64 - 1,
        "power_watts": 250.5,
        "lost": 0,
        "fan_percent": None,
    }
    assert present(fields) == {"power_watts": 250.5, "lost": 0}


def test_bytes_per_second_are_the_growth_of_a_counter() -> None:
    rates = CounterRates()
    assert rates.per_second("tx", 1000, now=FIRST_AT) is None
    assert rates.per_second("tx", 6000, now=FIRST_AT + timedelta(seconds=10)) == 500


def test_a_reset_counter_has_no_rate_until_it_grows() -> None:
    rates = CounterRates()
    rates.per_second("tx", 1000, now=FIRST_AT)
    assert rates.per_second("tx", 10, now=FIRST_AT + timedelta(seconds=10)) is None
    assert rates.per_second("tx", 30, now=FIRST_AT + timedelta(seconds=20)) == 2


def test_a_clock_that_was_set_back_gives_no_rate() -> None:
    rates = CounterRates()
    rates.per_second("tx", 1000, now=FIRST_AT)
    assert rates.per_second("tx", 2000, now=FIRST_AT - timedelta(seconds=5)) is None
