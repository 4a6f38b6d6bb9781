"""PCIe links as text, for pages with and without Dash."""

from protocol.inventory import GPUInfo

TIMES = "\N{MULTIPLICATION SIGN}"


def pcie_link(gpu: GPUInfo) -> str:
    """Return the PCIe link, "" if unknown; its maximum generation, because idle GPUs lower it."""
    if not gpu.pcie_width:
        return ""
    generation = f"Gen {gpu.pcie_generation_max} " if gpu.pcie_generation_max else ""
    maximum = f" of {TIMES}{gpu.pcie_width_max}" if gpu.pcie_width < gpu.pcie_width_max else ""
    return f"{generation}{TIMES}{gpu.pcie_width}{maximum}"
