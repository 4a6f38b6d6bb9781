"""What the driver's kernel module says of a GPU that its library can't name any more.

A GPU that fell off the bus before NVML was opened has no handle, and so no UUID. The kernel module
keeps a file for each GPU that it has found, alive or not, in a folder named by its PCI address.

Source: `/proc/driver/nvidia/gpus/DOMAIN:BUS:DEVICE.FUNCTION/information` of NVIDIA's driver.
"""

from pathlib import Path

from plugins.base import ADDRESS_PREFIX

FOLDER = Path("driver/nvidia/gpus")


def name_of_gpu(proc: Path, index: int, *, count: int) -> dict[str, str]:
    """Return the tags `uuid` and `model` of the GPU with NVML's index, as far as they are known.

    NVML numbers GPUs by their PCI address. Where the kernel module has not as many of them as NVML
    counts, nobody can say which is which, and nothing is returned. One that was never brought up
    since the boot has its PCI address for a UUID.

    Args:
        proc: the kernel's process files.
        count: how many GPUs NVML counts.
    """
    told = [(path.name, _read(path / "information")) for path in _folders(proc / FOLDER)]
    counted = [one for one in told if one[1].get("GPU Excluded") != "Yes"]
    if len(counted) != count:
        return {}
    address, facts = counted[index]
    uuid = facts.get("GPU UUID", "")
    tags = {"uuid": uuid if uuid and "?" not in uuid else f"{ADDRESS_PREFIX}{address}"}
    if model := facts.get("Model", ""):
        tags["model"] = model
    return tags


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(parent.iterdir(), key=lambda path: path.name.lower())
    except OSError:
        return []


def _read(path: Path) -> dict[str, str]:
    """Return the lines `Name: value` of a file; none where it can't be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}
