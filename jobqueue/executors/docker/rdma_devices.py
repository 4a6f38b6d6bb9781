"""Device files of RDMA for a container.

Source: rdma-core, "RDMA user-space"; NVIDIA's documentation, "RDMA in containers".
"""

from pathlib import Path

FOLDER = Path("/dev/infiniband")
# Locked memory is registered with the device; 0 soft and hard would forbid it.
UNLIMITED = -1


def rdma_nodes(folder: Path = FOLDER) -> list[str]:
    """Return the device files, or the folder if it has none: the engine then refuses it."""
    try:
        nodes = sorted(str(node) for node in folder.iterdir() if node.is_char_device())
    except OSError:
        nodes = []
    return nodes or [str(folder)]
