"""What is read of a GPU, whether real or simulated."""

from plugins.base import Metric, MetricKind, gauges

GPU_METRICS: tuple[Metric, ...] = (
    *gauges(
        {
            "utilization_percent": ("percent", "time with at least one kernel running"),
            "memory_utilization_percent": ("percent", "time in which memory was read or written"),
            "memory_total_bytes": ("bytes", "memory of the device"),
            "memory_used_bytes": ("bytes", "memory that processes hold"),
            "memory_used_percent": ("percent", "memory_used_bytes of memory_total_bytes"),
            "temperature_celsius": ("degrees Celsius", "temperature of the die"),
            "power_watts": ("watts", "power drawn now"),
            "power_limit_watts": ("watts", "limit that the driver enforces"),
            "sm_clock_hertz": ("hertz", "clock of the multiprocessors"),
            "memory_clock_hertz": ("hertz", "clock of the memory"),
            "fan_percent": ("percent", "intended fan speed; servers without fans have none"),
        }
    ),
    Metric("throttled", MetricKind.FLAG, "0 or 1", "clocks are held down by heat or power"),
)
