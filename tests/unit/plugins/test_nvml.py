"""The nvml plugin on this host, with NVIDIA's driver or without."""

import ctypes.util
from pathlib import Path

import pytest

from plugins.base import PluginContext, PluginUnavailableError
from plugins.nvml.reader import NVMLConfig, NVMLPlugin
from tests.unit.plugins.conftest import FIRST_AT

HAS_DRIVER = Path("/proc/driver/nvidia").exists() or ctypes.util.find_library("nvidia-ml")


def test_gpus_are_read_where_there_is_a_driver_and_known_to_be_absent_elsewhere() -> None:
    plugin = NVMLPlugin(NVMLConfig(), PluginContext())
    if HAS_DRIVER:
        points = list(plugin.gather(FIRST_AT))
        assert points
        assert all(point.tags["uuid"].startswith("GPU-") for point in points)
    else:
        with pytest.raises(PluginUnavailableError, match="no NVIDIA driver here"):
            plugin.gather(FIRST_AT)
    plugin.close()
