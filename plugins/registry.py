"""Registry of the built-in plugins and those of installed packages."""

import importlib
from importlib.metadata import entry_points
from typing import cast

from plugins.base import PluginClass

ENTRY_POINT_GROUP = "vedette.plugins"

# The same as in pyproject.toml, so that a checkout that is not installed has them too.
BUILT_IN = {
    "cpu": "plugins.cpu.reader:CPUPlugin",
    "memory": "plugins.memory.reader:MemoryPlugin",
    "swap": "plugins.swap.reader:SwapPlugin",
    "load": "plugins.load.reader:LoadPlugin",
    "disk": "plugins.disk.reader:DiskPlugin",
    "diskio": "plugins.diskio.reader:DiskIOPlugin",
    "network": "plugins.network.reader:NetworkPlugin",
    "processes": "plugins.processes.reader:ProcessesPlugin",
    "uptime": "plugins.uptime.reader:UptimePlugin",
    "sensors": "plugins.sensors.reader:SensorsPlugin",
    "nvml": "plugins.nvml.reader:NVMLPlugin",
    "gpu_processes": "plugins.gpu_processes.reader:GPUProcessesPlugin",
    "amdgpu": "plugins.amdgpu.reader:AMDGPUPlugin",
    "amdgpu_processes": "plugins.amdgpu_processes.reader:AMDGPUProcessesPlugin",
    "containers": "plugins.containers.reader:ContainersPlugin",
    "speedtest": "plugins.speedtest.reader:SpeedtestPlugin",
    "inventory": "plugins.inventory.reader:InventoryPlugin",
    "prometheus": "plugins.prometheus.reader:PrometheusPlugin",
    "exec": "plugins.exec.reader:ExecPlugin",
    "collectd_python": "plugins.collectd_python.reader:CollectdPythonPlugin",
    "simulated_gpu": "plugins.simulated_gpu.reader:SimulatedGPUPlugin",
    "simulated_host": "plugins.simulated_host.reader:SimulatedHostPlugin",
}


def plugin_names() -> list[str]:
    """Return the name of every plugin that can be loaded, sorted."""
    return sorted(_addresses())


def load_plugin_class(name: str) -> PluginClass:
    """Return the class of a plugin, importing its code only now.

    Raises:
        KeyError: there is no such plugin.
    """
    # To search all installed packages takes longer than to load all built-in plugins.
    address = BUILT_IN[name] if name in BUILT_IN else _addresses()[name]
    module, _, attribute = address.partition(":")
    return cast("PluginClass", getattr(importlib.import_module(module), attribute))


def _addresses() -> dict[str, str]:
    added = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    return added | BUILT_IN
