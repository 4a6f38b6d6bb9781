"""The host's plugins, on two captures of `/proc` taken ten seconds apart."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from core.clock import to_ns
from plugins.base import PluginContext
from plugins.cpu.reader import CPUConfig, CPUPlugin
from plugins.disk.reader import DiskConfig, DiskPlugin, file_system_fields
from plugins.diskio.reader import DiskIOConfig, DiskIOPlugin
from plugins.load.reader import LoadConfig, LoadPlugin
from plugins.memory.reader import MemoryConfig, MemoryPlugin
from plugins.network.reader import NetworkConfig, NetworkPlugin
from tests.unit.plugins.conftest import FIRST_AT, SECOND_AT

UseCapture = Callable[[str], None]
KIBIBYTE = 1024
SECTOR_BYTES = 512
# Differences between the captures, read off the files.
RECEIVED_BYTES = 953_050
SENT_PACKETS = 65
WRITTEN_SECTORS = 269_152
WRITES = 3610
BUSY_MS = 476


def test_cpu_shares_are_those_of_the_time_between_two_readings(use_capture: UseCapture) -> None:
    plugin = CPUPlugin(CPUConfig(), PluginContext())
    use_capture("proc_a")
    assert plugin.gather(FIRST_AT) == []
    use_capture("proc_b")
    [point] = plugin.gather(SECOND_AT)
    # Ticks between the captures: user 897, system 123 and softirq 5, iowait 32, idle 927.
    total = 897 + 128 + 32 + 927
    assert point.time_ns == to_ns(SECOND_AT)
    assert point.fields == pytest.approx(
        {
            "usage_percent": 100 * (897 + 128) / total,
            "user_percent": 100 * 897 / total,
            "system_percent": 100 * 128 / total,
            "iowait_percent": 100 * 32 / total,
            "idle_percent": 100 * 927 / total,
        }
    )


def test_memory_counts_what_could_not_be_had_as_used(use_capture: UseCapture) -> None:
    use_capture("proc_a")
    [point] = MemoryPlugin(MemoryConfig(), PluginContext()).gather(FIRST_AT)
    total, available = 24_684_084 * KIBIBYTE, 24_019_456 * KIBIBYTE
    assert point.fields["total_bytes"] == total
    assert point.fields["used_bytes"] == total - available
    assert point.fields["used_percent"] == pytest.approx(100 * (total - available) / total)


def test_load_averages_are_this_hosts() -> None:
    [point] = LoadPlugin(LoadConfig(), PluginContext()).gather(FIRST_AT)
    assert point.fields["load1"] == pytest.approx(os.getloadavg()[0], abs=0.5)
    assert list(point.fields) == ["load1", "load5", "load15"]


def test_network_rates_leave_the_loopback_out(use_capture: UseCapture) -> None:
    plugin = NetworkPlugin(NetworkConfig(), PluginContext())
    use_capture("proc_a")
    assert plugin.gather(FIRST_AT) == []
    use_capture("proc_b")
    [point] = plugin.gather(SECOND_AT)
    assert point.tags == {"interface": "eth0"}
    assert point.fields["received_bytes_per_second"] == pytest.approx(RECEIVED_BYTES / 10)
    assert point.fields["sent_packets_per_second"] == pytest.approx(SENT_PACKETS / 10)
    assert point.fields["drops_per_second"] == 0


def test_interfaces_to_leave_out_are_patterns(use_capture: UseCapture) -> None:
    plugin = NetworkPlugin(NetworkConfig(skip_interfaces=("eth*",)), PluginContext())
    use_capture("proc_a")
    plugin.gather(FIRST_AT)
    use_capture("proc_b")
    assert [point.tags["interface"] for point in plugin.gather(SECOND_AT)] == ["lo"]


def test_disk_traffic_is_in_bytes_and_leaves_memory_disks_out(use_capture: UseCapture) -> None:
    # Whether a device is a whole one is asked of this host's /sys, which is not captured.
    plugin = DiskIOPlugin(DiskIOConfig(has_partitions=True), PluginContext())
    use_capture("proc_a")
    assert plugin.gather(FIRST_AT) == []
    use_capture("proc_b")
    [point] = plugin.gather(SECOND_AT)
    assert point.tags == {"device": "vda"}
    written = WRITTEN_SECTORS * SECTOR_BYTES
    assert point.fields["written_bytes_per_second"] == pytest.approx(written / 10)
    assert point.fields["writes_per_second"] == pytest.approx(WRITES / 10)
    assert point.fields["busy_percent"] == pytest.approx(100 * BUSY_MS / 1000 / 10)


def test_a_file_system_is_counted_as_df_does(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    fields = file_system_fields(status)
    used = (status.f_blocks - status.f_bfree) * status.f_frsize
    free = status.f_bavail * status.f_frsize
    assert fields["used_percent"] == pytest.approx(100 * used / (used + free))
    assert fields["total_bytes"] == status.f_blocks * status.f_frsize


def test_a_file_system_without_inodes_has_no_inode_share() -> None:
    status = os.statvfs_result((4096, 4096, 1000, 400, 400, 0, 0, 0, 0, 255))
    fields = file_system_fields(status)
    assert "inodes_used_percent" not in fields
    assert fields["used_percent"] == pytest.approx(60)


def test_this_hosts_root_disk_is_read_once() -> None:
    points = list(DiskPlugin(DiskConfig(), PluginContext()).gather(FIRST_AT))
    devices = [point.tags["device"] for point in points]
    assert len(devices) == len(set(devices))


def test_mounts_to_leave_out_are_patterns() -> None:
    plugin = DiskPlugin(DiskConfig(skip_mounts=("*",)), PluginContext())
    assert plugin.gather(FIRST_AT) == []
