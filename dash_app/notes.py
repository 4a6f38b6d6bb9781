"""Descriptions of panels in a sentence or two, and the metric that a rule about each watches."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """The meaning of a panel; `metric` is empty where no single one fits."""

    text: str
    metric: str = ""


_UTILIZATION = Note(
    "Share of the time in which at least one kernel ran. A GPU at 100 % can still be far from its "
    "limits: compare the power with its cap.",
    "gpu.utilization_percent",
)
_GPU_MEMORY = Note("Memory that processes have allocated.", "gpu.memory_used_bytes")
_TEMPERATURE = Note(
    "Temperature of the die. Above its limit a GPU reduces its clocks.", "gpu.temperature_celsius"
)
_POWER = Note(
    "Power draw; the dotted line is the power limit, at which a GPU reduces its clocks.",
    "gpu.power_watts",
)
_DISK_IO = Note("Bytes read from and written to disks.", "diskio.read_bytes_per_second")
_NETWORK = Note(
    "Bytes received and sent, without the loopback.", "network.received_bytes_per_second"
)
_TOTAL_OF_DEVICES = "In each step, the mean of a name's devices times those that report now."
_TIMELINE = Note(
    "Jobs on each GPU, and the times for which alerts fired. Click a bar to open its job or alert."
)

# By id of the panel, without its tier where panels of several tiers mean the same.
NOTES: Mapping[str, Note] = {
    "fleet-heat": Note(
        "The chosen metric of each GPU; darker is more. Click a row to open its GPU. Fleets with "
        "more than 64 GPUs on a page have a row for each appliance."
    ),
    "fleet-power": Note(
        "Power of all GPUs: in each step, the mean power of an appliance's GPUs times their "
        "number, added up.",
        "gpu.power_watts",
    ),
    "fleet-diskio": Note(
        f"{_DISK_IO.text} {_TOTAL_OF_DEVICES}",
        _DISK_IO.metric,
    ),
    "fleet-network": Note(f"{_NETWORK.text} {_TOTAL_OF_DEVICES}", _NETWORK.metric),
    "fleet-use": Note("Means over all GPUs, hosts and disks.", "gpu.utilization_percent"),
    "gpu-utilization_percent": _UTILIZATION,
    "gpu-memory_used_bytes": _GPU_MEMORY,
    "gpu-temperature_celsius": _TEMPERATURE,
    "gpu-power_watts": _POWER,
    "gpu-utilization": _UTILIZATION,
    "gpu-activity": Note(
        "Multiprocessors with work, time of the tensor cores, and bandwidth of the memory in use. "
        "High utilization with low activity means that kernels are small or wait.",
        "gpu.sm_active_percent",
    ),
    "gpu-memory": _GPU_MEMORY,
    "gpu-temperature": _TEMPERATURE,
    "gpu-power": _POWER,
    "gpu-clock": Note(
        "Clocks of multiprocessors and memory. Bands mark when they were reduced: red for heat, "
        "yellow for the power limit, violet for the board's protection.",
        "gpu.sm_clock_hertz",
    ),
    "gpu-throttled": Note(
        "Share of the time with reduced clocks, by reason. Frequent heat points to cooling, "
        "frequent power limits to the configured cap.",
        "gpu.throttled",
    ),
    "gpu-pcie": Note("Traffic to and from the host.", "gpu.pcie_received_bytes_per_second"),
    "gpu-nvlink": Note("Traffic to and from other GPUs.", "gpu.nvlink_received_bytes_per_second"),
    "gpu-ecc": Note(
        "Memory errors since the driver was loaded. Corrected ones are harmless in small numbers, "
        "an uncorrected one ends the application.",
        "gpu.ecc_uncorrected_volatile",
    ),
    "cpu": Note("CPU time by mode; 100 % are all cores.", "cpu.usage_percent"),
    "memory": Note("Memory that applications use, and the page cache.", "memory.used_percent"),
    "load": Note("Tasks that run or wait, on average over 1, 5 and 15 minutes.", "load.load5"),
    "disk": Note("Used space of each file system.", "disk.used_percent"),
    "diskio": _DISK_IO,
    "network": _NETWORK,
    "timeline": _TIMELINE,
    "attempt-cpu_percent": Note("CPU of the job's containers; 100 % is one core."),
    "attempt-memory_bytes": Note("Memory of the job's containers without page cache."),
    "attempt-diskio": _DISK_IO,
    "attempt-network": _NETWORK,
}
_NONE = Note("")


def note_on(panel_id: str) -> Note:
    """Return the note on a panel by its id, such as `appliance-cpu`."""
    return NOTES.get(panel_id) or NOTES.get(panel_id.partition("-")[2], _NONE)
