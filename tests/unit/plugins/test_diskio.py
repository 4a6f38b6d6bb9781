"""Traffic of block devices, on two captures of `/proc/diskstats` taken ten seconds apart."""

import pytest

from plugins.diskio.reader import DiskIOConfig, DiskIOPlugin
from tests.unit.plugins.conftest import FIRST_AT, SECOND_AT, CapturedHost

SECTOR_BYTES = 512
# Differences between the captures, read off the files.
READ_SECTORS = 11_456
WRITTEN_SECTORS = 269_152
READS = 642
WRITES = 3610
BUSY_MS = 476
# A whole NVMe namespace with one path and one partition, and a RAID of it.
NVME = """\
 259       0 nvme0c0n1 10 0 80 1 10 0 80 1 0 {busy} 2 0 0 0 0 0 0
 259       1 nvme0n1 10 0 80 1 10 0 80 1 {open} {busy} 2 0 0 0 0 0 0
 259       2 nvme0n1p1 10 0 80 1 10 0 80 1 0 {busy} 2 0 0 0 0 0 0
   9       1 md1 10 0 80 0 10 0 80 0 0 {busy} 0 0 0 0 0 0 0
"""


@pytest.fixture
def nvme_host(host: CapturedHost) -> CapturedHost:
    for device in ("nvme0c0n1", "nvme0n1", "md1"):
        (host.sys / "block" / device).mkdir(parents=True)
    return host


def devices(host: CapturedHost, config: DiskIOConfig) -> list[str]:
    plugin = DiskIOPlugin(config, host.context)
    for busy, read_at in ((1000, FIRST_AT), (2000, SECOND_AT)):
        host.write("diskstats", NVME.format(busy=busy, open=3))
        points = list(plugin.gather(read_at))
    return [point.tags["device"] for point in points]


def test_traffic_is_in_bytes_and_leaves_memory_disks_out(host: CapturedHost) -> None:
    plugin = DiskIOPlugin(DiskIOConfig(has_partitions=True), host.context)
    host.use("proc_a")
    assert plugin.gather(FIRST_AT) == []
    host.use("proc_b")
    [point] = plugin.gather(SECOND_AT)
    assert point.tags == {"device": "vda"}
    assert point.fields == {
        "read_bytes_per_second": pytest.approx(READ_SECTORS * SECTOR_BYTES / 10),
        "written_bytes_per_second": pytest.approx(WRITTEN_SECTORS * SECTOR_BYTES / 10),
        "reads_per_second": pytest.approx(READS / 10),
        "writes_per_second": pytest.approx(WRITES / 10),
        "busy_percent": pytest.approx(100 * BUSY_MS / 1000 / 10),
        "in_flight": 0,
    }


def test_partitions_and_single_paths_are_part_of_whole_devices(nvme_host: CapturedHost) -> None:
    assert devices(nvme_host, DiskIOConfig()) == ["md1", "nvme0n1"]


def test_partitions_can_be_enabled(nvme_host: CapturedHost) -> None:
    names = devices(nvme_host, DiskIOConfig(has_partitions=True))
    assert names == ["md1", "nvme0n1", "nvme0n1p1"]


def test_a_device_is_never_more_than_always_busy(nvme_host: CapturedHost) -> None:
    plugin = DiskIOPlugin(DiskIOConfig(), nvme_host.context)
    nvme_host.write("diskstats", NVME.format(busy=0, open=0))
    plugin.gather(FIRST_AT)
    nvme_host.write("diskstats", NVME.format(busy=10_004, open=7))
    fields = {point.tags["device"]: point.fields for point in plugin.gather(SECOND_AT)}
    assert fields["nvme0n1"]["busy_percent"] == 100
    assert (fields["nvme0n1"]["in_flight"], fields["md1"]["in_flight"]) == (7, 0)
