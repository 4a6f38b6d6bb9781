"""An appliance's inventory for its page: host, GPUs, disks and network interfaces."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from dash_app.pcie import pcie_link
from protocol.inventory import DiskInfo, GPUInfo, Inventory
from tenants.fleet.appliances import read_inventory
from tenants.models import Appliance

GIGABIT = 1_000_000_000
MEGABIT = 1_000_000
NONE = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class GPURow:
    """One GPU; values that the driver does not report are a dash."""

    index: int
    model: str
    architecture: str
    cores: str
    bus: str
    pcie: str
    is_pcie_narrow: bool
    nvlinks: str
    is_nvlink_down: bool
    is_mig_enabled: bool
    address: str
    vbios: str
    serial: str
    clock_hertz: int | None
    power_watts: float | None


@dataclass(frozen=True, slots=True)
class DiskRow:
    """Disks of the same model and size."""

    names: str
    count: int
    model: str
    size_bytes: int
    kind: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """An appliance's hardware."""

    inventory: Inventory
    machine: str
    cpus: str
    driver: str
    gpus: list[GPURow]
    disks: list[DiskRow]


def hardware_of(appliance: Appliance) -> Hardware:
    """Return the hardware that an appliance reported last."""
    inventory = read_inventory(appliance)
    return Hardware(
        inventory=inventory,
        machine=" ".join(part for part in (inventory.vendor, inventory.product) if part),
        cpus=_cpus(inventory),
        driver=_driver(inventory),
        gpus=[_gpu_row(gpu) for gpu in inventory.gpus],
        disks=list(_disk_rows(inventory.disks)),
    )


def line_speed(bits_per_second: int) -> str:
    """Return `25 Gbit/s`, or a dash if the link is down."""
    if bits_per_second >= GIGABIT:
        return f"{bits_per_second / GIGABIT:g} Gbit/s"
    return f"{bits_per_second / MEGABIT:g} Mbit/s" if bits_per_second else NONE


def _cpus(inventory: Inventory) -> str:
    """Return the known parts of `2 sockets, 48 cores, 96 threads`."""
    counts = (
        (inventory.cpu_socket_count, "socket"),
        (inventory.cpu_core_count, "core"),
        (inventory.cpu_count, "thread"),
    )
    parts = [f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count]
    return ", ".join(parts) or NONE


def _driver(inventory: Inventory) -> str:
    cuda = f"CUDA {inventory.cuda_version}" if inventory.cuda_version else ""
    return ", ".join(part for part in (inventory.driver_version, cuda) if part) or NONE


def _gpu_row(gpu: GPUInfo) -> GPURow:
    active = sum(link.is_active for link in gpu.nvlinks)
    capability = f" ({gpu.compute_capability})" if gpu.compute_capability else ""
    return GPURow(
        index=gpu.index,
        model=gpu.model,
        architecture=f"{gpu.architecture}{capability}".strip() or NONE,
        cores=f"{gpu.core_count:,}" if gpu.core_count else NONE,
        bus=f"{gpu.memory_bus_bits} bit" if gpu.memory_bus_bits else NONE,
        pcie=pcie_link(gpu) or NONE,
        is_pcie_narrow=0 < gpu.pcie_width < gpu.pcie_width_max,
        nvlinks=f"{active} of {len(gpu.nvlinks)}" if gpu.nvlinks else NONE,
        is_nvlink_down=active < len(gpu.nvlinks),
        is_mig_enabled=gpu.is_mig_enabled,
        address=gpu.pci_address or NONE,
        vbios=gpu.vbios_version or NONE,
        serial=gpu.serial or NONE,
        clock_hertz=gpu.sm_clock_max_hertz or None,
        power_watts=gpu.power_limit_max_watts or None,
    )


def _disk_rows(disks: Iterable[DiskInfo]) -> Iterable[DiskRow]:
    def kind(disk: DiskInfo) -> tuple[str, int, bool]:
        return disk.model, disk.size_bytes, disk.is_rotational

    for (model, size_bytes, is_rotational), group in groupby(sorted(disks, key=kind), key=kind):
        names = [disk.name for disk in group]
        yield DiskRow(
            names=", ".join(names),
            count=len(names),
            model=model or NONE,
            size_bytes=size_bytes,
            kind="HDD" if is_rotational else "SSD",
        )
