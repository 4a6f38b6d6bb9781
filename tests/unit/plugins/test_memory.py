"""Memory, swap, load and uptime, on captures of `/proc`."""

import os

import pytest

from plugins.base import NoSettings
from plugins.load.reader import LoadPlugin
from plugins.memory.reader import MemoryPlugin
from plugins.swap.reader import SwapPlugin
from plugins.uptime.reader import UptimePlugin
from tests.unit.plugins.conftest import FIRST_AT, SECOND_AT, CapturedHost

KIBIBYTE = 1024
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def test_memory_counts_what_could_not_be_had_as_used(host: CapturedHost) -> None:
    host.use("proc_a")
    [point] = MemoryPlugin(NoSettings(), host.context).gather(FIRST_AT)
    total, available = 24_684_084 * KIBIBYTE, 24_019_456 * KIBIBYTE
    assert point.fields == {
        "total_bytes": total,
        "used_bytes": total - available,
        "available_bytes": available,
        "free_bytes": 23_013_328 * KIBIBYTE,
        "cached_bytes": 1_157_936 * KIBIBYTE,
        "buffers_bytes": 5172 * KIBIBYTE,
        "slab_bytes": 144_604 * KIBIBYTE,
        "shared_bytes": 8872 * KIBIBYTE,
        "dirty_bytes": 976 * KIBIBYTE,
        "used_percent": pytest.approx(100 * (total - available) / total, abs=0.0005),
    }


def test_a_line_that_the_kernel_does_not_have_is_absent(host: CapturedHost) -> None:
    host.use("proc_a")
    host.replace("meminfo", "MemAvailable:   24019456 kB\n", "")
    [point] = MemoryPlugin(NoSettings(), host.context).gather(FIRST_AT)
    assert point.fields.keys().isdisjoint({"available_bytes", "used_bytes", "used_percent"})
    assert point.fields["total_bytes"] == 24_684_084 * KIBIBYTE


def test_swap_has_its_space_and_the_pages_that_moved(host: CapturedHost) -> None:
    plugin = SwapPlugin(NoSettings(), host.context)
    host.use("proc_swap_a")
    [first] = plugin.gather(FIRST_AT)
    assert "in_bytes_per_second" not in first.fields
    host.use("proc_swap_b")
    [second] = plugin.gather(SECOND_AT)
    total, free = 8_388_604 * KIBIBYTE, 7_323_644 * KIBIBYTE
    assert second.fields == {
        "total_bytes": total,
        "used_bytes": total - free,
        "free_bytes": free,
        "cached_bytes": 24_576 * KIBIBYTE,
        "used_percent": pytest.approx(100 * (total - free) / total, abs=0.0005),
        # Pages between the captures: 51,200 to 51,700 in, 262,144 to 266,240 out.
        "in_bytes_per_second": 500 * PAGE_BYTES / 10,
        "out_bytes_per_second": 4096 * PAGE_BYTES / 10,
    }


def test_a_host_without_swap_has_none_in_use_and_no_share_of_it(host: CapturedHost) -> None:
    host.use("proc_a")
    [point] = SwapPlugin(NoSettings(), host.context).gather(FIRST_AT)
    assert point.fields == {
        "total_bytes": 0,
        "used_bytes": 0,
        "free_bytes": 0,
        "cached_bytes": 0,
    }


def test_load_averages_are_those_of_the_file(host: CapturedHost) -> None:
    host.use("proc_a")
    [point] = LoadPlugin(NoSettings(), host.context).gather(FIRST_AT)
    assert point.fields == {
        "load1": 0.63,
        "load5": 0.84,
        "load15": 0.47,
        "cpu_count": os.cpu_count(),
    }


def test_uptime_is_the_time_since_boot_rather_than_the_time_idle(host: CapturedHost) -> None:
    host.use("proc_a")
    [point] = UptimePlugin(NoSettings(), host.context).gather(FIRST_AT)
    assert point.fields == {"uptime_seconds": 184233.07}
