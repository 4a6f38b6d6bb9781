"""Which plugins there are: Vedette's own, and those that installed packages add."""

import importlib
from importlib.metadata import entry_points
from typing import cast

from plugins.base import PluginClass

ENTRY_POINT_GROUP = "vedette.plugins"

# The same as in pyproject.toml, so that a checkout that is not installed has them too.
BUILT_IN = {
    "cpu": "plugins.cpu:CPUPlugin",
    "memory": "plugins.memory:MemoryPlugin",
    "swap": "plugins.swap:SwapPlugin",
    "load": "plugins.load:LoadPlugin",
    "disk": "plugins.disk:DiskPlugin",
    "diskio": "plugins.diskio:DiskIOPlugin",
    "network": "plugins.network:NetworkPlugin",
    "processes": "plugins.processes:ProcessesPlugin",
    "uptime": "plugins.uptime:UptimePlugin",
    "sensors": "plugins.sensors:SensorsPlugin",
    "nvml": "plugins.nvml:NVMLPlugin",
    "gpu_processes": "plugins.gpu_processes:GPUProcessesPlugin",
    "amdgpu": "plugins.amdgpu:AMDGPUPlugin",
    "containers": "plugins.containers:ContainersPlugin",
    "speedtest": "plugins.speedtest:SpeedtestPlugin",
    "inventory": "plugins.inventory:InventoryPlugin",
    "exec": "plugins.exec:ExecPlugin",
    "collectd_python": "plugins.collectd_python:CollectdPythonPlugin",
    "simulated_gpu": "plugins.simulated_gpu:SimulatedGPUPlugin",
    "simulated_host": "plugins.simulated_host:SimulatedHostPlugin",
}


def plugin_names() -> list[str]:
    """Return the name of every plugin that can be loaded, sorted."""
    return sorted(_addresses())


def load_plugin_class(name: str) -> PluginClass:
    """Return the class of a plugin, importing its code only now.

    Raises:
        KeyError: there is no such plugin.
    """
    module, _, attribute = _addresses()[name].partition(":")
    return cast("PluginClass", getattr(importlib.import_module(module), attribute))


def _addresses() -> dict[str, str]:
    added = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    return added | BUILT_IN
