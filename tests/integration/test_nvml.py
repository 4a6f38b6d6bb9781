"""The nvml plugin through NVIDIA's own bindings, on a driver library built for the test."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugins.nvml.metrics import GPU_METRICS, LINK_METRICS, NVML_METRICS
from tests.fixtures.nvml import NVMLReader, Reading, World, chosen, fake_nvml, reading
from timeseries.lineprotocol import encode
from timeseries.points import Point

__all__ = ["fake_nvml"]

MIB = 2**20
UUID = "GPU-00000000-0000-0000-0000-00000000000"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A DGX whose counters stand at second 0."""
    world = World(tmp_path / "world")
    world.add("scenario dgx", "seconds 0")
    return world


@pytest.fixture
def nvml(fake_nvml: Path, world: World) -> Iterator[NVMLReader]:
    """The plugin at its defaults."""
    with reading("nvml", fake_nvml, world.path) as reader:
        yield reader


def twice(nvml: NVMLReader, world: World) -> list[Reading]:
    """Read, let ten seconds pass, and read again: rates need two readings."""
    nvml.read(0)
    world.add("seconds 10")
    return nvml.read(10)


def gpu_fields(readings: list[Reading], gpu: int) -> dict[str, Any]:
    [point] = chosen(readings, "gpu", gpu=str(gpu))
    return point.fields


def test_a_dgx_gives_every_field_but_that_of_fans_which_belong_to_its_chassis(
    nvml: NVMLReader, world: World
) -> None:
    readings = twice(nvml, world)
    declared = {metric.name for metric in GPU_METRICS}
    assert set(gpu_fields(readings, 0)) == declared - {"fan_percent"}
    assert len(chosen(readings, "gpu")) == 8
    assert len(chosen(readings, "gpu_link")) == 8 * 18
    assert {name for one in readings for name in one.fields} <= {one.name for one in NVML_METRICS}


def test_a_reading_of_a_dgx_is_as_large_as_the_readme_says(nvml: NVMLReader, world: World) -> None:
    readings = twice(nvml, world)
    lines = encode(Point(one.measurement, one.tags, one.fields, one.time_ns) for one in readings)
    assert len(readings) == 152
    assert 40_000 < len(lines) < 50_000
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


def test_bytes_over_pcie_come_from_counters(nvml: NVMLReader, world: World) -> None:
    fields = gpu_fields(twice(nvml, world), 2)
    assert fields["pcie_received_bytes_per_second"] == 5_000_002
    assert fields["pcie_sent_bytes_per_second"] == 3_000_002
    assert (fields["pcie_generation"], fields["pcie_generation_max"]) == (4, 5)
    assert (fields["pcie_width"], fields["pcie_width_max"]) == (8, 16)


def test_pcie_counters_that_overflow_are_left_for_the_measurement_of_the_driver(
    nvml: NVMLReader, world: World
) -> None:
    world.add("gpu 2 pcie_is_narrow 1")
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
    assert down.fields == {
        "active": 0, "crc_errors": 0, "replay_errors": 0, "recovery_errors": 0
    }  # fmt: skip


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
def test_throttle_reasons_are_told_apart(
    nvml: NVMLReader, world: World, reasons: int, raised: set[str]
) -> None:
    world.add(f"gpu 0 reasons {reasons}")
    fields = gpu_fields(nvml.read(), 0)
    names = [name for name in fields if name.startswith(("throttled", "clocks_"))]
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


def test_errors_are_asked_one_by_one_where_the_driver_has_no_field_for_them(
    nvml: NVMLReader, world: World
) -> None:
    world.add("refuse nvmlDeviceGetFieldValues 13", "scenario ecc", "gpu 2 retired_double 4")
    readings = nvml.read()
    fields = gpu_fields(readings, 2)
    assert fields["ecc_uncorrected_volatile"] == 2
    assert fields["retired_pages_double_bit"] == 4
    assert fields["nvlinks"] == 18
    assert fields["energy_joules"] == 0.0
    assert chosen(readings, "gpu_link", gpu="2", link="0")[0].fields["crc_errors"] == 0


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
    assert [one.tags["slice"] for one in slices] == ["0", "1", "2", "3", "4", "5", "6"]
    assert slices[2].tags == {
        "gpu": "0",
        "uuid": "MIG-00000000-0000-0000-0002-000000000000",
        "slice": "2",
        "model": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    }
    assert slices[2].fields == {
        "memory_total_bytes": 9984 * MIB,
        "memory_used_bytes": 1200 * MIB,
        "memory_free_bytes": 8784 * MIB,
        "memory_used_percent": 12.019,
        "multiprocessors": 16,
    }
    whole = gpu_fields(readings, 0)
    assert whole["mig_enabled"] == 1
    assert "utilization_percent" not in whole
    assert gpu_fields(readings, 2)["mig_enabled"] == 0


def test_a_gpu_that_leaves_mig_mode_is_asked_again_for_what_it_refused(
    nvml: NVMLReader, world: World
) -> None:
    world.add("gpu 0 mig 1", "gpu 0 slices 2")
    assert "utilization_percent" not in gpu_fields(nvml.read(0), 0)
    world.add("gpu 0 mig 0")
    readings = nvml.read(10)
    assert gpu_fields(readings, 0)["utilization_percent"] == 97.0
    assert chosen(readings, "gpu_slice") == []


def test_what_no_card_supports_is_absent_and_not_zero(fake_nvml: Path) -> None:
    with reading("nvml", fake_nvml, "unsupported") as nvml:
        readings = nvml.read()
    assert [one.fields for one in readings] == [{"lost": 0}] * 8


def test_a_function_that_an_old_driver_lacks_leaves_its_field_out(
    nvml: NVMLReader, world: World
) -> None:
    world.add("refuse nvmlDeviceGetRemappedRows 13", "refuse nvmlDeviceGetMemoryInfo_v2 13")
    fields = gpu_fields(nvml.read(), 0)
    assert "remapped_rows_pending" not in fields
    assert "memory_reserved_bytes" not in fields
    assert fields["memory_used_bytes"] == (20480 + 551) * MIB  # version 1 counts the reserve too


def test_a_refused_call_is_tried_again_after_an_hour(nvml: NVMLReader, world: World) -> None:
    world.add("refuse nvmlDeviceGetPowerUsage 3")
    assert "power_watts" not in gpu_fields(nvml.read(0), 0)
    world.add("refuse nvmlDeviceGetPowerUsage 0")
    assert "power_watts" not in gpu_fields(nvml.read(10), 0)
    assert "power_watts" in gpu_fields(nvml.read(3600), 0)


def test_a_call_that_fails_once_is_made_again_the_next_time(nvml: NVMLReader, world: World) -> None:
    world.add("refuse nvmlDeviceGetPowerUsage 999")
    assert "power_watts" not in gpu_fields(nvml.read(0), 0)
    world.add("refuse nvmlDeviceGetPowerUsage 0")
    assert "power_watts" in gpu_fields(nvml.read(10), 0)


def test_a_gpu_that_is_lost_says_only_so_and_the_others_go_on(
    nvml: NVMLReader, world: World
) -> None:
    nvml.read(0)
    world.add("gpu 3 error 15", "seconds 10")
    readings = nvml.read(10)
    [lost] = chosen(readings, "gpu", gpu="3")
    assert lost.fields == {"lost": 1}
    assert lost.tags == {"gpu": "3", "uuid": f"{UUID}3", "model": "NVIDIA H100 80GB HBM3"}
    assert [gpu_fields(readings, gpu)["lost"] for gpu in (0, 2, 4, 7)] == [0, 0, 0, 0]
    assert chosen(readings, "gpu_link", gpu="3") == []


@pytest.mark.parametrize("error", [15, 16, 28, 999])
def test_a_gpu_that_was_lost_before_is_known_by_its_index(
    nvml: NVMLReader, world: World, error: int
) -> None:
    world.add(f"gpu 3 error {error}")
    readings = nvml.read()
    assert [one.tags for one in chosen(readings, "gpu", gpu="3")] == [{"gpu": "3"}]
    assert len(chosen(readings, "gpu")) == 8


def test_a_lost_gpu_that_comes_back_is_read_again(nvml: NVMLReader, world: World) -> None:
    world.add("gpu 3 error 16")
    assert gpu_fields(nvml.read(0), 3) == {"lost": 1}
    world.add("gpu 3 error 0")
    assert gpu_fields(nvml.read(10), 3)["utilization_percent"] == 94.0


def test_a_gpu_can_be_skipped(fake_nvml: Path, world: World) -> None:
    settings = {"skip_uuids": [f"{UUID}5"]}
    with reading("nvml", fake_nvml, world.path, settings=settings) as nvml:
        readings = twice(nvml, world)
    assert {one.tags["gpu"] for one in readings} == {"0", "1", "2", "3", "4", "6", "7"}


def test_after_a_driver_update_nvml_is_opened_again_within_the_reading(
    nvml: NVMLReader, world: World
) -> None:
    nvml.read(0)
    world.add("driver 560.35.03", "seconds 10")
    assert len(chosen(nvml.read(10), "gpu")) == 8


def test_after_a_driver_update_that_only_a_new_process_sees_it_is_asked_for(
    nvml: NVMLReader, world: World
) -> None:
    nvml.read(0)
    world.add("driver 560.35.03", "pinned 1")
    assert nvml.answer(10)["error"] == "PluginRestartError"


def test_the_bindings_are_imported_only_when_gpus_are_read(nvml: NVMLReader) -> None:
    assert nvml.answer()["has_bindings_early"] is False
