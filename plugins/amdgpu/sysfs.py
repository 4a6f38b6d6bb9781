"""AMD GPUs as the kernel's amdgpu driver shows them under /sys: no library and no tool is needed.

A *card* is a device under /sys/class/drm with AMD's vendor number. Reading some files wakes a card
that sleeps, and some ask its firmware; `pcie_bw` takes a second and is left alone.

Source: the kernel's Documentation/gpu/amdgpu (driver-misc, thermal, ras).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jobqueue.executors.amd_devices import amd_uuid, is_amd_gpu, read_text

# Transfers a second of one lane, in units of 10^9, for each generation of PCIe.
PCIE_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_CARD = re.compile(r"card\d+")


@dataclass(frozen=True, slots=True)
class Card:
    """One AMD GPU.

    Attributes:
        index: among all GPUs of this host; AMD's come after NVIDIA's.
        device: its folder in /sys.
        hwmon: the folder of its sensors; None where there is none.
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
        """Return whether the driver has switched it off until it is needed."""
        return read_text(self.device / "power" / "runtime_status") == "suspended"


def find_cards(*, proc: Path, sys: Path) -> list[Card]:
    """Return the AMD GPUs in the order of their bus addresses, which no restart changes."""
    devices = sorted(_devices(sys), key=lambda device: device.name)
    first = _nvidia_count(proc)
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
    """Return the number in a file; None where the card does not have it or does not say."""
    text = read_text(path)
    try:
        return int(text)
    except ValueError:
        return None


def pcie_generation(text: str) -> int | None:
    """Return the generation of `16.0 GT/s PCIe`."""
    return PCIE_GENERATIONS.get(text.partition(" ")[0])


def _devices(sys: Path) -> Iterator[Path]:
    drm = sys / "class" / "drm"
    try:
        names = [node.name for node in drm.iterdir()]
    except OSError:
        return
    for name in names:
        if _CARD.fullmatch(name):
            device = (drm / name / "device").resolve()
            if is_amd_gpu(device):
                yield device


def _nvidia_count(proc: Path) -> int:
    """Return how many GPUs NVIDIA's driver has, which take the first indices."""
    try:
        return sum(1 for _ in (proc / "driver" / "nvidia" / "gpus").iterdir())
    except OSError:
        return 0


def _model(device: Path) -> str:
    name = read_text(device / "product_name")
    return name or f"AMD GPU {read_text(device / 'device').removeprefix('0x') or 'unknown'}"
