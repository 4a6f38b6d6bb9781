"""Health and class of an appliance and its GPUs: evaluated by the agent, shown by the portal.

*Health* is healthy, degraded (works, but needs attention) or failed (gets no jobs), with the
findings that are the reasons. The *tier* is the performance class of a GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec

from protocol.inventory import MAX_GPUS, Text

# GPUs that are missing are listed, too.
MAX_GPU_HEALTHS = 2 * MAX_GPUS
MAX_FINDINGS = 200
MAX_IMPLAUSIBLE_READINGS = 100
MAX_DETAIL_LENGTH = 1000


class HealthState(StrEnum):
    """The health of a device."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAILED = "failed"


class HealthReason(StrEnum):
    """What is wrong with a device."""

    LOST = "lost"
    MISSING = "missing"
    XID_FATAL = "xid_fatal"
    XID = "xid"
    ECC_UNCORRECTED = "ecc_uncorrected"
    ECC_CORRECTED = "ecc_corrected"
    REMAP_FAILED = "remap_failed"
    REMAP_PENDING = "remap_pending"
    PAGE_RETIREMENT_PENDING = "page_retirement_pending"
    SRAM_ERRORS = "sram_errors"
    OVERHEATED = "overheated"
    THROTTLED_BY_HEAT = "throttled_by_heat"
    THROTTLED_BY_HARDWARE = "throttled_by_hardware"
    NVLINK_DOWN = "nvlink_down"
    NVLINK_ERRORS = "nvlink_errors"
    FABRIC_NOT_REGISTERED = "fabric_not_registered"
    FABRIC_DEGRADED = "fabric_degraded"
    PCIE_DEGRADED = "pcie_degraded"
    EXTERNAL_PROCESS = "external_process"
    DRIVER_SILENT = "driver_silent"
    GPU_FAILED = "gpu_failed"
    GPU_DEGRADED = "gpu_degraded"
    DISK_FULL = "disk_full"


class Tier(StrEnum):
    """The performance class of a GPU, best first; `cpu` is an appliance without a GPU."""

    FLAGSHIP = "flagship"
    PERFORMANCE = "performance"
    STANDARD = "standard"
    ENTRY = "entry"
    CPU = "cpu"


# What a GPU of each tier has at least, as `collector.health.tiers` determines it.
TIER_MINIMUMS: Mapping[str, str] = {
    Tier.FLAGSHIP: "at least 75 GiB of memory, 3 TB/s and 50 TFLOPS in single precision",
    Tier.PERFORMANCE: "at least 39 GiB of memory, 0.6 TB/s and 15 TFLOPS in single precision",
    Tier.STANDARD: "at least 14 GiB of memory, 0.25 TB/s and 10 TFLOPS in single precision",
    Tier.ENTRY: "less memory, bandwidth or compute performance than the other tiers",
}


class HealthFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem: its reason, its severity, and a message for users.

    `reason` is a `HealthReason`, or one from a newer agent.
    """

    reason: Text
    state: HealthState
    detail: Annotated[str, msgspec.Meta(max_length=MAX_DETAIL_LENGTH)]


Findings = Annotated[list[HealthFinding], msgspec.Meta(max_length=MAX_FINDINGS)]


class GPUHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Health and tier of one GPU; its state is that of its worst finding.

    `tier` is "" if no specs are known.
    """

    index: int
    uuid: Text
    state: HealthState
    findings: Findings = []
    tier: Text = ""


class ImplausibleReading(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one series that the agent dropped, since it started: they can't be true.

    `series` has the tags that tell it from others, such as `gpu=3`. `value` is the last of the
    values as text, since JSON has neither NaN nor all integers.
    """

    metric: Text
    series: Text = ""
    value: Text
    detail: Text
    count: int
    last_at: datetime


ImplausibleReadings = Annotated[
    list[ImplausibleReading], msgspec.Meta(max_length=MAX_IMPLAUSIBLE_READINGS)
]


class ApplianceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Health and class of an appliance; `appliance_class` reads `8 x flagship` or `cpu`."""

    state: HealthState
    findings: Findings = []
    gpus: Annotated[list[GPUHealth], msgspec.Meta(max_length=MAX_GPU_HEALTHS)] = []
    appliance_class: Text = ""
    implausible_readings: ImplausibleReadings = []


@dataclass(frozen=True, slots=True)
class Advice:
    """`name` fits into a badge, `action` is a sentence."""

    name: str
    action: str


def advice_for(reason: str) -> Advice:
    """Return the advice for a finding's reason; a generic one for a reason from a newer agent."""
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
    _R.SRAM_ERRORS: Advice("too many cache errors", "Have the GPU replaced."),
    _R.OVERHEATED: Advice(
        "overheated", "Check the fans and the cooling of the room now: the GPU switches itself off."
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
    _R.NVLINK_ERRORS: Advice(
        "NVLink errors", "Reseat the GPU and its bridge; replace what the errors stay with."
    ),
    _R.FABRIC_NOT_REGISTERED: Advice(
        "not in the NVLink fabric",
        "Check Fabric Manager and its version, then reset all GPUs of the host.",
    ),
    _R.FABRIC_DEGRADED: Advice(
        "NVLink fabric degraded",
        "Check Fabric Manager's log and the NVSwitches, then reset all GPUs of the host.",
    ),
    _R.PCIE_DEGRADED: Advice(
        "PCIe degraded", "Reseat the GPU and its riser; check the slot and the BIOS."
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
