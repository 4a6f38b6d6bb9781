"""Sensors of the host, on a captured `/sys` of a server with two sockets and two NVMe disks."""

from datetime import timedelta
from pathlib import Path

import pytest

from plugins.base import PluginUnavailableError
from plugins.sensors.reader import SensorsConfig, SensorsPlugin
from tests.unit.plugins.conftest import FIRST_AT, SECOND_AT, CapturedHost
from timeseries.points import FieldValue

BMC = "devices/pci0000:00/0000:00:1f.4/i2c-0/0-002d/hwmon/hwmon5"
Readings = dict[tuple[str, str], dict[str, FieldValue]]


@pytest.fixture
def server(host: CapturedHost) -> CapturedHost:
    host.use("sys_server")
    return host


def readings(plugin: SensorsPlugin, *, after_seconds: float = 0) -> Readings:
    points = plugin.gather(FIRST_AT + timedelta(seconds=after_seconds))
    return {(point.tags["chip"], point.tags["sensor"]): dict(point.fields) for point in points}


def fail(path: Path) -> None:
    """Make a file one that can be opened and not read, as a chip that does not answer."""
    path.unlink()
    path.mkdir()


def test_every_sensor_is_in_the_unit_of_its_field(server: CapturedHost) -> None:
    plugin = SensorsPlugin(SensorsConfig(), server.context)
    assert readings(plugin) == {
        ("power_meter", "power1"): {"power_watts": 1412},
        ("bmc", "PSU1"): {"current_amperes": 12.5, "power_watts": 2650},
        ("bmc", "FAN1"): {"fan_rpm": 5460},
        ("bmc", "fan2"): {"fan_rpm": 5520},
        ("bmc", "fan10"): {"fan_rpm": 5400},
        ("bmc", "Vcore"): {"voltage_volts": 1.84},
        ("bmc", "Inlet"): {"temperature_celsius": 24.5},
        ("nvme-0", "Composite"): {"temperature_celsius": 35.85, "critical_celsius": 84.85},
        ("nvme-0", "Sensor 1"): {"temperature_celsius": 41.85},
        ("nvme-1", "Composite"): {"temperature_celsius": 33.85, "critical_celsius": 84.85},
        ("coretemp-0", "Package id 0"): {"temperature_celsius": 52, "critical_celsius": 95},
        ("coretemp-0", "Core 0"): {"temperature_celsius": 49, "critical_celsius": 95},
        ("coretemp-1", "Package id 1"): {"temperature_celsius": 47, "critical_celsius": 95},
        ("coretemp-1", "Core 0"): {"temperature_celsius": 44, "critical_celsius": 95},
    }
    plugin.close()


def test_a_faulty_sensor_is_absent(server: CapturedHost) -> None:
    plugin = SensorsPlugin(SensorsConfig(), server.context)
    assert ("bmc", "External") not in readings(plugin)
    plugin.close()


def test_a_sensor_that_does_not_answer_is_absent_and_the_others_stay(server: CapturedHost) -> None:
    fail(server.sys / BMC / "fan2_input")
    plugin = SensorsPlugin(SensorsConfig(), server.context)
    values = readings(plugin)
    assert ("bmc", "fan2") not in values
    assert values["bmc", "FAN1"] == {"fan_rpm": 5460}
    plugin.close()


def test_two_sensors_of_one_name_and_kind_are_distinguished(server: CapturedHost) -> None:
    for number in (1, 2):
        (server.sys / BMC / f"fan{number}_label").write_text("FAN\n", encoding="utf-8")
    plugin = SensorsPlugin(SensorsConfig(), server.context)
    values = readings(plugin)
    assert values["bmc", "FAN"] == {"fan_rpm": 5460}
    assert values["bmc", "FAN fan2"] == {"fan_rpm": 5520}
    plugin.close()


def test_values_are_read_anew_and_new_sensors_found_within_a_minute(server: CapturedHost) -> None:
    plugin = SensorsPlugin(SensorsConfig(), server.context)
    readings(plugin)
    (server.sys / BMC / "fan2_input").write_text("0\n", encoding="utf-8")
    (server.sys / BMC / "fan3_input").write_text("4000\n", encoding="utf-8")
    soon = readings(plugin, after_seconds=10)
    assert soon["bmc", "fan2"] == {"fan_rpm": 0}
    assert ("bmc", "fan3") not in soon
    assert readings(plugin, after_seconds=60)["bmc", "fan3"] == {"fan_rpm": 4000}
    plugin.close()


def test_chips_and_sensors_are_skipped_by_pattern(server: CapturedHost) -> None:
    config = SensorsConfig(skip_chips=("nvme*", "bmc"), skip_sensors=("Core *",))
    plugin = SensorsPlugin(config, server.context)
    assert readings(plugin).keys() == {
        ("power_meter", "power1"),
        ("coretemp-0", "Package id 0"),
        ("coretemp-1", "Package id 1"),
    }
    plugin.close()


def test_a_chip_of_an_old_driver_has_its_files_in_the_devices_folder(host: CapturedHost) -> None:
    device = host.sys / "class" / "hwmon" / "hwmon0" / "device"
    device.mkdir(parents=True)
    (device / "name").write_text("lm75\n", encoding="utf-8")
    (device / "temp1_input").write_text("21500\n", encoding="utf-8")
    plugin = SensorsPlugin(SensorsConfig(), host.context)
    assert readings(plugin) == {("lm75", "temp1"): {"temperature_celsius": 21.5}}
    plugin.close()


def test_a_host_without_sensors_has_nothing_to_read(host: CapturedHost) -> None:
    plugin = SensorsPlugin(SensorsConfig(), host.context)
    with pytest.raises(PluginUnavailableError, match="no sensor"):
        plugin.gather(SECOND_AT)
