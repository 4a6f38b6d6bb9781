"""The health evaluation: findings, their severity and their details."""

from typing import Any

import pytest

from collector.health.evaluation import evaluate_health
from collector.health.history import XIDRecord
from collector.health.signals import ExternalUse, GPUSignals, Signals
from core.clock import to_ns
from protocol.health import HealthReason, HealthState
from tests.cast import NOON
from tests.unit.collector.health_builders import GIB, after, gpu_info, judged, signs

FAILED, DEGRADED = HealthState.FAILED, HealthState.DEGRADED


def record(code: int, *, count: int = 1) -> XIDRecord:
    return XIDRecord(uuid="GPU-0", index=0, code=code, count=count, last_at_ns=to_ns(NOON))


CASES: list[tuple[str, GPUSignals, HealthReason, HealthState, str]] = [
    (
        "lost",
        signs(reading={"lost": 1.0}),
        HealthReason.LOST,
        FAILED,
        "fell off the bus",
    ),
    (
        "missing",
        GPUSignals(index=5, uuid="GPU-5", model="NVIDIA L4", is_missing=True),
        HealthReason.MISSING,
        FAILED,
        "(NVIDIA L4)",
    ),
    (
        "fatal-xid",
        signs(xids=(record(79),)),
        HealthReason.XID_FATAL,
        FAILED,
        "XID 79 at 2026-03-02 12:00:00 UTC: the GPU has fallen off the bus.",
    ),
    (
        "xid",
        signs(xids=(record(94, count=3),)),
        HealthReason.XID,
        DEGRADED,
        (
            "XID 94, 3 times since the boot, last at 2026-03-02 12:00:00 UTC: a memory error, "
            "contained to one program."
        ),
    ),
    (
        "remap-failed",
        signs(reading={"remapped_rows_failed": 1.0}),
        HealthReason.REMAP_FAILED,
        FAILED,
        "could not be remapped",
    ),
    (
        "remap-pending",
        signs(reading={"remapped_rows_pending": 1.0}),
        HealthReason.REMAP_PENDING,
        DEGRADED,
        "pending",
    ),
    (
        "retirement-pending",
        signs(reading={"retired_pages_pending": 1.0}),
        HealthReason.PAGE_RETIREMENT_PENDING,
        DEGRADED,
        "pending",
    ),
    (
        "sram",
        signs(reading={"sram_ecc_threshold_exceeded": 1.0}),
        HealthReason.SRAM_ERRORS,
        FAILED,
        "caches",
    ),
    (
        "uncorrected",
        signs(reading={"ecc_uncorrected_volatile": 2.0}),
        HealthReason.ECC_UNCORRECTED,
        DEGRADED,
        "2 memory errors",
    ),
    (
        "corrected",
        signs(corrected_errors=100),
        HealthReason.ECC_CORRECTED,
        DEGRADED,
        "100 memory errors",
    ),
    (
        "heat",
        signs(heat_seconds=301, reading={"temperature_celsius": 88.0}),
        HealthReason.THROTTLED_BY_HEAT,
        DEGRADED,
        "for 5 of the last 10 minutes, now at 88 °C",
    ),
    (
        "hardware",
        signs(hardware_seconds=420),
        HealthReason.THROTTLED_BY_HARDWARE,
        DEGRADED,
        "for 7 of the last 10 minutes",
    ),
    (
        "nvlink",
        signs(reading={"nvlinks_active": 17.0}),
        HealthReason.NVLINK_DOWN,
        DEGRADED,
        "1 of 18 NVLinks is down.",
    ),
    (
        "nvlinks-all",
        signs(reading={"nvlinks_active": 0.0}, had_nvlinks=True),
        HealthReason.NVLINK_DOWN,
        DEGRADED,
        "18 of 18 NVLinks are down.",
    ),
    (
        "nvlink-errors",
        signs(link_errors=100),
        HealthReason.NVLINK_ERRORS,
        DEGRADED,
        "100 errors within an hour",
    ),
    (
        "overheated",
        signs(reading={"temperature_celsius": 95.0, "shutdown_celsius": 95.0}),
        HealthReason.OVERHEATED,
        FAILED,
        "has 95 °C; it switches itself off at 95 °C",
    ),
    (
        "cooling",
        signs(
            reading={"temperature_celsius": 91.0, "shutdown_celsius": 95.0},
            reported=frozenset({HealthReason.OVERHEATED}),
        ),
        HealthReason.OVERHEATED,
        FAILED,
        "has 91 °C",
    ),
    (
        "fabric-not-registered",
        signs(reading={"fabric_registered": 0.0}),
        HealthReason.FABRIC_NOT_REGISTERED,
        FAILED,
        "not registered",
    ),
    (
        "fabric-degraded",
        signs(reading={"fabric_registered": 1.0, "fabric_degraded": 1.0}),
        HealthReason.FABRIC_DEGRADED,
        DEGRADED,
        "reports a fault",
    ),
    (
        "pcie-width",
        signs(reading={"pcie_width": 8.0}),
        HealthReason.PCIE_DEGRADED,
        DEGRADED,
        "8 of 16 lanes",
    ),
    (
        "pcie-generation",
        signs(reading={"pcie_generation": 3.0}, slow_pcie_seconds=60),
        HealthReason.PCIE_DEGRADED,
        DEGRADED,
        "generation 3 of 5",
    ),
    (
        "host-process",
        signs(external=ExternalUse("host", 12 * GIB, 61)),
        HealthReason.EXTERNAL_PROCESS,
        DEGRADED,
        "uses 12 GiB",
    ),
    (
        "foreign-container",
        signs(external=ExternalUse("0123456789abcdef", GIB, 61)),
        HealthReason.EXTERNAL_PROCESS,
        DEGRADED,
        "container 0123456789ab outside of jobs uses 1 GiB",
    ),
]


@pytest.mark.parametrize(
    ("gpu", "reason", "state", "detail"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_a_problem_is_reported_with_state_and_detail(
    gpu: GPUSignals, reason: HealthReason, state: HealthState, detail: str
) -> None:
    health = judged(gpu)
    [finding] = health.findings
    assert (finding.reason, finding.state) == (reason, state)
    assert detail in finding.detail
    assert health.state is state


@pytest.mark.parametrize(
    "gpu",
    [
        signs(),
        signs(reading={"throttled_by_power": 1.0}),
        signs(heat_seconds=299, hardware_seconds=299),
        signs(corrected_errors=99),
        signs(external=ExternalUse("host", 12 * GIB, 60)),
        signs(slow_pcie_seconds=59, reading={"pcie_generation": 3.0}),
        signs(xids=(record(13), record(31), record(43), record(45))),
        GPUSignals(index=0, uuid="GPU-0"),
    ],
    ids=[
        "in-order",
        "power-cap",
        "short-heat",
        "few-errors",
        "short-use",
        "short-slow-link",
        "applications-xids",
        "never-read",
    ],
)
def test_normal_readings_are_no_finding(gpu: GPUSignals) -> None:
    health = judged(gpu)
    assert (health.state, health.findings) == (HealthState.HEALTHY, [])


def test_a_card_whose_nvlinks_were_never_up_has_no_bridge() -> None:
    assert judged(signs(reading={"nvlinks_active": 0.0})).findings == []


def test_a_warning_xid_ends_after_a_day_and_a_fatal_one_does_not() -> None:
    gpu = signs(xids=(record(79), record(94)))
    day = 24 * 3600
    before, later = (judged(gpu, after(seconds)) for seconds in (day - 1, day))
    assert [finding.reason for finding in before.findings] == [
        HealthReason.XID_FATAL,
        HealthReason.XID,
    ]
    assert [finding.reason for finding in later.findings] == [HealthReason.XID_FATAL]


def test_an_xid_that_nobody_knows_is_a_warning() -> None:
    [finding] = judged(signs(xids=(record(999),))).findings
    assert (finding.reason, finding.state) == (HealthReason.XID, DEGRADED)


def test_the_worst_finding_is_the_state() -> None:
    health = judged(signs(reading={"nvlinks_active": 17.0, "remapped_rows_failed": 1.0}))
    assert [finding.state for finding in health.findings] == [FAILED, DEGRADED]
    assert health.state is FAILED


def eight(**bad: GPUSignals) -> tuple[GPUSignals, ...]:
    changed = {int(name.removeprefix("gpu")): gpu for name, gpu in bad.items()}
    return tuple(changed.get(index, signs(index=index, uuid=f"GPU-{index}")) for index in range(8))


def test_one_failed_gpu_of_eight_degrades_the_appliance() -> None:
    gpus = eight(gpu3=signs(index=3, uuid="GPU-3", reading={"lost": 1.0}))
    health = evaluate_health(Signals(gpus=gpus), NOON)
    assert health.state is DEGRADED
    [finding] = health.findings
    assert (finding.reason, finding.detail) == (
        HealthReason.GPU_FAILED,
        "1 of 8 GPUs failed: GPU 3 (lost).",
    )


def test_an_appliance_whose_gpus_all_failed_has_failed() -> None:
    gpus = tuple(signs(index=i, uuid=f"GPU-{i}", reading={"lost": 1.0}) for i in range(2))
    health = evaluate_health(Signals(gpus=gpus), NOON)
    assert health.state is FAILED
    assert health.findings[0].detail == "2 of 2 GPUs failed: GPU 0 (lost), GPU 1 (lost)."


def test_degraded_gpus_are_counted_and_named() -> None:
    gpus = eight(
        gpu1=signs(index=1, uuid="GPU-1", reading={"nvlinks_active": 17.0}),
        gpu2=signs(index=2, uuid="GPU-2", heat_seconds=400),
    )
    [finding] = evaluate_health(Signals(gpus=gpus), NOON).findings
    assert finding.reason is HealthReason.GPU_DEGRADED
    assert finding.detail == (
        "2 of 8 GPUs are degraded: GPU 1 (NVLink down), GPU 2 (throttled by heat)."
    )


@pytest.mark.parametrize(
    ("changes", "reason", "state", "detail"),
    [
        (
            {"silent_seconds": 61.0},
            HealthReason.DRIVER_SILENT,
            FAILED,
            "No GPU could be read for 61 s.",
        ),
        (
            {"disk_used_percent": {"/": 40.0, "/data": 95.0}},
            HealthReason.DISK_FULL,
            DEGRADED,
            "/data is 95 % full.",
        ),
    ],
    ids=["driver-silent", "disk-full"],
)
def test_an_appliance_has_findings_of_its_own(
    changes: dict[str, Any], reason: HealthReason, state: HealthState, detail: str
) -> None:
    health = evaluate_health(Signals(gpus=eight(), **changes), NOON)
    [finding] = health.findings
    assert (finding.reason, finding.state, finding.detail) == (reason, state, detail)
    assert health.state is state


def test_a_host_without_gpus_is_healthy_and_of_class_cpu() -> None:
    health = evaluate_health(Signals(), NOON)
    assert (health.state, health.appliance_class, health.gpus) == (HealthState.HEALTHY, "cpu", [])


def test_the_class_counts_the_gpus_of_each_tier() -> None:
    l4 = gpu_info(
        7,
        model="NVIDIA L4",
        memory_bytes=23034 * 1024**2,
        core_count=7424,
        memory_bus_bits=192,
        sm_clock_max_hertz=2_040_000_000,
        memory_clock_max_hertz=6_251_000_000,
    )
    gpus = eight(gpu7=signs(index=7, uuid="GPU-7", info=l4))
    assert evaluate_health(Signals(gpus=gpus), NOON).appliance_class == "7 x flagship, 1 x standard"
