"""What the findings of health mean to people: a name and what to do, the same on every page.

docs/health.md says the same at length.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from jobqueue.executors.health import HealthReason


@dataclass(frozen=True, slots=True)
class Advice:
    """`name` fits into a badge, `action` is a sentence."""

    name: str
    action: str


def advice_for(reason: str) -> Advice:
    """Return the advice for a finding's reason, also for one that only a newer agent knows."""
    try:
        return ADVICE[HealthReason(reason)]
    except ValueError:
        return Advice(reason.replace("_", " "), "Update the portal: the agent is newer than it.")


_R = HealthReason
ADVICE: Mapping[HealthReason, Advice] = {
    _R.LOST: Advice("lost", "Power the host off and on; check the GPU's seat, cables and power."),
    _R.MISSING: Advice(
        "missing",
        "Reboot the host. If the GPU was taken out for good, "
        "run “vedette agent accept-gpus” there.",
    ),
    _R.XID_FATAL: Advice(
        "fatal XID",
        "Reboot the host; or reset the GPU and run “vedette agent accept-gpus” there.",
    ),
    _R.XID: Advice("XID", "Watch it: the finding ends a day after the last such event."),
    _R.ECC_UNCORRECTED: Advice(
        "uncorrected memory errors", "Reset the GPU when it is idle; replace it if they come back."
    ),
    _R.ECC_CORRECTED: Advice(
        "many corrected memory errors", "Watch it, and replace the GPU if the rate stays."
    ),
    _R.REMAP_FAILED: Advice("row remapping failed", "Have the GPU replaced."),
    _R.REMAP_PENDING: Advice(
        "row remapping pending", "Reset the GPU when it is idle, so that the spare row is used."
    ),
    _R.PAGE_RETIREMENT_PENDING: Advice(
        "page retirement pending", "Reset the GPU when it is idle, so that the page is left out."
    ),
    _R.THROTTLED_BY_HEAT: Advice(
        "throttled by heat", "Check air flow, fans, filters and the temperature of the room."
    ),
    _R.THROTTLED_BY_HARDWARE: Advice(
        "throttled by hardware", "Check the power supplies, their cables and the host's BMC log."
    ),
    _R.NVLINK_DOWN: Advice(
        "NVLink down", "Check Fabric Manager and the bridges, then reset all GPUs of the host."
    ),
    _R.PCIE_DEGRADED: Advice(
        "PCIe degraded", "Seat the GPU and its riser anew; check the slot and the BIOS."
    ),
    _R.EXTERNAL_PROCESS: Advice(
        "used outside of jobs", "End the program, or drain the appliance while it is needed."
    ),
    _R.DRIVER_SILENT: Advice(
        "driver silent", "Try “nvidia-smi” on the host; reboot it when that hangs."
    ),
    _R.GPU_FAILED: Advice("GPU failed", "See the findings of the GPU."),
    _R.GPU_DEGRADED: Advice("GPU degraded", "See the findings of the GPU."),
    _R.DISK_FULL: Advice("disk full", "Make room on the file system or enlarge it."),
}
