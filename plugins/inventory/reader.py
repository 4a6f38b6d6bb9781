"""What this appliance has: published for the heartbeat, and counted as samples."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from core.clock import to_ns
from plugins.base import Metric, PluginContext, PluginTraits, gauges
from plugins.inventory.source import InventorySource
from plugins.nvml.presence import driver_is_present
from timeseries.points import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryConfig:
    """The inventory has no settings of its own."""


class InventoryPlugin:
    """One point that counts what is here; the inventory itself goes with the heartbeat."""

    name: ClassVar[str] = "inventory"
    config_class: ClassVar[type] = InventoryConfig
    traits: ClassVar[PluginTraits] = PluginTraits(
        interval_seconds=60.0, time_limit_seconds=30.0, child="nvml"
    )
    metrics: ClassVar[tuple[Metric, ...]] = gauges(
        {
            "cpu_count": ("threads", "hardware threads of the CPUs"),
            "memory_bytes": ("bytes", "memory of the host"),
            "gpu_count": ("GPUs", "GPUs that answer"),
            "disk_count": ("disks", "disks"),
            "nic_count": ("network cards", "network cards"),
        }
    )

    def __init__(self, config: InventoryConfig, context: PluginContext) -> None:
        del config
        self._context = context
        self._source = InventorySource(proc=context.proc, sys=context.sys)

    @classmethod
    def needs_child(cls, context: PluginContext) -> bool:
        """Return whether there is a driver whose calls may hang."""
        del context
        return driver_is_present()

    def gather(self, now: datetime) -> Iterable[Point]:
        """Publish what is here now and return the counts."""
        found = self._source.read()
        self._context.publish_inventory(found)
        fields = {
            "cpu_count": found.cpu_count,
            "memory_bytes": found.memory_bytes,
            "gpu_count": len(found.gpus),
            "disk_count": len(found.disks),
            "nic_count": len(found.nics),
        }
        return [Point("inventory", {}, fields, to_ns(now))]

    def close(self) -> None:
        """Let the driver go."""
        self._source.close()
