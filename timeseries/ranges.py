"""The plausible range of each declared metric: what a device or a host can have, and some more.

A value outside of it is no reading but an error: a counter's -1 as 4294967295, a register that
returns all ones. The ranges are by field, or by the suffix of its name, which is its unit.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Such numbers have more digits than a reader counts.
_LONG = 1e12


class Range(NamedTuple):
    """The least and the greatest plausible value."""

    least: float
    greatest: float

    def __str__(self) -> str:
        return f"{_text(self.least)} to {_text(self.greatest)}"


def _text(limit: float) -> str:
    return f"{limit:,.0f}" if abs(limit) < _LONG else f"{limit:g}"


FLAG = Range(0, 1)
COUNT = Range(0, 1_000_000_000)
COUNTER = Range(0, 1e19)
BITS = Range(0, 2e19)
CORE_PERCENT = Range(0, 1_000_000)
# Offsets of clocks and certificates are negative if these are behind or have expired.
OFFSET = Range(-1e10, 1e10)
# What a job prints may be any number; steps are those that a float counts exactly.
ANY, STEP = Range(-1e300, 1e300), Range(-(2**53), 2**53)

# The longest suffix wins; names without a suffix of this table are listed below.
SUFFIXES: Mapping[str, Range] = {
    "_amperes": Range(-10_000, 10_000),
    "_bytes": Range(0, 1e18),
    "_bytes_per_second": Range(0, 1e14),
    "_celsius": Range(-100, 200),
    "_count": COUNT,
    "_hertz": Range(0, 1e11),
    "_joules": Range(0, 1e15),
    "_per_second": Range(0, 1e10),
    "_percent": Range(0, 100),
    "_rpm": Range(0, 100_000),
    "_seconds": Range(0, 1e10),
    "_volts": Range(-1_000, 1_000),
    "_watts": Range(0, 50_000),
}
_FIELDS: Mapping[Range, str] = {
    FLAG: "active clocks_idle clocks_set_by_user ecc_enabled fabric_degraded fabric_registered "
    "healthy link_up lost mig_enabled persistence_mode quarantined reachable remapped_rows_failed "
    "remapped_rows_pending retired_pages_pending sram_ecc_threshold_exceeded throttled "
    "throttled_by_hardware throttled_by_heat throttled_by_power up vgpu_licensed",
    COUNT: "awake_instances backlog_points blocked buffered_points concurrent_requests cpus "
    "cpus_allocated created dead encoder_sessions events exited failed_attempts failing_rules "
    "findings frame_capture_sessions gpus gpus_allocated gpus_missing idle in_flight load1 "
    "load15 load5 multiprocessors nodes nodes_drained nodes_up paused processes "
    "ready_instances restarting restarts rules running samples sleeping stopped threads total "
    "waiting_jobs wanted_instances zombies",
    COUNTER: "access_point_failovers access_point_moves "
    "certificate_renewal_failures corrected_aggregate corrected_volatile crc_errors "
    "dropped_by_age_points uncorrected_aggregate uncorrected_volatile "
    "dropped_by_size_points dropped_points ecc_corrected_aggregate ecc_corrected_volatile "
    "ecc_uncorrected_aggregate ecc_uncorrected_volatile errors gather_failures "
    "implausible_readings inodes_free inodes_total inodes_used nvlink_errors pcie_replays "
    "recovery_errors remapped_rows_corrected remapped_rows_uncorrected "
    "remote_write_dropped_points remote_write_failures remote_write_rejected_samples "
    "remote_write_sent_samples replay_errors "
    "retired_pages_double_bit retired_pages_single_bit send_failures sent_points "
    "skipped_evaluations sram_ecc_corrected_aggregate sram_ecc_uncorrected_aggregate timeouts "
    "undeliverable_lines",
    BITS: "fabric_health_mask throttle_reasons",
    CORE_PERCENT: "cpu_percent",
    OFFSET: "certificate_remaining_seconds clock_offset_seconds",
    ANY: "value",
    STEP: "step",
    # NVML's fan speed is the target's, and may be above the nominal one.
    Range(0, 200): "fan_percent",
    Range(0, 2): "state",
    Range(0, 3): "compute_mode",
    Range(0, 15): "performance_state",
    Range(0, 16): "pcie_generation pcie_generation_max",
    Range(0, 64): "pcie_width pcie_width_max",
    Range(0, 1024): "c2c_links c2c_links_active nvlinks nvlinks_active",
}
FIELDS: Mapping[str, Range] = {
    name: limits for limits, names in _FIELDS.items() for name in names.split()
}

# Within one point, the second ones are parts of the first and never above it.
PARTS: Mapping[str, Sequence[tuple[str, tuple[str, ...]]]] = {
    "memory": (("total_bytes", ("available_bytes", "free_bytes", "used_bytes")),),
    "swap": (("total_bytes", ("cached_bytes", "free_bytes", "used_bytes")),),
    "disk": (
        ("total_bytes", ("free_bytes", "used_bytes")),
        ("inodes_total", ("inodes_free", "inodes_used")),
    ),
    "gpu": (
        (
            "memory_total_bytes",
            ("memory_free_bytes", "memory_reserved_bytes", "memory_used_bytes"),
        ),
        ("bar1_total_bytes", ("bar1_used_bytes",)),
        ("nvlinks", ("nvlinks_active",)),
        ("c2c_links", ("c2c_links_active",)),
    ),
    "gpu_slice": (("memory_total_bytes", ("memory_free_bytes", "memory_used_bytes")),),
}


def range_of(field: str) -> Range:
    """Return the range of a declared field.

    Raises:
        KeyError: it has none.
    """
    if field in FIELDS:
        return FIELDS[field]
    return SUFFIXES[
        max((suffix for suffix in SUFFIXES if field.endswith(suffix)), key=len, default=field)
    ]
