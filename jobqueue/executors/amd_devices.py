"""Which AMD GPU is which: their UUIDs, and the device files through which a container uses one.

An AMD GPU has no UUID of its own that every card and driver gives. Here it is `AMD-` and the
card's unique id, or its address on the bus where the card has none.

Source: AMD's ROCm documentation, "Running ROCm Docker containers".
"""

from collections.abc import Iterable
from pathlib import Path

UUID_PREFIX = "AMD-"
VENDOR = "0x1002"
COMPUTE_NODE = "/dev/kfd"


def is_amd_gpu(device: Path) -> bool:
    """Return whether a device's folder in /sys is that of an AMD GPU."""
    return read_text(device / "vendor") == VENDOR


def amd_uuid(device: Path) -> str:
    """Return the UUID of the GPU with this folder in /sys."""
    return UUID_PREFIX + (read_text(device / "unique_id") or device.name)


def device_nodes(uuids: Iterable[str], *, sys: Path = Path("/sys")) -> list[str]:
    """Return the device files that give these AMD GPUs to a container; none for no GPU.

    A GPU that is gone is named as a file that does not exist, so that the engine refuses it.
    """
    wanted = list(uuids)
    if not wanted:
        return []
    found = _render_nodes(sys)
    return [COMPUTE_NODE, *(found.get(uuid, f"/dev/dri/{uuid}") for uuid in wanted)]


def read_text(path: Path) -> str:
    """Return what a small file of the kernel says; "" where it is missing or can't be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _render_nodes(sys: Path) -> dict[str, str]:
    drm = sys / "class" / "drm"
    try:
        names = [node.name for node in drm.iterdir() if node.name.startswith("renderD")]
    except OSError:
        return {}
    devices = {name: (drm / name / "device").resolve() for name in names}
    return {
        amd_uuid(device): f"/dev/dri/{name}"
        for name, device in devices.items()
        if is_amd_gpu(device)
    }
