"""Memory errors by where they happened: device memory, caches, registers.

Which places a GPU tells apart depends on its generation. Hopper and newer count the uncorrectable
errors of all caches and registers (SRAM) together, and by the unit they belong to.
"""

from ctypes import byref
from typing import Any

from plugins.nvml.calls import Calls
from plugins.nvml.library import pynvml
from plugins.nvml.readings import Fields

LOCATIONS = {
    "l1_cache": pynvml.NVML_MEMORY_LOCATION_L1_CACHE,
    "l2_cache": pynvml.NVML_MEMORY_LOCATION_L2_CACHE,
    "device_memory": pynvml.NVML_MEMORY_LOCATION_DEVICE_MEMORY,
    "register_file": pynvml.NVML_MEMORY_LOCATION_REGISTER_FILE,
    "texture_memory": pynvml.NVML_MEMORY_LOCATION_TEXTURE_MEMORY,
    "texture_shared_memory": pynvml.NVML_MEMORY_LOCATION_TEXTURE_SHM,
    # The convergence barrier unit, whose errors can't be corrected.
    "cbu": pynvml.NVML_MEMORY_LOCATION_CBU,
}
COUNTS = {
    "corrected_volatile": (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC),
    "uncorrected_volatile": (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
    "corrected_aggregate": (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_AGGREGATE_ECC),
    "uncorrected_aggregate": (
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_AGGREGATE_ECC,
    ),
}


def read_ecc(calls: Calls) -> tuple[Fields, dict[str, Fields]]:
    """Return the fields of `gpu` about caches, and the fields of `gpu_ecc` by place."""
    status = calls.ask(_sram_status)
    places: dict[str, Fields] = {
        place: {
            name: calls.ask(pynvml.nvmlDeviceGetMemoryErrorCounter, *kind, location)
            for name, kind in COUNTS.items()
        }
        for place, location in LOCATIONS.items()
    }
    return _sram(status), places | _sram_places(status)


def _sram_status(handle: Any) -> Any:  # noqa: ANN401 - NVML's own handle and structure
    """Return the errors of caches and registers, and whether they are too many."""
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, byref(status))
    return status


def _sram(errors: Any) -> Fields:  # noqa: ANN401 - NVML's structure
    if errors is None:
        return {}
    return {
        "sram_ecc_corrected_aggregate": int(errors.aggregateCor),
        "sram_ecc_uncorrected_aggregate": int(
            errors.aggregateUncParity + errors.aggregateUncSecDed
        ),
        "sram_ecc_threshold_exceeded": int(bool(errors.bThresholdExceeded)),
    }


def _sram_places(errors: Any) -> dict[str, Fields]:  # noqa: ANN401 - NVML's structure
    if errors is None:
        return {}
    units = {
        "sram_l2": errors.aggregateUncBucketL2,
        "sram_sm": errors.aggregateUncBucketSm,
        "sram_pcie": errors.aggregateUncBucketPcie,
        "sram_microcontroller": errors.aggregateUncBucketMcu,
        "sram_other": errors.aggregateUncBucketOther,
    }
    total: Fields = {
        "corrected_volatile": int(errors.volatileCor),
        "uncorrected_volatile": int(errors.volatileUncParity + errors.volatileUncSecDed),
        "corrected_aggregate": int(errors.aggregateCor),
        "uncorrected_aggregate": int(errors.aggregateUncParity + errors.aggregateUncSecDed),
    }
    # A sound GPU has no errors in any of the parts: their points would say nothing.
    return {"sram": total} | {
        place: {"uncorrected_aggregate": int(count)} for place, count in units.items() if count
    }
