"""NVIDIA GPUs through NVML, the driver's own library.

Not every call works on every card: one that is not supported leaves its field out, never 0. One
lost GPU does not stop the others.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from core.clock import to_ns
from plugins.base import Metric, PluginContext, PluginError, present
from plugins.nvml.library import Device, NVMLLibrary, memory_info, pynvml
from plugins.nvml.metrics import GPU_METRICS
from timeseries.points import FieldValue, Point

MEGA = 1_000_000
MILLI = 1000
# Clocks held below what was asked, for a reason that matters: heat or power, not idling.
THROTTLE_REASONS = (
    pynvml.nvmlClocksThrottleReasonSwPowerCap
    | pynvml.nvmlClocksThrottleReasonHwSlowdown
    | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NVMLConfig:
    """Which GPUs to read.

    Attributes:
        skip_uuids: GPUs to leave out, by UUID.
    """

    skip_uuids: tuple[str, ...] = ()


class NVMLPlugin:
    """One point for each GPU that answers."""

    name: ClassVar[str] = "nvml"
    config_class: ClassVar[type] = NVMLConfig
    is_simulated: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = GPU_METRICS

    def __init__(self, config: NVMLConfig, context: PluginContext) -> None:
        del context
        self._config = config
        self._library = NVMLLibrary()

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each GPU; a GPU that fell off the bus is left out."""
        points = []
        for device in self._library.devices():
            if device.uuid in self._config.skip_uuids:
                continue
            fields = self._read(device)
            if fields:
                tags = {"gpu": str(device.index), "uuid": device.uuid, "model": device.model}
                points.append(Point("gpu", tags, fields, to_ns(now)))
        return points

    def close(self) -> None:
        """Let the library go."""
        self._library.close()

    def _read(self, device: Device) -> dict[str, FieldValue]:
        try:
            return read_gpu(device.handle)
        except PluginError:
            self._library.close()
            raise


def read_gpu(handle: Any) -> dict[str, FieldValue]:  # noqa: ANN401 - an opaque NVML handle
    """Return the fields that this GPU supports; none when it is lost.

    Raises:
        PluginError: the driver was changed under us; the library must be opened again.
    """
    utilization = _ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    memory = _ask(lambda: memory_info(handle))
    milliwatts = _ask(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
    limit_milliwatts = _ask(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    sm_megahertz = _ask(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
    memory_megahertz = _ask(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM))
    reasons = _ask(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    celsius = _ask(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
    return present(
        {
            "utilization_percent": None if utilization is None else float(utilization.gpu),
            "memory_utilization_percent": None
            if utilization is None
            else float(utilization.memory),
            "memory_total_bytes": None if memory is None else int(memory.total),
            "memory_used_bytes": None if memory is None else int(memory.used),
            "memory_used_percent": _percent(memory),
            "temperature_celsius": _scaled(celsius, 1),
            "power_watts": _scaled(milliwatts, 1 / MILLI),
            "power_limit_watts": _scaled(limit_milliwatts, 1 / MILLI),
            "sm_clock_hertz": None if sm_megahertz is None else sm_megahertz * MEGA,
            "memory_clock_hertz": None if memory_megahertz is None else memory_megahertz * MEGA,
            "fan_percent": _scaled(_ask(lambda: pynvml.nvmlDeviceGetFanSpeed(handle)), 1),
            "throttled": None if reasons is None else int(bool(reasons & THROTTLE_REASONS)),
        }
    )


def _ask(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - structures of NVML differ by call
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in {
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            pynvml.NVML_ERROR_UNINITIALIZED,
        }:
            raise PluginError(f"NVML must be opened again: {error}") from error
        return None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else float(value * factor)


def _percent(memory: Any) -> float | None:  # noqa: ANN401 - NVML's memory structure
    return 100.0 * memory.used / memory.total if memory is not None and memory.total else None
