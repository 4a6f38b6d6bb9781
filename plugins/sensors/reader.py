"""Temperatures, fans, voltages, currents and power of the host (`/sys/class/hwmon`)."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from core.clock import to_ns
from plugins.base import (
    BasePlugin,
    PluginContext,
    PluginError,
    PluginUnavailableError,
    gauges,
    matches_any,
)
from plugins.procfs import ProcFile
from timeseries.points import FieldValue, Point

_INPUT = re.compile(r"((temp|fan|in|curr|power)\d+)_(?:input|average)")


@dataclass(frozen=True, slots=True)
class Quantity:
    """Field of one kind of file, and its scale."""

    field: str
    per_unit: int


QUANTITIES = {
    "temp": Quantity("temperature_celsius", 1000),
    "fan": Quantity("fan_rpm", 1),
    "in": Quantity("voltage_volts", 1000),
    "curr": Quantity("current_amperes", 1000),
    "power": Quantity("power_watts", 1_000_000),
}


@dataclass(frozen=True, slots=True)
class Input:
    """One file to read, and its quantity."""

    path: Path
    quantity: Quantity


@dataclass(frozen=True, slots=True)
class Sensor:
    """One sensor of a chip; `constants` are limits."""

    chip: str
    sensor: str
    inputs: Sequence[Input]
    constants: Mapping[str, FieldValue]


def find_sensors(hwmon: Path) -> list[Sensor]:
    """Return the sensors of all chips, by device path of the chip."""
    # Old drivers have the files in the device directory.
    folders = [
        folder if (folder / "name").exists() else folder / "device"
        for folder in hwmon.glob("hwmon*")
    ]
    named = sorted((str(folder.resolve()), _text(folder / "name"), folder) for folder in folders)
    numbers: Counter[str] = Counter()
    of_name = Counter(name for _, name, _ in named)
    sensors: list[Sensor] = []
    for _, name, folder in named:
        if name:
            chip = f"{name}-{numbers[name]}" if of_name[name] > 1 else name
            numbers[name] += 1
            sensors += _sensors(chip, folder)
    return sensors


def number(text: bytes, per_unit: int) -> float | None:
    """Return the reading of a file in the unit of its field; None if not a number."""
    try:
        return int(text) / per_unit
    except ValueError:
        return None


def _sensors(chip: str, folder: Path) -> Iterable[Sensor]:
    inputs: dict[str, dict[str, Input]] = defaultdict(dict)
    limits: dict[str, dict[str, FieldValue]] = defaultdict(dict)
    for stem, kind, path in _inputs(folder):
        if _text(folder / f"{stem}_fault") == "1":
            continue
        quantity = QUANTITIES[kind]
        label = _text(folder / f"{stem}_label") or stem
        name = f"{label} {stem}" if quantity.field in inputs.get(label, {}) else label
        inputs[name][quantity.field] = Input(path, quantity)
        if kind == "temp" and (critical := _critical(folder / f"{stem}_crit")):
            limits[name]["critical_celsius"] = critical
    for name, of_field in inputs.items():
        yield Sensor(chip, name, tuple(of_field.values()), limits.get(name, {}))


def _inputs(folder: Path) -> list[tuple[str, str, Path]]:
    """Return stem, kind and path of each sensor file, preferring `_input` to `_average`."""
    inputs = {}
    for path in sorted(folder.glob("*_average")) + sorted(folder.glob("*_input")):
        if match := _INPUT.fullmatch(path.name):
            inputs[match[1]] = (match[1], match[2], path)
    return sorted(inputs.values(), key=lambda entry: (entry[1], int(entry[0][len(entry[1]) :])))


def _critical(path: Path) -> float | None:
    celsius = number(_text(path).encode(), QUANTITIES["temp"].per_unit)
    return celsius if celsius is not None and celsius > 0 else None  # 0 means unset


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return " ".join(text.split()).rstrip("\\")


RESCAN_INTERVAL = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorsConfig:
    """The sensors to skip.

    Attributes:
        skip_chips: shell patterns of chips, such as `iwlwifi*`.
        skip_sensors: shell patterns of sensors, such as `Core *`.
    """

    skip_chips: tuple[str, ...] = ()
    skip_sensors: tuple[str, ...] = ()


class SensorsPlugin(BasePlugin):
    """One point for each sensor that answers."""

    name = "sensors"
    config_class = SensorsConfig
    metrics = gauges(
        temperature_celsius=("degrees Celsius", "temperature"),
        critical_celsius=(
            "degrees Celsius",
            "critical temperature",
        ),
        fan_rpm=("rpm", "fan speed"),
        voltage_volts=("volts", "voltage"),
        current_amperes=("amperes", "current"),
        power_watts=("watts", "power"),
    )

    def __init__(self, config: SensorsConfig, context: PluginContext) -> None:
        self._config = config
        self._hwmon = context.sys / "class" / "hwmon"
        self._found_at: datetime | None = None
        self._sensors: Sequence[Sensor] = ()
        self._files: dict[Path, ProcFile] = {}

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each sensor; rescan for sensors every minute."""
        found_at = self._found_at
        if found_at is None or not timedelta(0) <= now - found_at < RESCAN_INTERVAL:
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
        """Close the sensor files."""
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
        wanted = {source.path for sensor in self._sensors for source in sensor.inputs}
        for path in self._files.keys() - wanted:
            self._files.pop(path).close()
        self._files |= {path: ProcFile(path) for path in wanted - self._files.keys()}

    def _read(self, sensor: Sensor) -> dict[str, FieldValue]:
        fields: dict[str, FieldValue] = {}
        for source in sensor.inputs:
            try:
                value = number(self._files[source.path].read(), source.quantity.per_unit)
            except PluginError:  # no reading now, or removed
                continue
            if value is not None:
                fields[source.quantity.field] = value
        return fields
