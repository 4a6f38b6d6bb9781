"""The nvml plugin through NVIDIA's own bindings: what it reads of a DGX, and in which units."""

import zlib
from pathlib import Path

import pytest

from plugins.base import MetricKind
from plugins.nvml.metrics import GPU_METRICS, LINK_METRICS, NVML_METRICS
from tests.fixtures.metrics_page import undocumented
from tests.fixtures.nvml import NVMLReader, World, chosen, reading
from tests.fixtures.nvml_dgx import MIB, UUID, gpu_fields, nvml, twice, world
from timeseries.lineprotocol.encode import encode
from timeseries.points import Point

__all__ = ["nvml", "world"]


def test_a_dgx_gives_every_field_but_that_of_fans_which_belong_to_its_chassis(
    nvml: NVMLReader, world: World
) -> None:
    readings = twice(nvml, world)
    declared = {metric.name for metric in GPU_METRICS}
    # A DGX has neither links to its CPUs nor virtual GPUs, and the driver refuses one activity.
    absent = {name for name in declared if name.startswith("c2c_")} | {"vgpu_licensed"}
    absent |= {"fan_percent", "fp16_active_percent"}
    assert set(gpu_fields(readings, 0)) == declared - absent
    assert len(chosen(readings, "gpu")) == 8
    assert len(chosen(readings, "gpu_link")) == 8 * 18
    assert {name for taken in readings for name in taken.fields} <= {
        metric.name for metric in NVML_METRICS
    }


@pytest.mark.parametrize("scenario", ["dgx", "mig", "lost", "ecc"])
def test_every_measurement_tag_and_field_is_on_the_page_of_metrics(
    nvml: NVMLReader, world: World, scenario: str
) -> None:
    world.add(f"scenario {scenario}")
    readings = twice(nvml, world)
    assert (
        undocumented((taken.measurement, taken.tags, taken.fields) for taken in readings) == set()
    )


def test_a_reading_of_a_dgx_is_as_large_as_the_readme_says(nvml: NVMLReader, world: World) -> None:
    readings = twice(nvml, world)
    lines = encode(
        Point(taken.measurement, taken.tags, taken.fields, taken.time_ns) for taken in readings
    )
    assert len(readings) == 168
    assert 50_000 < len(lines) < 55_000
    assert len(zlib.compress(lines, 1)) < 6_000


def test_use_memory_heat_power_and_clocks_are_in_our_units(nvml: NVMLReader, world: World) -> None:
    fields = gpu_fields(twice(nvml, world), 1)
    expected = {
        "utilization_percent": 96.0,
        "memory_utilization_percent": 42.0,
        "encoder_utilization_percent": 3.0,
        "decoder_utilization_percent": 12.0,
        "memory_total_bytes": 81559 * MIB,
        "memory_used_bytes": 20577 * MIB,
        "memory_reserved_bytes": 551 * MIB,
        "memory_free_bytes": (81559 - 551 - 20577) * MIB,
        "memory_used_percent": 25.23,
        "temperature_celsius": 52.0,
        "memory_temperature_celsius": 61.0,
        "slowdown_celsius": 89.0,
        "shutdown_celsius": 92.0,
        "max_operating_celsius": 87.0,
        "power_watts": 613.456,
        "power_limit_watts": 650.0,
        "power_limit_default_watts": 700.0,
        "power_limit_max_watts": 700.0,
        "energy_joules": 6134.56,
        "sm_clock_hertz": 1_155_000_000,
        "memory_clock_hertz": 2_619_000_000,
        "graphics_clock_hertz": 1_155_000_000,
        "video_clock_hertz": 990_000_000,
        "sm_clock_max_hertz": 1_980_000_000,
        "memory_clock_max_hertz": 2_619_000_000,
        "performance_state": 0,
        "lost": 0,
        "mig_enabled": 0,
        "compute_mode": 0,
        "persistence_mode": 1,
        "ecc_enabled": 1,
    }
    assert {name: fields[name] for name in expected} == pytest.approx(expected)


def test_a_point_names_its_gpu_by_index_uuid_and_model(nvml: NVMLReader) -> None:
    [point] = nvml.of("gpu", 7, gpu="3")
    assert point.tags == {"gpu": "3", "uuid": f"{UUID}3", "model": "NVIDIA H100 80GB HBM3"}
    assert point.time_ns == 7_000_000_000


def test_hopper_reports_how_busy_its_units_were_since_the_reading_before(
    nvml: NVMLReader, world: World
) -> None:
    declared = {metric.name for metric in GPU_METRICS}
    activity = {name for name in declared if name.endswith("active_percent")}
    assert activity.isdisjoint(gpu_fields(nvml.read(0), 2))
    world.add("seconds 10")
    fields = gpu_fields(nvml.read(10), 2)
    assert fields["sm_active_percent"] == 96.0
    assert fields["tensor_active_percent"] == 93.0
    assert fields["dram_active_percent"] == 88.0
    assert "fp16_active_percent" not in fields  # the driver refuses it alone
    assert fields["pcie_received_bytes_per_second"] == 5.5 * MIB
    assert fields["pcie_sent_bytes_per_second"] == 3 * MIB
    # Too short a time gives what is not a number for the memory.
    assert "dram_active_percent" not in gpu_fields(nvml.read(10), 2)


def test_activity_starts_anew_after_the_gpu_was_lost_or_sliced(
    nvml: NVMLReader, world: World
) -> None:
    twice(nvml, world)
    world.add("gpu 2 error 15")
    nvml.read(11)
    world.add("gpu 2 error 0", "gpu 3 mig 1", "gpu 3 slices 2")
    readings = nvml.read(20)
    assert "sm_active_percent" not in gpu_fields(readings, 2)
    world.add("seconds 30")
    readings = nvml.read(30)
    assert "sm_active_percent" in gpu_fields(readings, 2)
    assert "sm_active_percent" not in gpu_fields(readings, 3)


def test_bytes_over_pcie_come_from_counters_before_hopper(nvml: NVMLReader, world: World) -> None:
    world.add("refuse nvmlGpmQueryDeviceSupport 3")
    fields = gpu_fields(twice(nvml, world), 2)
    assert fields["pcie_received_bytes_per_second"] == 5_000_002
    assert fields["pcie_sent_bytes_per_second"] == 3_000_002
    assert (fields["pcie_generation"], fields["pcie_generation_max"]) == (4, 5)
    assert (fields["pcie_width"], fields["pcie_width_max"]) == (8, 16)


def test_pcie_counters_that_overflow_are_left_for_the_measurement_of_the_driver(
    nvml: NVMLReader, world: World
) -> None:
    world.add("refuse nvmlGpmQueryDeviceSupport 3", "gpu 2 pcie_is_narrow 1")
    fields = gpu_fields(twice(nvml, world), 2)
    assert fields["pcie_received_bytes_per_second"] == 5_000_000
    assert fields["pcie_sent_bytes_per_second"] == 3_000_000


def test_pcie_throughput_can_be_left_out(fake_nvml: Path, world: World) -> None:
    with reading("nvml", fake_nvml, world.path, settings={"pcie_throughput": False}) as nvml:
        fields = gpu_fields(twice(nvml, world), 0)
    assert "pcie_received_bytes_per_second" not in fields
    assert "pcie_width" in fields


def test_each_nvlink_has_its_state_errors_and_rates(nvml: NVMLReader, world: World) -> None:
    world.add("gpu 4 link_crc_errors 3", "gpu 4 link_replay_errors 5", "gpu 4 links_down 4")
    readings = twice(nvml, world)
    [first] = chosen(readings, "gpu_link", gpu="4", link="0")
    assert first.fields == {
        "active": 1,
        "received_bytes_per_second": 11_000_000 * 1024,
        "sent_bytes_per_second": 12_000_000 * 1024,
        "crc_errors": 3,
        "replay_errors": 5,
        "recovery_errors": 0,
    }
    assert set(first.fields) == {metric.name for metric in LINK_METRICS}
    [down] = chosen(readings, "gpu_link", gpu="4", link="2")
    assert down.fields == {"active": 0, "crc_errors": 0, "replay_errors": 0, "recovery_errors": 0}


def test_a_gpu_sums_up_its_links(nvml: NVMLReader, world: World) -> None:
    world.add("gpu 4 link_crc_errors 3", "gpu 4 link_replay_errors 5", "gpu 4 links_down 4")
    fields = gpu_fields(twice(nvml, world), 4)
    assert (fields["nvlinks"], fields["nvlinks_active"]) == (18, 17)
    # Link N sends 12,000,000 + 1000 N KiB/s; link 2 is down.
    assert fields["nvlink_sent_bytes_per_second"] == (17 * 12_000_000 + 151_000) * 1024
    assert fields["nvlink_errors"] == 8


def test_links_can_be_left_to_the_sums(fake_nvml: Path, world: World) -> None:
    with reading("nvml", fake_nvml, world.path, settings={"per_link": False}) as nvml:
        readings = twice(nvml, world)
    assert chosen(readings, "gpu_link") == []
    assert gpu_fields(readings, 0)["nvlinks_active"] == 18


@pytest.mark.parametrize(
    ("reasons", "raised"),
    [
        (0x1, {"clocks_idle"}),
        (0x2, {"clocks_set_by_user"}),
        (0x4, {"throttled", "throttled_by_power"}),
        (0x20, {"throttled", "throttled_by_heat"}),
        (0x48, {"throttled", "throttled_by_heat", "throttled_by_hardware"}),
        (0x80, {"throttled", "throttled_by_hardware"}),
    ],
)
def test_throttle_reasons_are_distinguished(
    nvml: NVMLReader, world: World, reasons: int, raised: set[str]
) -> None:
    world.add(f"gpu 0 reasons {reasons}")
    fields = gpu_fields(nvml.read(), 0)
    flags = {metric.name for metric in GPU_METRICS if metric.kind is MetricKind.FLAG}
    names = [name for name in fields if name in flags and name.startswith(("throttled", "clocks_"))]
    assert {name for name in names if fields[name]} == raised
    assert len(names) == 6
    assert fields["throttle_reasons"] == reasons


def test_a_double_bit_error_is_counted_and_its_row_waits_to_be_replaced(fake_nvml: Path) -> None:
    with reading("nvml", fake_nvml, "ecc") as nvml:
        fields = gpu_fields(nvml.read(), 2)
    assert fields["ecc_uncorrected_volatile"] == 2
    assert fields["ecc_uncorrected_aggregate"] == 5
    assert fields["ecc_corrected_aggregate"] == 2
    assert fields["remapped_rows_uncorrected"] == 1
    assert (fields["remapped_rows_pending"], fields["remapped_rows_failed"]) == (1, 0)


def test_errors_of_caches_are_counted_up_to_their_threshold(nvml: NVMLReader, world: World) -> None:
    world.add("gpu 2 sram_corrected 7", "gpu 2 sram_uncorrected 4", "gpu 2 sram_exceeded 1")
    readings = nvml.read()
    worn, sound = gpu_fields(readings, 2), gpu_fields(readings, 1)
    assert worn["sram_ecc_corrected_aggregate"] == 7
    # Four parity errors, and one that SEC-DED detected.
    assert worn["sram_ecc_uncorrected_aggregate"] == 5
    assert worn["sram_ecc_threshold_exceeded"] == 1
    assert sound["sram_ecc_threshold_exceeded"] == 0


def test_errors_are_counted_by_where_they_happened(nvml: NVMLReader, world: World) -> None:
    world.add("gpu 2 sram_uncorrected 4", "gpu 2 ecc_corrected_volatile 9")
    places = {
        taken.tags["place"]: taken.fields for taken in chosen(nvml.read(), "gpu_ecc", gpu="2")
    }
    assert places["device_memory"]["corrected_volatile"] == 9
    assert places["sram"]["uncorrected_aggregate"] == 5
    assert places["sram"]["corrected_volatile"] == 3
    assert places["sram_sm"] == {"uncorrected_aggregate": 4}
    # Hopper does not tell its caches apart.
    assert "l1_cache" not in places


def test_throttled_time_is_counted_in_seconds(nvml: NVMLReader, world: World) -> None:
    world.add("seconds 100")
    fields = gpu_fields(nvml.read(), 0)
    assert fields["throttled_by_power_seconds"] == 7.4
    assert fields["low_utilization_seconds"] == 7.8


def test_a_superchip_has_links_to_its_cpu(nvml: NVMLReader, world: World) -> None:
    world.add("gpu 1 c2c_links 10", "gpu 1 c2c_links_down 2")
    fields = gpu_fields(twice(nvml, world), 1)
    assert (fields["c2c_links"], fields["c2c_links_active"]) == (10, 8)
    assert fields["c2c_sent_bytes_per_second"] == 96 * MIB


@pytest.mark.parametrize(("vgpu", "is_licensed"), [(0, None), (1, 0), (2, 1)])
def test_a_virtual_gpu_says_whether_it_is_licensed(
    nvml: NVMLReader, world: World, vgpu: int, is_licensed: int | None
) -> None:
    world.add(f"gpu 1 vgpu {vgpu}")
    assert gpu_fields(nvml.read(), 1).get("vgpu_licensed") == is_licensed


IN_PROGRESS = 2
INSUFFICIENT_RESOURCES = 23
# Each part of the mask is 2 if fine, besides the configuration: 1.
FINE = 0b01_10_10_10_10


@pytest.mark.parametrize(
    ("statements", "is_registered", "is_degraded"),
    [
        ([], 1, 0),
        ([f"fabric_state {IN_PROGRESS}"], 0, 0),
        ([f"fabric_status {INSUFFICIENT_RESOURCES}"], 0, 0),
        ([f"fabric_health_mask {FINE ^ 0b11}"], 1, 1),
        ([f"fabric_health_mask {FINE ^ 0b11_00_00}"], 1, 1),
        ([f"fabric_health_mask {FINE ^ 0b101_00_00_00_00}"], 1, 1),
        (["fabric_health_mask 0"], 1, None),
        (["fabric_state 0"], None, None),
    ],
)
def test_a_gpu_reports_its_place_in_the_nvlink_fabric(
    nvml: NVMLReader,
    world: World,
    statements: list[str],
    is_registered: int | None,
    is_degraded: int | None,
) -> None:
    world.add(*(f"gpu 3 {statement}" for statement in statements))
    fields = gpu_fields(nvml.read(), 3)
    assert fields.get("fabric_registered") == is_registered
    assert fields.get("fabric_degraded") == is_degraded


def test_limits_are_derived_where_the_card_gives_them_as_distances(
    nvml: NVMLReader, world: World
) -> None:
    world.add("refuse nvmlDeviceGetTemperatureThreshold 3")
    fields = gpu_fields(nvml.read(), 0)
    # 51 C with 36 C left to the highest of operation; slowdown 2 C and shutdown 5 C above it.
    assert fields["max_operating_celsius"] == 87.0
    assert fields["slowdown_celsius"] == 89.0
    assert fields["shutdown_celsius"] == 92.0


def test_mig_slices_have_their_own_memory_and_uuid(fake_nvml: Path) -> None:
    with reading("nvml", fake_nvml, "mig") as nvml:
        readings = nvml.read()
    slices = chosen(readings, "gpu_slice", gpu="0")
    assert [mig_slice.tags["slice"] for mig_slice in slices] == ["0", "1", "2", "3", "4", "5", "6"]
    assert slices[2].tags == {
        "gpu": "0",
        "uuid": "MIG-00000000-0000-0000-0002-000000000000",
        "slice": "2",
        "profile": "1g.10gb",
        "model": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    }
    assert slices[2].fields == {
        "memory_total_bytes": 9984 * MIB,
        "memory_used_bytes": 1200 * MIB,
        "memory_free_bytes": 8784 * MIB,
        "memory_used_percent": 12.019,
        "multiprocessors": 16,
    }
    gpu = gpu_fields(readings, 0)
    assert gpu["mig_enabled"] == 1
    assert "utilization_percent" not in gpu
    assert gpu_fields(readings, 2)["mig_enabled"] == 0


def test_mig_slices_report_how_busy_their_units_were(nvml: NVMLReader, world: World) -> None:
    world.add("gpu 3 mig 1", "gpu 3 slices 2")
    first = chosen(nvml.read(0), "gpu_slice", gpu="3")
    assert not any("sm_active_percent" in mig_slice.fields for mig_slice in first)
    world.add("seconds 10")
    slices = chosen(nvml.read(10), "gpu_slice", gpu="3")
    assert [mig_slice.fields["sm_active_percent"] for mig_slice in slices] == [65.0, 55.0]
    assert all("pcie_sent_bytes_per_second" not in mig_slice.fields for mig_slice in slices)


def test_a_gpu_can_be_skipped(fake_nvml: Path, world: World) -> None:
    settings = {"skip_uuids": [f"{UUID}5"]}
    with reading("nvml", fake_nvml, world.path, settings=settings) as nvml:
        readings = twice(nvml, world)
    assert {taken.tags["gpu"] for taken in readings} == {"0", "1", "2", "3", "4", "6", "7"}


def test_the_bindings_are_imported_only_when_gpus_are_read(nvml: NVMLReader) -> None:
    assert nvml.answer()["has_bindings_early"] is False
