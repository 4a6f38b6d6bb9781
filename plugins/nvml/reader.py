"""NVIDIA GPUs through NVML, the driver's own library.

Not every call works on every card: one that is not supported leaves its field out, never 0. A
lost GPU says so and does not stop the others. The driver may hang, so this is read in a child
process; the agent itself imports this module for its settings, and NVIDIA's bindings never.
"""

from typing import ClassVar

from plugins.base import Metric, PluginContext
from plugins.nvml.config import NVMLConfig
from plugins.nvml.driver_plugin import DriverPlugin, OpenDriver
from plugins.nvml.metrics import NVML_METRICS


class NVMLPlugin(DriverPlugin):
    """Points for each GPU, its slices, its links and its events; events come alone."""

    name: ClassVar[str] = "nvml"
    config_class: ClassVar[type] = NVMLConfig
    metrics: ClassVar[tuple[Metric, ...]] = NVML_METRICS

    def __init__(self, config: NVMLConfig, context: PluginContext) -> None:
        self._config = config
        self._proc = context.proc

    def open_driver(self) -> OpenDriver:
        """Import NVIDIA's bindings and return what gathers with them."""
        from plugins.nvml.gathering import Gathering  # noqa: PLC0415 - the bindings are heavy

        return Gathering(self._config, proc=self._proc)
