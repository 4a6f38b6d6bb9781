"""Hardware inventory: published for the heartbeat, and counted as samples."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from core.clock import to_ns
from jobqueue.executors.docker.devices import read_text
from plugins.amdgpu.sysfs import Card, find_cards, integer, pcie_generation
from plugins.base import (
    BasePlugin,
    NoSettings,
    PluginContext,
    PluginTraits,
    PluginUnavailableError,
    gauges,
)
from plugins.inventory.components import ComponentReader
from plugins.inventory.host import read_disks, read_facts, read_nics
from plugins.nvml.reader import driver_is_present
from protocol.inventory import GPUInfo, Inventory
from timeseries.points import Point


class InventoryPlugin(BasePlugin):
    """One point with counts; the inventory itself is sent with the heartbeat."""

    name = "inventory"
    traits = PluginTraits(interval_seconds=60.0, time_limit_seconds=30.0, worker="nvml")
    metrics = gauges(
        cpu_count=("threads", "hardware threads of the CPUs"),
        memory_bytes=("bytes", "memory of the host"),
        gpu_count=("GPUs", "responding GPUs"),
        disk_count=("disks", "disks"),
        nic_count=("network cards", "network cards"),
    )

    def __init__(self, config: NoSettings, context: PluginContext) -> None:
        del config
        self._context = context
        self._source = InventorySource(proc=context.proc, sys=context.sys)
        self._components = ComponentReader(context.docker_url)

    @classmethod
    def needs_worker(cls, context: PluginContext) -> bool:
        """Return whether there is a driver that could hang."""
        del context
        return driver_is_present()

    def gather(self, now: datetime) -> Iterable[Point]:
        """Publish the inventory and return the counts."""
        components = self._components.read()
        inventory = msgspec.structs.replace(self._source.read(), components=components)
        self._context.publish_inventory(inventory)
        fields = {
            "cpu_count": inventory.cpu_count,
            "memory_bytes": inventory.memory_bytes,
            "gpu_count": len(inventory.gpus),
            "disk_count": len(inventory.disks),
            "nic_count": len(inventory.nics),
        }
        return [Point("inventory", {}, fields, to_ns(now))]

    def close(self) -> None:
        """Close the driver."""
        self._components.close()
        self._source.close()


if TYPE_CHECKING:
    from plugins.inventory.nvidia import NVIDIAParts, NVIDIAReader

MICRO = 1e-6


class InventorySource:
    """Reads the inventory of this host.

    Args:
        proc, sys: the kernel's files.
        with_nvidia: read NVIDIA GPUs, which loads NVML into this process.
    """

    def __init__(
        self, *, proc: Path = Path("/proc"), sys: Path = Path("/sys"), with_nvidia: bool = True
    ) -> None:
        self._proc = proc
        self._sys = sys
        self._with_nvidia = with_nvidia
        self._facts: Inventory | None = None
        self._nvidia: NVIDIAReader | None = None
        self._previous: Inventory | None = None

    def read(self, *, executors: Sequence[str] = ()) -> Inventory:
        """Return the current inventory.

        Raises:
            PluginError: the NVIDIA driver does not answer.
        """
        if self._facts is None:
            self._facts = read_facts(proc=self._proc, sys=self._sys)
        nvidia = self._read_nvidia(host_memory_bytes=self._facts.memory_bytes)
        cards = find_cards(proc=self._proc, sys=self._sys)
        inventory = msgspec.structs.replace(
            self._facts,
            driver_version=nvidia.driver_version if nvidia else "",
            cuda_version=nvidia.cuda_version if nvidia else "",
            gpus=[*(nvidia.gpus if nvidia else []), *map(_amd_gpu, cards)],
            gpu_paths=nvidia.paths if nvidia else [],
            disks=read_disks(self._sys),
            nics=read_nics(self._sys),
            executors=list(executors),
        )
        return self._with_absent(inventory)

    def close(self) -> None:
        """Close NVML."""
        if self._nvidia is not None:
            self._nvidia.close()

    def _with_absent(self, inventory: Inventory) -> Inventory:
        """Add the GPUs that the previous reading had: one reading without a GPU is no loss.

        A GPU whose index is now another's is gone: the driver numbers its GPUs without gaps.
        """
        previous, self._previous = self._previous, inventory
        if previous is None:
            return inventory
        indexes, uuids = (
            {getattr(gpu, key) for gpu in inventory.gpus} for key in ("index", "uuid")
        )
        absent = {
            gpu.index: gpu
            for gpu in previous.gpus
            if gpu.index not in indexes and gpu.uuid not in uuids
        }
        paths = [
            path
            for path in previous.gpu_paths
            if path.first_index in absent or path.second_index in absent
        ]
        return msgspec.structs.replace(
            inventory,
            gpus=sorted([*inventory.gpus, *absent.values()], key=lambda gpu: gpu.index),
            gpu_paths=sorted(
                [*inventory.gpu_paths, *paths],
                key=lambda path: (path.first_index, path.second_index),
            ),
        )

    def _read_nvidia(self, *, host_memory_bytes: int) -> "NVIDIAParts | None":
        if not self._with_nvidia or (self._nvidia is None and not driver_is_present()):
            return None
        if self._nvidia is None:
            # NVML's bindings are heavy; hosts without a GPU don't need them.
            from plugins.inventory.nvidia import NVIDIAReader  # noqa: PLC0415

            self._nvidia = NVIDIAReader(host_memory_bytes=host_memory_bytes)
        try:
            return self._nvidia.read()
        except PluginUnavailableError:
            return None


def _amd_gpu(card: Card) -> GPUInfo:
    hwmon = card.hwmon
    limit = integer(hwmon / "power1_cap_max") if hwmon is not None else None
    device = card.device
    return GPUInfo(
        index=card.index,
        uuid=card.uuid,
        model=card.model,
        memory_bytes=integer(device / "mem_info_vram_total") or 0,
        power_limit_max_watts=round((limit or 0) * MICRO, 1),
        pci_address=card.pci_address,
        pcie_generation=pcie_generation(read_text(device / "current_link_speed")) or 0,
        pcie_generation_max=pcie_generation(read_text(device / "max_link_speed")) or 0,
        pcie_width=integer(device / "current_link_width") or 0,
        pcie_width_max=integer(device / "max_link_width") or 0,
        serial=read_text(device / "serial_number"),
        vbios_version=read_text(device / "vbios_version"),
    )
