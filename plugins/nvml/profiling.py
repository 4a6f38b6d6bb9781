"""How busy the units of a GPU were since the reading before, on Hopper and newer.

NVML calls it GPM. It compares two samples of counters that the hardware keeps anyway, so that it
neither slows the GPU nor needs a profiler's permissions.
"""

import math
from contextlib import suppress
from typing import Any

from plugins.nvml.calls import Calls
from plugins.nvml.library import pynvml
from plugins.nvml.readings import Fields

MEBIBYTE = 1 << 20
PERCENT_METRICS = {
    "graphics_engine_active_percent": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    "sm_active_percent": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "sm_occupancy_percent": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "tensor_active_percent": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "fp64_active_percent": pynvml.NVML_GPM_METRIC_FP64_UTIL,
    "fp32_active_percent": pynvml.NVML_GPM_METRIC_FP32_UTIL,
    "fp16_active_percent": pynvml.NVML_GPM_METRIC_FP16_UTIL,
    "integer_active_percent": pynvml.NVML_GPM_METRIC_INTEGER_UTIL,
    "dram_active_percent": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}
# Both in MiB/s.
PCIE_METRICS = {
    "pcie_received_bytes_per_second": pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
    "pcie_sent_bytes_per_second": pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
}
C2C_METRICS = {
    "c2c_received_bytes_per_second": pynvml.NVML_GPM_METRIC_C2C_TOTAL_RX_PER_SEC,
    "c2c_sent_bytes_per_second": pynvml.NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC,
}


def can_profile(handle: Any) -> bool:  # noqa: ANN401 - NVML's own handle
    """Return whether the GPU counts the activity of its units."""
    return bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)


class Profile:
    """The activity of one GPU, or of one MIG instance, between two readings.

    Args:
        with_pcie: read the throughput of PCIe and of the links to the CPU, too.
        gpu_instance: number of the MIG instance; None for the whole GPU.
    """

    def __init__(self, *, with_pcie: bool, gpu_instance: int | None = None) -> None:
        self._gpu_instance = gpu_instance
        throughput = PCIE_METRICS | C2C_METRICS if with_pcie else {}
        metrics = PERCENT_METRICS | throughput
        self._scales = [(name, MEBIBYTE if name in throughput else 1) for name in metrics]
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(metrics)
        for entry, metric in zip(self._request.metrics, metrics.values(), strict=False):
            entry.metricId = metric
        self._previous: Any = None
        self._current: Any = None

    def read(self, calls: Calls) -> Fields:
        """Return the activity since the last call; none at the first one.

        Raises:
            GPULostError: the GPU is gone.
            LibraryStaleError: NVML must be reopened.
        """
        if calls.ask(self._sample) is None:
            self.close()
            return {}
        is_complete = self._previous is not None and calls.ask(self._compare) is not None
        self._previous, self._current = self._current, self._previous
        return self._fields() if is_complete else {}

    def close(self) -> None:
        """Free both samples; the next reading is a first one."""
        for sample in (self._previous, self._current):
            # A library that must be opened again frees nothing.
            with suppress(pynvml.NVMLError):
                if sample is not None:
                    pynvml.nvmlGpmSampleFree(sample)
        self._previous = self._current = None

    def _sample(self, handle: Any) -> Any:  # noqa: ANN401 - NVML's own handle and sample
        if self._current is None:
            self._current = pynvml.nvmlGpmSampleAlloc()
        if self._gpu_instance is not None:
            return pynvml.nvmlGpmMigSampleGet(handle, self._gpu_instance, self._current)
        return pynvml.nvmlGpmSampleGet(handle, self._current)

    def _compare(self, _handle: Any) -> Any:  # noqa: ANN401 - NVML's own structure
        self._request.sample1, self._request.sample2 = self._previous, self._current
        return pynvml.nvmlGpmMetricsGet(self._request)

    def _fields(self) -> Fields:
        fields: Fields = {}
        for (name, scale), entry in zip(self._scales, self._request.metrics, strict=False):
            # Of too short a time, the driver returns what is not a number.
            if entry.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(entry.value):
                fields[name] = round(entry.value * scale, 3)
        return fields
