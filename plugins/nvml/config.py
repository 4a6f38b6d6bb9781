"""The options of the plugin for NVIDIA GPUs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NVMLConfig:
    """GPUs to read, and how much of each.

    Attributes:
        skip_uuids: GPUs to skip, by UUID.
        per_link: add points for each NVLink to the totals of the GPU.
        pcie_throughput: read PCIe throughput; takes 40 ms for each GPU older than Hopper.
    """

    skip_uuids: tuple[str, ...] = ()
    per_link: bool = True
    pcie_throughput: bool = True
