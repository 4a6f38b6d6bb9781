"""Temperatures, fans, voltages, currents and power of the host (`/sys/class/hwmon`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

from core.clock import to_ns
from plugins.base import (
    Metric,
    PluginContext,
    PluginError,
    PluginTraits,
    PluginUnavailableError,
    gauges,
    matches_any,
)
from plugins.procfs import ProcFile
from plugins.sensors.chips import Sensor, find_sensors, number
from timeseries.points import FieldValue, Point

SENSORS_KEPT = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorsConfig:
    """What to leave out.

    Attributes:
        skip_chips: shell patterns of chips, such as `iwlwifi*`.
        skip_sensors: shell patterns of sensors, such as `Core *`.
    """

    skip_chips: tuple[str, ...] = ()
    skip_sensors: tuple[str, ...] = ()


class SensorsPlugin:
    """One point for each sensor; one that does not answer is left out of that reading."""

    name: ClassVar[str] = "sensors"
    config_class: ClassVar[type] = SensorsConfig
    traits: ClassVar[PluginTraits] = PluginTraits()
    metrics: ClassVar[tuple[Metric, ...]] = gauges(
        {
            "temperature_celsius": ("degrees Celsius", "temperature"),
            "critical_celsius": (
                "degrees Celsius",
                "temperature at which the hardware protects itself",
            ),
            "fan_rpm": ("rpm", "turns of a fan in a minute"),
            "voltage_volts": ("volts", "voltage"),
            "current_amperes": ("amperes", "current"),
            "power_watts": ("watts", "power"),
        }
    )

    def __init__(self, config: SensorsConfig, context: PluginContext) -> None:
        self._config = config
        self._hwmon = context.sys / "class" / "hwmon"
        self._found_at: datetime | None = None
        self._sensors: Sequence[Sensor] = ()
        self._files: dict[Path, ProcFile] = {}

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each sensor; new and lost ones are noticed every minute."""
        kept = self._found_at
        if kept is None or not timedelta(0) <= now - kept < SENSORS_KEPT:
            self._find()
            self._found_at = now
        if not self._sensors:
            raise PluginUnavailableError(f"no sensor in {self._hwmon}")
        time_ns, points = to_ns(now), []
        for sensor in self._sensors:
            if fields := self._read(sensor):
                tags = {"chip": sensor.chip, "sensor": sensor.sensor}
                points.append(Point("sensor", tags, {**fields, **sensor.constants}, time_ns))
        return points

    def close(self) -> None:
        """Close the sensors' files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._found_at = None

    def _find(self) -> None:
        self._sensors = [
            sensor
            for sensor in find_sensors(self._hwmon)
            if not matches_any(sensor.chip, self._config.skip_chips)
            and not matches_any(sensor.sensor, self._config.skip_sensors)
        ]
        wanted = {one.path for sensor in self._sensors for one in sensor.inputs}
        for path in self._files.keys() - wanted:
            self._files.pop(path).close()
        self._files |= {path: ProcFile(path) for path in wanted - self._files.keys()}

    def _read(self, sensor: Sensor) -> dict[str, FieldValue]:
        fields: dict[str, FieldValue] = {}
        for one in sensor.inputs:
            try:
                value = number(self._files[one.path].read(), one.quantity.per_unit)
            except PluginError:  # the chip has no reading now, or is gone
                continue
            if value is not None:
                fields[one.quantity.field] = value
        return fields
