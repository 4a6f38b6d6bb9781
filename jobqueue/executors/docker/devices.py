"""Device files that give a container access to AMD GPUs and to RDMA; and the UUIDs of AMD GPUs.

Not every AMD card and driver has a UUID. The UUID here is `AMD-` and the card's unique id, or its
PCI address if it has none.

Sources: AMD's ROCm documentation, "Running ROCm Docker containers"; rdma-core, "RDMA user-space";
NVIDIA's documentation, "RDMA in containers".
"""

from collections.abc import Iterable
from pathlib import Path

UUID_PREFIX = "AMD-"
VENDOR = "0x1002"
COMPUTE_NODE = "/dev/kfd"
RDMA_FOLDER = Path("/dev/infiniband")
# Locked memory is registered with the device; 0 soft and hard would forbid it.
UNLIMITED_MEMORY = -1


def is_amd_gpu(device: Path) -> bool:
    """Return whether a device folder in /sys is an AMD GPU's."""
    return read_text(device / "vendor") == VENDOR


def amd_uuid(device: Path) -> str:
    """Return the UUID of the GPU with this folder in /sys."""
    return UUID_PREFIX + (read_text(device / "unique_id") or device.name)


def device_nodes(uuids: Iterable[str], *, sys: Path = Path("/sys")) -> list[str]:
    """Return the device files of these AMD GPUs for a container.

    A missing GPU gets a file that does not exist, so that the engine rejects the container.
    """
    wanted = list(uuids)
    if not wanted:
        return []
    nodes = _render_nodes(sys)
    return [COMPUTE_NODE, *(nodes.get(uuid, f"/dev/dri/{uuid}") for uuid in wanted)]


def read_text(path: Path) -> str:
    """Return the text of a small kernel file; "" if it can't be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def rdma_nodes(folder: Path = RDMA_FOLDER) -> list[str]:
    """Return the device files, or the folder if it has none: the engine then refuses it."""
    try:
        nodes = sorted(str(node) for node in folder.iterdir() if node.is_char_device())
    except OSError:
        nodes = []
    return nodes or [str(folder)]


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
