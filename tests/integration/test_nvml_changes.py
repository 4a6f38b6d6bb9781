"""Values that a card or driver does not support are absent, and tried again after changes."""

from pathlib import Path

from tests.fixtures.nvml import NVMLReader, World, chosen, reading
from tests.fixtures.nvml_dgx import MIB, gpu_fields, nvml, world

__all__ = ["nvml", "world"]


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
    assert [taken.fields for taken in readings] == [{"lost": 0}] * 8


def test_a_function_that_an_old_driver_lacks_leaves_its_field_out(
    nvml: NVMLReader, world: World
) -> None:
    for function in ("RemappedRows", "MemoryInfo_v2", "SramEccErrorStatus", "GpuFabricInfoV"):
        world.add(f"refuse nvmlDeviceGet{function} 13")
    fields = gpu_fields(nvml.read(), 0)
    assert not any(name.startswith(("sram_", "fabric_")) for name in fields)
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
