"""The settings of the plugin nvml."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NVMLConfig:
    """Which GPUs to read, and how much of them.

    Attributes:
        skip_uuids: GPUs to leave out, by UUID.
        per_link: whether each NVLink has its own points, beside the sums of its GPU.
        pcie_throughput: whether to read what goes over PCIe; older cards need 40 ms for it.
    """

    skip_uuids: tuple[str, ...] = ()
    per_link: bool = True
    pcie_throughput: bool = True
