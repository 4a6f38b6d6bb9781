"""What does not change while a GPU is up: limits, highest clocks, what the board can do."""

from plugins.nvml.calls import Calls, FieldBatch
from plugins.nvml.library import pynvml
from plugins.nvml.readings import MEGA, MILLI, die_celsius, scaled
from timeseries.points import FieldValue

THRESHOLDS = {
    "slowdown_celsius": (
        pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT,
    ),
    "shutdown_celsius": (
        pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
        pynvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT,
    ),
    "max_operating_celsius": (
        pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
        pynvml.NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT,
    ),
}


def read_facts(calls: Calls) -> dict[str, FieldValue | None]:
    """Return the fields of `gpu` that are read once an hour, None where not supported.

    Raises:
        GPULostError: the GPU is gone.
        LibraryStaleError: NVML must be opened again.
    """
    ask = calls.ask
    sm_megahertz = ask(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM)
    memory_megahertz = ask(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM)
    constraints = ask(pynvml.nvmlDeviceGetPowerManagementLimitConstraints)
    ecc = ask(pynvml.nvmlDeviceGetEccMode)
    return {
        **_limits(calls),
        "power_limit_default_watts": scaled(
            ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit), 1 / MILLI
        ),
        "power_limit_max_watts": None if constraints is None else constraints[1] / MILLI,
        "sm_clock_max_hertz": None if sm_megahertz is None else sm_megahertz * MEGA,
        "memory_clock_max_hertz": None if memory_megahertz is None else memory_megahertz * MEGA,
        "pcie_generation_max": ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration),
        "pcie_width_max": ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth),
        "ecc_enabled": None if ecc is None else int(ecc[0]),
    }


def link_count(calls: Calls) -> int:
    """Return how many NVLinks the GPU has; their numbers start at 0."""
    key = (pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT, 0)
    counted = FieldBatch(calls, [key]).read().get(key)
    if counted is not None:
        return min(counted, int(pynvml.NVML_NVLINK_MAX_LINKS))
    links = range(pynvml.NVML_NVLINK_MAX_LINKS)
    states = [calls.ask(pynvml.nvmlDeviceGetNvLinkState, link) for link in links]
    return max((link + 1 for link in links if states[link] is not None), default=0)


def _limits(calls: Calls) -> dict[str, FieldValue | None]:
    """Return temperatures at which something happens.

    Newer cards give them as distances from the highest temperature of operation, of which they
    tell how far away it is.
    """
    absolute = {
        name: calls.ask(pynvml.nvmlDeviceGetTemperatureThreshold, threshold)
        for name, (threshold, _) in THRESHOLDS.items()
    }
    margin = calls.ask(pynvml.nvmlDeviceGetMarginTemperature)
    celsius = die_celsius(calls.ask)
    if all(absolute.values()) or margin is None or celsius is None:
        return {name: scaled(value, 1) for name, value in absolute.items()}
    distances = FieldBatch(calls, [(field, 0) for _, field in THRESHOLDS.values()]).read()
    limits: dict[str, FieldValue | None] = {}
    for name, (_, field) in THRESHOLDS.items():
        distance = distances.get((field, 0))
        derived = None if distance is None else float(celsius + margin - distance)
        limits[name] = float(absolute[name]) if absolute[name] else derived
    return limits
