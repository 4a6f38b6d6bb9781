"""What is read of a GPU, its slices and its links, whether real or simulated."""

from plugins.base import Metric, MetricKind, counters, flags, gauges, rates

GPU_METRICS: tuple[Metric, ...] = (
    *gauges(
        {
            "utilization_percent": ("percent", "time with at least one kernel running"),
            "memory_utilization_percent": ("percent", "time in which memory was read or written"),
            "encoder_utilization_percent": ("percent", "use of the video encoder"),
            "decoder_utilization_percent": ("percent", "use of the video decoder"),
            "memory_total_bytes": ("bytes", "memory of the device"),
            "memory_used_bytes": ("bytes", "memory that processes hold"),
            "memory_reserved_bytes": ("bytes", "memory that driver and firmware keep"),
            "memory_free_bytes": ("bytes", "memory that can still be had"),
            "memory_used_percent": ("percent", "memory_used_bytes of memory_total_bytes"),
            "temperature_celsius": ("degrees Celsius", "temperature of the die"),
            "memory_temperature_celsius": ("degrees Celsius", "temperature of the memory"),
            "slowdown_celsius": ("degrees Celsius", "from here on the hardware slows down"),
            "shutdown_celsius": ("degrees Celsius", "from here on it turns itself off"),
            "max_operating_celsius": ("degrees Celsius", "the driver keeps the die below this"),
            "fan_percent": ("percent", "intended fan speed; servers without fans have none"),
            "power_watts": ("watts", "power drawn now"),
            "power_limit_watts": ("watts", "limit that the driver enforces"),
            "power_limit_default_watts": ("watts", "limit after the driver is loaded"),
            "power_limit_max_watts": ("watts", "highest limit that can be set"),
            "sm_clock_hertz": ("hertz", "clock of the multiprocessors"),
            "memory_clock_hertz": ("hertz", "clock of the memory"),
            "graphics_clock_hertz": ("hertz", "clock of the graphics engines"),
            "video_clock_hertz": ("hertz", "clock of encoder and decoder"),
            "sm_clock_max_hertz": ("hertz", "highest clock of the multiprocessors"),
            "memory_clock_max_hertz": ("hertz", "highest clock of the memory"),
            "performance_state": ("P-state", "0 is the fastest, 15 the slowest"),
            "throttle_reasons": ("bit mask", "why the clocks are where they are, in NVML's bits"),
            "pcie_generation": ("generation", "PCIe generation in use; lower while idle"),
            "pcie_generation_max": ("generation", "highest that GPU and slot can do"),
            "pcie_width": ("lanes", "PCIe lanes in use"),
            "pcie_width_max": ("lanes", "most that GPU and slot can do"),
            "nvlinks": ("links", "NVLinks that the GPU has"),
            "nvlinks_active": ("links", "NVLinks that are up"),
            "compute_mode": ("mode", "0 default, 2 prohibited, 3 one process at a time"),
        }
    ),
    *counters(
        {
            "energy_joules": ("joules", "energy drawn since the driver was loaded"),
            "pcie_replays": ("replays", "packets that PCIe had to send again"),
            "nvlink_errors": ("errors", "CRC errors, replays and recoveries of all links"),
            "ecc_corrected_volatile": ("errors", "single-bit errors since the driver was loaded"),
            "ecc_uncorrected_volatile": ("errors", "double-bit errors since the driver was loaded"),
            "ecc_corrected_aggregate": ("errors", "single-bit errors over the GPU's life"),
            "ecc_uncorrected_aggregate": ("errors", "double-bit errors over the GPU's life"),
            "retired_pages_single_bit": ("pages", "memory retired for repeated single-bit errors"),
            "retired_pages_double_bit": ("pages", "memory retired for a double-bit error"),
            "remapped_rows_corrected": ("rows", "memory rows replaced for single-bit errors"),
            "remapped_rows_uncorrected": ("rows", "memory rows replaced for double-bit errors"),
        }
    ),
    *rates(
        {
            "pcie_received_bytes_per_second": ("bytes per second", "to the GPU over PCIe"),
            "pcie_sent_bytes_per_second": ("bytes per second", "from the GPU over PCIe"),
            "nvlink_received_bytes_per_second": ("bytes per second", "over all links, payload"),
            "nvlink_sent_bytes_per_second": ("bytes per second", "over all links, payload"),
        }
    ),
    *flags(
        {
            "throttled": "clocks are held down by heat or power",
            "throttled_by_heat": "by the temperature of die or memory",
            "throttled_by_power": "by the power limit",
            "throttled_by_hardware": "by the board: heat, power brake or current",
            "clocks_idle": "clocks are low because nothing runs",
            "clocks_set_by_user": "clocks are where a user or administrator set them",
            "ecc_enabled": "memory errors are detected and corrected",
            "retired_pages_pending": "pages are retired at the next restart",
            "remapped_rows_pending": "rows are replaced at the next reset of the GPU",
            "remapped_rows_failed": "no spare row was left: the GPU needs replacement",
            "lost": "the GPU fell off the bus or needs a reset; it has no other reading then",
            "mig_enabled": "the GPU is cut into MIG slices",
            "persistence_mode": "the driver stays loaded while nothing uses the GPU",
        }
    ),
)

# Memory of a slice has the names of a GPU's.
SLICE_METRICS: tuple[Metric, ...] = gauges(
    {"multiprocessors": ("multiprocessors", "how many the slice has")}
)

LINK_METRICS: tuple[Metric, ...] = (
    *flags({"active": "the link is up"}),
    *rates(
        {
            "received_bytes_per_second": ("bytes per second", "to the GPU, payload"),
            "sent_bytes_per_second": ("bytes per second", "from the GPU, payload"),
        }
    ),
    *counters(
        {
            "crc_errors": ("errors", "packets with a wrong checksum"),
            "replay_errors": ("errors", "packets that had to be sent again"),
            "recovery_errors": ("errors", "times that the link had to be trained again"),
        }
    ),
)

XID_METRICS: tuple[Metric, ...] = (
    Metric("events", MetricKind.EVENT, "events", "1 at the time of each event of the driver"),
)

NVML_METRICS = GPU_METRICS + SLICE_METRICS + LINK_METRICS + XID_METRICS
