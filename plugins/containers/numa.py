"""NUMA nodes of GPUs, to tell how much of a job's memory is far from them.

Source: `/proc/driver/nvidia/gpus/ADDRESS/information` names a GPU's UUID, sysfs its node.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from jobqueue.executors.docker.devices import read_text
from plugins.amdgpu.sysfs import find_cards, integer
from plugins.procfs import entries

_UUID_LABEL = "GPU UUID"


def gpu_nodes(*, proc: Path, sys: Path) -> dict[str, int]:
    """Return the node of each GPU by its UUID; empty on a host with one node."""
    if len(list((sys / "devices" / "system" / "node").glob("node[0-9]*"))) < 2:  # noqa: PLR2004
        return {}
    nodes = {}
    for folder in entries(proc / "driver" / "nvidia" / "gpus"):
        uuid = _uuid(read_text(folder / "information"))
        node = integer(sys / "bus" / "pci" / "devices" / folder.name.lower() / "numa_node")
        if uuid and node is not None and node >= 0:
            nodes[uuid] = node
    for card in find_cards(proc=proc, sys=sys):
        node = integer(card.device / "numa_node")
        if node is not None and node >= 0:
            nodes[card.uuid] = node
    return nodes


def remote_percent(node_bytes: Mapping[int, int], near_nodes: Iterable[int]) -> float | None:
    """Return the percentage of memory that is on other nodes; None if there is none to tell."""
    near, total = set(near_nodes), sum(node_bytes.values())
    if not near or not total:
        return None
    far = sum(size for node, size in node_bytes.items() if node not in near)
    return round(100 * far / total, 1)


def _uuid(information: str) -> str:
    for line in information.splitlines():
        label, _, value = line.partition(":")
        if label.strip() == _UUID_LABEL:
            return value.strip()
    return ""
