"""PCIe and NVLink: states, errors, and bytes per second from counters."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from plugins.nvml.calls import Calls, FieldKey
from plugins.nvml.library import pynvml
from plugins.nvml.readings import Fields

KIBIBYTE = 1024
KILO = 1000
# A counter that was never above this may be 32 bits wide, and overflow between two readings.
PROVEN_WIDE = 1 << 32

PCIE_SENT = (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0)
PCIE_RECEIVED = (pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0)
# Field of NVML and its unit in bytes; cards from Blackwell on have only the second.
LINK_SENT = (
    (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, KIBIBYTE),
    (pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, 1),
)
LINK_RECEIVED = (
    (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, KIBIBYTE),
    (pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, 1),
)
# Field of each link and the counter of drivers that lack it.
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


class Growth:
    """Bytes per second from counters of bytes, each remembered by its key."""

    def __init__(self) -> None:
        self._last: dict[object, tuple[datetime, int]] = {}

    def per_second(self, key: object, count: int | None, *, now: datetime) -> int | None:
        """Return the growth since the last reading, in whole bytes a second.

        None on the first reading, when time or counter went back, and without a counter.
        """
        before = self._last.get(key)
        if count is None:
            self._last.pop(key, None)
            return None
        self._last[key] = (now, count)
        if before is None:
            return None
        elapsed_seconds = (now - before[0]).total_seconds()
        grown = count - before[1]
        return round(grown / elapsed_seconds) if elapsed_seconds > 0 and grown >= 0 else None


def link_keys(links: range) -> list[FieldKey]:
    """Return the field values to ask for the NVLinks."""
    fields = [field for field, _ in (*LINK_SENT, *LINK_RECEIVED)]
    fields += [field for field, _ in LINK_ERRORS.values()]
    return [(field, link) for field in fields for link in links]


def read_pcie(
    calls: Calls, batch: Mapping[FieldKey, int], growth: Growth, *, now: datetime
) -> Fields:
    """Return what went over PCIe: from counters where there are some, else measured for 20 ms."""
    directions = {
        "pcie_received_bytes_per_second": (PCIE_RECEIVED, pynvml.NVML_PCIE_UTIL_RX_BYTES),
        "pcie_sent_bytes_per_second": (PCIE_SENT, pynvml.NVML_PCIE_UTIL_TX_BYTES),
    }
    fields: Fields = {}
    for name, (key, direction) in directions.items():
        count = batch.get(key)
        if count is not None and count >= PROVEN_WIDE:
            fields[name] = growth.per_second(name, count, now=now)
        else:
            kilobytes = calls.ask(pynvml.nvmlDeviceGetPcieThroughput, direction)
            fields[name] = None if kilobytes is None else int(kilobytes) * KILO
    return fields


def read_links(
    calls: Calls, batch: Mapping[FieldKey, int], growth: Growth, *, links: range, now: datetime
) -> list[Fields]:
    """Return the fields of `gpu_link` for each NVLink.

    Raises:
        GPULostError: the GPU is gone.
        LibraryStaleError: NVML must be opened again.
    """
    found: list[Fields] = []
    for link in links:
        sent = _bytes(batch, LINK_SENT, link)
        received = _bytes(batch, LINK_RECEIVED, link)
        fields: Fields = {
            "active": calls.ask(pynvml.nvmlDeviceGetNvLinkState, link),
            "received_bytes_per_second": growth.per_second(("rx", link), received, now=now),
            "sent_bytes_per_second": growth.per_second(("tx", link), sent, now=now),
        }
        for name, (field, counter) in LINK_ERRORS.items():
            count = batch.get((field, link))
            if count is None:
                count = calls.ask(pynvml.nvmlDeviceGetNvLinkErrorCounter, link, counter)
            fields[name] = count
        found.append(fields)
    return found


def link_totals(links: list[Fields]) -> Fields:
    """Return the fields of `gpu` that sum up its links; none where there are no links."""
    if not links:
        return {}
    errors = [_total(links, name) for name in LINK_ERRORS]
    known = [count for count in errors if count is not None]
    return {
        "nvlinks": len(links),
        "nvlinks_active": _total(links, "active"),
        "nvlink_received_bytes_per_second": _total(links, "received_bytes_per_second"),
        "nvlink_sent_bytes_per_second": _total(links, "sent_bytes_per_second"),
        "nvlink_errors": sum(known) if known else None,
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
