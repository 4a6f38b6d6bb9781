"""PCIe, NVLink and its fabric: states, errors, and bytes per second from counters."""

from collections.abc import Iterable, Mapping
from ctypes import byref
from datetime import datetime
from typing import Any

from plugins.nvml.calls import Calls, FieldBatch, FieldKey
from plugins.nvml.library import pynvml
from plugins.nvml.readings import Fields
from plugins.procfs import CounterRates

KIBIBYTE = 1024
KILO = 1000
# A smaller counter may be 32 bits wide, and overflow between two readings.
PROVEN_WIDE = 1 << 32

PCIE_SENT = (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0)
PCIE_RECEIVED = (pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0)
# NVML field and its unit in bytes; Blackwell and newer have only the second.
LINK_SENT = (
    (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, KIBIBYTE),
    (pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, 1),
)
LINK_RECEIVED = (
    (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, KIBIBYTE),
    (pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, 1),
)
# Field of each link, and the counter for older drivers.
LINK_ERRORS = {
    "crc_errors": (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC, pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT),
    "replay_errors": (
        pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
        pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    ),
    "recovery_errors": (
        pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
        pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    ),
}
# Parts of the fabric's health mask, each 0 (not supported), 1 (a fault) or 2.
FABRIC_FAULT = 1
FABRIC_FAULT_BITS = 0b11
FABRIC_FAULT_SHIFTS = (
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW,
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY,
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY,
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY,
)
FABRIC_SETUP_SHIFT = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION
FABRIC_SETUP_BITS = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION
FABRIC_SETUP_CORRECT = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE


def c2c_link_count(calls: Calls) -> int | None:
    """Return the number of links to the CPU; None where the GPU can have none."""
    key = (pynvml.NVML_FI_DEV_C2C_LINK_COUNT, 0)
    return FieldBatch(calls, [key]).read().get(key)


def c2c_keys(count: int | None) -> list[FieldKey]:
    """Return the field values to read for the links to the CPU."""
    return [(pynvml.NVML_FI_DEV_C2C_LINK_GET_STATUS, link) for link in range(count or 0)]


def read_c2c(batch: Mapping[FieldKey, int], count: int | None) -> Fields:
    """Return the fields of `gpu` about the links to the CPU."""
    if count is None:
        return {}
    states = [batch.get(key) for key in c2c_keys(count)]
    return {"c2c_links": count, "c2c_links_active": sum(state == 1 for state in states)}


def link_keys(links: range) -> list[FieldKey]:
    """Return the field values to read for the NVLinks."""
    fields = [field for field, _ in (*LINK_SENT, *LINK_RECEIVED)]
    fields += [field for field, _ in LINK_ERRORS.values()]
    return [(field, link) for field in fields for link in links]


def read_pcie(
    calls: Calls, batch: Mapping[FieldKey, int], rates: CounterRates, *, now: datetime
) -> Fields:
    """Return PCIe throughput: from counters if available, else measured for 20 ms."""
    directions = {
        "pcie_received_bytes_per_second": (PCIE_RECEIVED, pynvml.NVML_PCIE_UTIL_RX_BYTES),
        "pcie_sent_bytes_per_second": (PCIE_SENT, pynvml.NVML_PCIE_UTIL_TX_BYTES),
    }
    fields: Fields = {}
    for name, (key, direction) in directions.items():
        count = batch.get(key)
        if count is not None and count >= PROVEN_WIDE:
            fields[name] = rates.per_second(name, count, now=now)
        else:
            kilobytes = calls.ask(pynvml.nvmlDeviceGetPcieThroughput, direction)
            fields[name] = None if kilobytes is None else int(kilobytes) * KILO
    return fields


def read_links(
    calls: Calls, batch: Mapping[FieldKey, int], rates: CounterRates, *, links: range, now: datetime
) -> list[Fields]:
    """Return the fields of `gpu_link` for each NVLink."""
    per_link: list[Fields] = []
    for link in links:
        sent = _bytes(batch, LINK_SENT, link)
        received = _bytes(batch, LINK_RECEIVED, link)
        fields: Fields = {
            "active": calls.ask(pynvml.nvmlDeviceGetNvLinkState, link),
            "received_bytes_per_second": rates.per_second(f"rx{link}", received, now=now),
            "sent_bytes_per_second": rates.per_second(f"tx{link}", sent, now=now),
        }
        for name, (field, counter) in LINK_ERRORS.items():
            count = batch.get((field, link))
            if count is None:
                count = calls.ask(pynvml.nvmlDeviceGetNvLinkErrorCounter, link, counter)
            fields[name] = count
        per_link.append(fields)
    return per_link


def fabric_info(handle: Any) -> Any:  # noqa: ANN401 - NVML's own handle and structure
    """Return the state of the GPU in its NVLink fabric."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    return info


def read_fabric(calls: Calls) -> Fields:
    """Return the registration and the health of the NVLink fabric; none without NVSwitches."""
    info = calls.ask(fabric_info)
    if info is None or info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return {}
    is_complete = info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
    fields: Fields = {"fabric_registered": int(is_complete and info.status == pynvml.NVML_SUCCESS)}
    if mask := int(info.healthMask):
        setup = mask >> FABRIC_SETUP_SHIFT & FABRIC_SETUP_BITS
        has_fault = setup > FABRIC_SETUP_CORRECT or any(
            mask >> shift & FABRIC_FAULT_BITS == FABRIC_FAULT for shift in FABRIC_FAULT_SHIFTS
        )
        fields |= {"fabric_degraded": int(has_fault), "fabric_health_mask": mask}
    return fields


def link_totals(links: list[Fields]) -> Fields:
    """Return the totals of all links for `gpu`; none without links."""
    if not links:
        return {}
    errors = [_total(links, name) for name in LINK_ERRORS]
    counts = [count for count in errors if count is not None]
    return {
        "nvlinks": len(links),
        "nvlinks_active": _total(links, "active"),
        "nvlink_received_bytes_per_second": _total(links, "received_bytes_per_second"),
        "nvlink_sent_bytes_per_second": _total(links, "sent_bytes_per_second"),
        "nvlink_errors": sum(counts) if counts else None,
    }


def _total(links: Iterable[Fields], name: str) -> int | None:
    values = [int(value) for fields in links if (value := fields[name]) is not None]
    return sum(values) if values else None


def _bytes(
    batch: Mapping[FieldKey, int], fields: Iterable[tuple[int, int]], link: int
) -> int | None:
    for field, unit_bytes in fields:
        count = batch.get((field, link))
        if count is not None:
            return count * unit_bytes
    return None
