"""AMD GPUs in sysfs, by the amdgpu driver; needs no library or tool.

A *card* is a device under /sys/class/drm with AMD's vendor number. Reading some files wakes a
suspended card or queries its firmware; `pcie_bw` takes a second and is not read.

Source: the kernel's Documentation/gpu/amdgpu (driver-misc, thermal, ras).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jobqueue.executors.docker.devices import amd_uuid, is_amd_gpu, read_text
from plugins.procfs import entries

# GT/s of one lane to PCIe generation.
PCIE_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_CARD = re.compile(r"card\d+")


@dataclass(frozen=True, slots=True)
class Card:
    """One AMD GPU.

    Attributes:
        index: among all GPUs of this host; AMD's come after NVIDIA's.
        device: its directory in /sys.
        hwmon: the folder of its sensors; None if absent.
    """

    index: int
    uuid: str
    model: str
    device: Path
    hwmon: Path | None

    @property
    def pci_address(self) -> str:
        """Return its address on the bus, such as `0000:c1:00.0`."""
        return self.device.name

    @property
    def is_asleep(self) -> bool:
        """Return whether the driver has suspended it."""
        return read_text(self.device / "power" / "runtime_status") == "suspended"


def find_cards(*, proc: Path, sys: Path) -> list[Card]:
    """Return the AMD GPUs by bus address, an order that reboots don't change."""
    devices = sorted(_devices(sys), key=lambda device: device.name)
    first = len(entries(proc / "driver" / "nvidia" / "gpus"))  # NVIDIA GPUs
    return [
        Card(
            index=first + offset,
            uuid=amd_uuid(device),
            model=_model(device),
            device=device,
            hwmon=next(iter(sorted((device / "hwmon").glob("hwmon*"))), None),
        )
        for offset, device in enumerate(devices)
    ]


def integer(path: Path) -> int | None:
    """Return the number in a file; None if missing or unreadable."""
    text = read_text(path)
    try:
        return int(text)
    except ValueError:
        return None


def pcie_generation(text: str) -> int | None:
    """Return the generation of `16.0 GT/s PCIe`."""
    return PCIE_GENERATIONS.get(text.partition(" ")[0])


def _devices(sys: Path) -> Iterator[Path]:
    for node in entries(sys / "class" / "drm"):
        if _CARD.fullmatch(node.name):
            device = (node / "device").resolve()
            if is_amd_gpu(device):
                yield device


def _model(device: Path) -> str:
    name = read_text(device / "product_name")
    return name or f"AMD GPU {read_text(device / 'device').removeprefix('0x') or 'unknown'}"
