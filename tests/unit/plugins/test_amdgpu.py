"""AMD GPUs from trees as the kernel's amdgpu driver makes them: an MI300X, and two Radeons."""

import shutil
from pathlib import Path

import pytest

from plugins.amdgpu.reader import AMDGPUConfig, AMDGPUPlugin
from plugins.base import PluginContext, PluginUnavailableError
from tests.unit.plugins.conftest import CAPTURES, FIRST_AT
from timeseries.points import Point

MI300X = "AMD-a1f3c9d2e47b8056"
RADEON = "AMD-5c88007c1ab6f3d2"
OLD = "AMD-0000:c2:00.0"


def read(root: Path, *skip_uuids: str) -> dict[str, Point]:
    context = PluginContext(proc=root / "proc", sys=root / "sys")
    plugin = AMDGPUPlugin(AMDGPUConfig(skip_uuids=skip_uuids), context)
    points = plugin.gather(FIRST_AT)
    return {point.tags["uuid"]: point for point in points if point.measurement == "gpu"}


@pytest.fixture
def mi300x(tmp_path: Path) -> Path:
    """A host with an MI300X, whose files may be changed."""
    return Path(shutil.copytree(CAPTURES / "amdgpu" / "mi300x", tmp_path / "host", symlinks=True))


def device(host: Path) -> Path:
    return host / "sys/devices/pci0000:c0/0000:c1:00.0"


def test_a_servers_card_is_read_with_its_sensors_link_and_errors() -> None:
    point = read(CAPTURES / "amdgpu" / "mi300x")[MI300X]
    assert point.measurement == "gpu"
    assert point.tags == {"gpu": "0", "uuid": MI300X, "model": "AMD Instinct MI300X OAM"}
    assert point.fields == {
        "utilization_percent": 97.0,
        "memory_utilization_percent": 41.0,
        "memory_total_bytes": 206141652992,
        "memory_used_bytes": 171798691840,
        "memory_free_bytes": 206141652992 - 171798691840,
        "memory_used_percent": pytest.approx(100 * 171798691840 / 206141652992),
        "temperature_celsius": 71.0,
        "memory_temperature_celsius": 58.0,
        "slowdown_celsius": 100.0,
        "shutdown_celsius": 105.0,
        "power_watts": 685.0,
        "power_limit_watts": 750.0,
        "power_limit_default_watts": 750.0,
        "power_limit_min_watts": 0.0,
        "power_limit_max_watts": 750.0,
        "sm_clock_hertz": 2_100_000_000,
        "memory_clock_hertz": 1_300_000_000,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "pcie_replays": 3,
        "ecc_enabled": 1,
        "ecc_corrected_volatile": 14,
        "ecc_uncorrected_volatile": 1,
        "retired_pages_double_bit": 1,
        "retired_pages_pending": 1,
    }


def test_errors_are_counted_by_block_too(mi300x: Path) -> None:
    context = PluginContext(proc=mi300x / "proc", sys=mi300x / "sys")
    gpu, *blocks = AMDGPUPlugin(AMDGPUConfig(), context).gather(FIRST_AT)
    assert {point.measurement for point in blocks} == {"gpu_ecc"}
    counts = {point.tags["place"]: point.fields for point in blocks}
    assert counts["umc"] == {"corrected_volatile": 12, "uncorrected_volatile": 1}
    for kind in ("corrected_volatile", "uncorrected_volatile"):
        assert sum(int(count[kind]) for count in counts.values()) == gpu.fields[f"ecc_{kind}"]


def test_a_consumers_card_has_a_fan_and_an_edge_and_no_error_counts() -> None:
    fields = read(CAPTURES / "amdgpu" / "radeon")[RADEON].fields
    assert fields["fan_percent"] == pytest.approx(20.0)
    assert (fields["temperature_celsius"], fields["slowdown_celsius"]) == (44.0, 100.0)
    assert fields["power_watts"] == 31.0
    assert (fields["pcie_generation"], fields["pcie_generation_max"]) == (1, 4)
    assert not {name for name in fields if name.startswith(("ecc", "retired"))}


def test_cards_are_numbered_by_bus_address_without_other_vendors() -> None:
    points = read(CAPTURES / "amdgpu" / "radeon")
    assert {uuid: point.tags["gpu"] for uuid, point in points.items()} == {OLD: "0", RADEON: "1"}
    assert points[OLD].tags["model"] == "AMD GPU 67df"


def test_amd_gpus_are_numbered_after_nvidias(mi300x: Path) -> None:
    for address in ("0000:01:00.0", "0000:02:00.0"):
        (mi300x / "proc/driver/nvidia/gpus" / address).mkdir(parents=True)
    assert read(mi300x)[MI300X].tags["gpu"] == "2"


def test_a_card_that_sleeps_is_not_woken() -> None:
    assert read(CAPTURES / "amdgpu" / "radeon")[OLD].fields == {
        "memory_total_bytes": 8589934592,
        "memory_used_bytes": 0,
        "memory_free_bytes": 8589934592,
        "memory_used_percent": 0.0,
    }


def test_what_a_card_does_not_say_is_absent(mi300x: Path) -> None:
    (device(mi300x) / "gpu_busy_percent").unlink()
    shutil.rmtree(device(mi300x) / "hwmon")
    fields = read(mi300x)[MI300X].fields
    assert "utilization_percent" not in fields
    assert not {name for name in fields if name.endswith(("_celsius", "_watts", "_hertz"))}


def test_the_error_counts_of_a_reset_card_are_read_as_far_as_they_go(mi300x: Path) -> None:
    (device(mi300x) / "ras/umc_err_count").write_text("Query currently inaccessible\n")
    fields = read(mi300x)[MI300X].fields
    assert (fields["ecc_corrected_volatile"], fields["ecc_uncorrected_volatile"]) == (2, 0)


def test_a_card_can_be_skipped() -> None:
    assert set(read(CAPTURES / "amdgpu" / "radeon", OLD)) == {RADEON}


def test_a_host_without_amd_gpus_has_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(PluginUnavailableError, match="no AMD GPU"):
        read(tmp_path)
