"""GPU fields read each time, except links: one function for each group.

None means unsupported or failed this time; the field is omitted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from core.clock import NS_PER_SECOND
from plugins import base
from plugins.nvml.calls import Calls, FieldKey
from plugins.nvml.library import memory_info, pynvml
from timeseries.lineprotocol.grammar import MAX_INT64
from timeseries.points import FieldValue

MEGA = 1_000_000
MILLI = 1000
Fields = dict[str, FieldValue | None]
Ask = Callable[..., Any]

BY_HEAT = (
    pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown
)
BY_POWER = pynvml.nvmlClocksEventReasonSwPowerCap
BY_HARDWARE = (
    pynvml.nvmlClocksEventReasonHwSlowdown | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
)


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter that is read with the field batch, or by its own call."""

    name: str
    field: int
    call: Callable[..., Any]
    arguments: tuple[int, ...] = ()


def retired_page_count(handle: Any, cause: int) -> int:  # noqa: ANN401 - NVML's own handle
    """Return how many pages of memory were retired for a cause."""
    return len(pynvml.nvmlDeviceGetRetiredPages_v2(handle, cause))


COUNTERS = (
    Counter(
        "ecc_corrected_volatile",
        pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
        pynvml.nvmlDeviceGetTotalEccErrors,
        (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC),
    ),
    Counter(
        "ecc_uncorrected_volatile",
        pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
        pynvml.nvmlDeviceGetTotalEccErrors,
        (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
    ),
    Counter(
        "ecc_corrected_aggregate",
        pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL,
        pynvml.nvmlDeviceGetTotalEccErrors,
        (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_AGGREGATE_ECC),
    ),
    Counter(
        "ecc_uncorrected_aggregate",
        pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
        pynvml.nvmlDeviceGetTotalEccErrors,
        (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC),
    ),
    Counter(
        "retired_pages_single_bit",
        pynvml.NVML_FI_DEV_RETIRED_SBE,
        retired_page_count,
        (pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,),
    ),
    Counter(
        "retired_pages_double_bit",
        pynvml.NVML_FI_DEV_RETIRED_DBE,
        retired_page_count,
        (pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,),
    ),
    Counter(
        "retired_pages_pending",
        pynvml.NVML_FI_DEV_RETIRED_PENDING,
        pynvml.nvmlDeviceGetRetiredPagesPendingStatus,
    ),
    Counter(
        "pcie_replays",
        pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER,
        pynvml.nvmlDeviceGetPcieReplayCounter,
    ),
)
# Nanoseconds in which clocks were reduced.
THROTTLED_TIMES = {
    "throttled_by_power_seconds": pynvml.NVML_FI_DEV_PERF_POLICY_POWER,
    "throttled_by_heat_seconds": pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL,
    "throttled_by_board_seconds": pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT,
    "throttled_by_sync_boost_seconds": pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST,
    "throttled_by_reliability_seconds": pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY,
    "low_utilization_seconds": pynvml.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION,
}
ENERGY = pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
MEMORY_TEMPERATURE = pynvml.NVML_FI_DEV_MEMORY_TEMP
BATCH_KEYS: tuple[FieldKey, ...] = (
    *((counter.field, 0) for counter in COUNTERS),
    *((field, 0) for field in THROTTLED_TIMES.values()),
    (ENERGY, 0),
    (MEMORY_TEMPERATURE, 0),
)


def read_gpu(calls: Calls, batch: Mapping[FieldKey, int]) -> Fields:
    """Return the fields of all groups."""
    ask = calls.ask
    return {
        **_use(ask),
        **_bar1(ask(pynvml.nvmlDeviceGetBAR1MemoryInfo)),
        **memory_fields(ask(memory_info)),
        **_heat(ask, batch),
        **_power(ask, batch),
        **_clocks(ask),
        **_throttling(ask),
        **_throttled_times(batch),
        **_errors(ask, batch),
        "pcie_generation": ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration),
        "pcie_width": ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth),
        "compute_mode": ask(pynvml.nvmlDeviceGetComputeMode),
        "persistence_mode": ask(pynvml.nvmlDeviceGetPersistenceMode),
    }


def present(fields: Fields) -> dict[str, FieldValue]:
    """Return the fields that have a value.

    Drivers set all 64 bits of what they don't know. A store refuses such a number, and with it
    everything else that was read of the GPU.
    """
    return {
        name: value
        for name, value in base.present(fields).items()
        if not isinstance(value, int) or value <= MAX_INT64
    }


def memory_fields(memory: Any) -> Fields:  # noqa: ANN401 - NVML's memory structure
    """Return the fields of a GPU's or a slice's memory."""
    if memory is None:
        return {}
    total, used = int(memory.total), int(memory.used)
    return {
        "memory_total_bytes": total,
        "memory_used_bytes": used,
        "memory_reserved_bytes": getattr(memory, "reserved", None),
        "memory_free_bytes": int(memory.free),
        "memory_used_percent": round(100.0 * used / total, 3) if total else None,
    }


def die_celsius(ask: Ask) -> int | None:
    """Return the temperature of the die."""
    celsius = ask(pynvml.nvmlDeviceGetTemperatureV, pynvml.NVML_TEMPERATURE_GPU)
    if celsius is None:  # drivers before 570
        celsius = ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU)
    return None if celsius is None else int(celsius)


def scaled(value: float | None, factor: float) -> float | None:
    """Return a value in another unit, None when there is none."""
    return None if value is None else float(value * factor)


def _use(ask: Ask) -> Fields:
    rates = ask(pynvml.nvmlDeviceGetUtilizationRates)
    engines = {
        "encoder_utilization_percent": ask(pynvml.nvmlDeviceGetEncoderUtilization),
        "decoder_utilization_percent": ask(pynvml.nvmlDeviceGetDecoderUtilization),
        "jpeg_utilization_percent": ask(pynvml.nvmlDeviceGetJpgUtilization),
        "optical_flow_utilization_percent": ask(pynvml.nvmlDeviceGetOfaUtilization),
    }
    encoder, capture = ask(pynvml.nvmlDeviceGetEncoderStats), ask(pynvml.nvmlDeviceGetFBCStats)
    return {
        "utilization_percent": None if rates is None else float(rates.gpu),
        "memory_utilization_percent": None if rates is None else float(rates.memory),
        **{name: None if use is None else float(use[0]) for name, use in engines.items()},
        "encoder_sessions": None if encoder is None else int(encoder[0]),
        "frame_capture_sessions": None if capture is None else int(capture.sessionsCount),
    }


def _bar1(window: Any) -> Fields:  # noqa: ANN401 - NVML's structure
    if window is None:
        return {}
    return {"bar1_total_bytes": int(window.bar1Total), "bar1_used_bytes": int(window.bar1Used)}


def _heat(ask: Ask, batch: Mapping[FieldKey, int]) -> Fields:
    memory_celsius = batch.get((MEMORY_TEMPERATURE, 0))
    return {
        "temperature_celsius": scaled(die_celsius(ask), 1),
        # Cards without a memory sensor report 0.
        "memory_temperature_celsius": float(memory_celsius) if memory_celsius else None,
        "fan_percent": scaled(ask(pynvml.nvmlDeviceGetFanSpeed), 1),
    }


def _power(ask: Ask, batch: Mapping[FieldKey, int]) -> Fields:
    millijoules = batch.get((ENERGY, 0))
    if millijoules is None:
        millijoules = ask(pynvml.nvmlDeviceGetTotalEnergyConsumption)
    milliwatts = ask(pynvml.nvmlDeviceGetPowerUsage)
    limit_milliwatts = ask(pynvml.nvmlDeviceGetEnforcedPowerLimit)
    return {
        "power_watts": None if milliwatts is None else milliwatts / MILLI,
        "power_limit_watts": None if limit_milliwatts is None else limit_milliwatts / MILLI,
        "energy_joules": None if millijoules is None else millijoules / MILLI,
    }


def _clocks(ask: Ask) -> Fields:
    def hertz(domain: int) -> int | None:
        megahertz = ask(pynvml.nvmlDeviceGetClockInfo, domain)
        return None if megahertz is None else int(megahertz) * MEGA

    state = ask(pynvml.nvmlDeviceGetPerformanceState)
    return {
        "sm_clock_hertz": hertz(pynvml.NVML_CLOCK_SM),
        "memory_clock_hertz": hertz(pynvml.NVML_CLOCK_MEM),
        "graphics_clock_hertz": hertz(pynvml.NVML_CLOCK_GRAPHICS),
        "video_clock_hertz": hertz(pynvml.NVML_CLOCK_VIDEO),
        "performance_state": None if state == pynvml.NVML_PSTATE_UNKNOWN else state,
    }


def _throttling(ask: Ask) -> Fields:
    reasons = ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons)
    if reasons is None:  # drivers before 535
        reasons = ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
    if reasons is None:
        return {}
    return {
        "throttled": int(bool(reasons & (BY_HEAT | BY_POWER | BY_HARDWARE))),
        "throttled_by_heat": int(bool(reasons & BY_HEAT)),
        "throttled_by_power": int(bool(reasons & BY_POWER)),
        "throttled_by_hardware": int(bool(reasons & BY_HARDWARE)),
        "clocks_idle": int(bool(reasons & pynvml.nvmlClocksEventReasonGpuIdle)),
        "clocks_set_by_user": int(
            bool(reasons & pynvml.nvmlClocksEventReasonApplicationsClocksSetting)
        ),
        "throttle_reasons": int(reasons),
    }


def _throttled_times(batch: Mapping[FieldKey, int]) -> Fields:
    nanoseconds = {name: batch.get((field, 0)) for name, field in THROTTLED_TIMES.items()}
    return {
        name: None if value is None else value / NS_PER_SECOND
        for name, value in nanoseconds.items()
    }


def _errors(ask: Ask, batch: Mapping[FieldKey, int]) -> Fields:
    fields: Fields = {}
    for counter in COUNTERS:
        value = batch.get((counter.field, 0))
        fields[counter.name] = ask(counter.call, *counter.arguments) if value is None else value
    rows = ask(pynvml.nvmlDeviceGetRemappedRows)
    if rows is not None:
        fields["remapped_rows_corrected"], fields["remapped_rows_uncorrected"] = rows[:2]
        fields["remapped_rows_pending"], fields["remapped_rows_failed"] = rows[2:]
    return fields
