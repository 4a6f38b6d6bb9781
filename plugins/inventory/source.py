"""The inventory of an appliance, put together; what can't change is read once."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jobqueue.executors.amd_devices import read_text
from jobqueue.executors.wire import GPUInfo, Inventory
from plugins.amdgpu.sysfs import Card, find_cards, integer, pcie_generation
from plugins.base import PluginUnavailableError
from plugins.inventory.host import HostFacts, read_disks, read_facts, read_nics
from plugins.nvml.presence import driver_is_present

if TYPE_CHECKING:
    from plugins.inventory.nvidia import NVIDIAParts, NVIDIAReader

MICRO = 1e-6


class InventorySource:
    """Looks at this host again and again.

    Args:
        proc, sys: the kernel's files.
        with_nvidia: whether to ask NVIDIA's driver, which loads its library into this process.
    """

    def __init__(
        self, *, proc: Path = Path("/proc"), sys: Path = Path("/sys"), with_nvidia: bool = True
    ) -> None:
        self._proc = proc
        self._sys = sys
        self._with_nvidia = with_nvidia
        self._facts: HostFacts | None = None
        self._nvidia: NVIDIAReader | None = None

    def read(self, *, executors: Sequence[str] = ()) -> Inventory:
        """Return what is here now.

        Raises:
            PluginError: NVIDIA's driver is here and does not answer: its GPUs are not known now.
        """
        if self._facts is None:
            self._facts = read_facts(proc=self._proc, sys=self._sys)
        facts, nvidia = self._facts, self._read_nvidia()
        cards = find_cards(proc=self._proc, sys=self._sys)
        return Inventory(
            hostname=facts.hostname,
            os=facts.os,
            kernel=facts.kernel,
            boot_id=facts.boot_id,
            vendor=facts.vendor,
            product=facts.product,
            serial=facts.serial,
            cpu_model=facts.cpu_model,
            cpu_count=facts.cpu_count,
            cpu_core_count=facts.cpu_core_count,
            cpu_socket_count=facts.cpu_socket_count,
            memory_bytes=facts.memory_bytes,
            driver_version=nvidia.driver_version if nvidia else "",
            cuda_version=nvidia.cuda_version if nvidia else "",
            gpus=[*(nvidia.gpus if nvidia else []), *map(_amd_gpu, cards)],
            gpu_paths=nvidia.paths if nvidia else [],
            disks=read_disks(self._sys),
            nics=read_nics(self._sys),
            executors=list(executors),
        )

    def close(self) -> None:
        """Let NVIDIA's driver go."""
        if self._nvidia is not None:
            self._nvidia.close()

    def _read_nvidia(self) -> "NVIDIAParts | None":
        if not self._with_nvidia or (self._nvidia is None and not driver_is_present()):
            return None
        if self._nvidia is None:
            # NVML's bindings are heavy, and most hosts without a GPU never need them.
            from plugins.inventory.nvidia import NVIDIAReader  # noqa: PLC0415

            self._nvidia = NVIDIAReader()
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
