"""NVIDIA GPUs through NVML, the driver's own library.

Not every call works on every card: one that is not supported leaves its field out, never 0. A
lost GPU says so and does not stop the others. The driver may hang, so this is read in a child
process; the agent itself imports this module for its settings, and NVIDIA's bindings never.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from plugins.base import Metric, PluginContext, PluginTraits
from plugins.nvml.metrics import NVML_METRICS
from plugins.nvml.presence import driver_is_present, require_driver
from timeseries.points import Point

if TYPE_CHECKING:
    from plugins.nvml.gathering import Gathering


@dataclass(frozen=True, slots=True, kw_only=True)
class NVMLConfig:
    """Which GPUs to read, and how much of them.

    Attributes:
        skip_uuids: GPUs to leave out, by UUID.
        per_link: whether each NVLink has its own points, beside the sums of its GPU.
        pcie_throughput: whether to read what goes over PCIe; older cards need 40 ms for it.
    """

    skip_uuids: tuple[str, ...] = ()
    per_link: bool = True
    pcie_throughput: bool = True


class NVMLPlugin:
    """Points for each GPU, its slices, its links and its events."""

    name: ClassVar[str] = "nvml"
    config_class: ClassVar[type] = NVMLConfig
    traits: ClassVar[PluginTraits] = PluginTraits(child="nvml")
    metrics: ClassVar[tuple[Metric, ...]] = NVML_METRICS

    def __init__(self, config: NVMLConfig, context: PluginContext) -> None:
        del context
        self._config = config
        self._gathering: Gathering | None = None

    @classmethod
    def needs_child(cls, context: PluginContext) -> bool:
        """Return whether there is a driver that could hang."""
        del context
        return driver_is_present()

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return the points of this instant, or the events since the last time alone.

        Raises:
            PluginUnavailableError: there is no driver or no GPU.
            PluginRestartError: the driver was updated, and only a new process can load it.
            PluginError: the driver does not answer.
        """
        if self._gathering is None:
            require_driver()
            from plugins.nvml.gathering import Gathering  # noqa: PLC0415 - the bindings are heavy

            self._gathering = Gathering(
                skip_uuids=self._config.skip_uuids,
                per_link=self._config.per_link,
                pcie_throughput=self._config.pcie_throughput,
            )
        return self._gathering.points(now)

    def close(self) -> None:
        """Let the library go and end the thread that waits for events."""
        if self._gathering is not None:
            self._gathering.close()
