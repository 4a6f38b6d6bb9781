"""Health and class of an appliance and its GPUs: judged by the agent, shown by the portal.

*Health* is healthy, degraded (works, with a fault that somebody should look at) or failed (gets no
jobs), always with the findings that say why. The *tier* classes what a device is worth to a job.
"""

from enum import StrEnum

import msgspec


class HealthState(StrEnum):
    """How well a device does."""

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
    THROTTLED_BY_HEAT = "throttled_by_heat"
    THROTTLED_BY_HARDWARE = "throttled_by_hardware"
    NVLINK_DOWN = "nvlink_down"
    PCIE_DEGRADED = "pcie_degraded"
    EXTERNAL_PROCESS = "external_process"
    DRIVER_SILENT = "driver_silent"
    GPU_FAILED = "gpu_failed"
    GPU_DEGRADED = "gpu_degraded"
    DISK_FULL = "disk_full"


class Tier(StrEnum):
    """What a GPU is worth to a job, best first; `cpu` is an appliance without a GPU."""

    FLAGSHIP = "flagship"
    PERFORMANCE = "performance"
    STANDARD = "standard"
    ENTRY = "entry"
    CPU = "cpu"


class HealthFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong: what, how bad, and a sentence for people.

    `reason` is a `HealthReason`, or one that a newer agent knows.
    """

    reason: str
    state: HealthState
    detail: str


class GPUHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Health and tier of one GPU; its state is that of its worst finding.

    `tier` is "" where nothing is known that a GPU could be classed by.
    """

    index: int
    uuid: str
    state: HealthState
    findings: list[HealthFinding] = []
    tier: str = ""


class ApplianceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Health and class of an appliance; `appliance_class` reads `8 x flagship` or `cpu`."""

    state: HealthState
    findings: list[HealthFinding] = []
    gpus: list[GPUHealth] = []
    appliance_class: str = ""
