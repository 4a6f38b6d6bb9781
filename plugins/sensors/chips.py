"""Finds hardware monitoring chips and their sensors under `/sys/class/hwmon`.

A *chip* is a folder `hwmonN`; a *sensor* is one thing that it measures, such as `temp1` with the
files `temp1_input`, `temp1_label` and `temp1_crit`. One chip's sensors of the same name (a power
and a temperature of `GPU`) are one sensor with several readings.

Source: the kernel's Documentation/hwmon/sysfs-interface.rst and Documentation/ABI/testing/
sysfs-class-hwmon.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from timeseries.points import FieldValue

_INPUT = re.compile(r"((temp|fan|in|curr|power)\d+)_(?:input|average)")


@dataclass(frozen=True, slots=True)
class Quantity:
    """What the files of one kind measure: a field, and how many of the file's units make one."""

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
    """One file to read, and what it gives."""

    path: Path
    quantity: Quantity


@dataclass(frozen=True, slots=True)
class Sensor:
    """Something that a chip measures; `constants` are limits, which do not change."""

    chip: str
    sensor: str
    inputs: Sequence[Input]
    constants: Mapping[str, FieldValue]


def find_sensors(hwmon: Path) -> list[Sensor]:
    """Return the sensors of every chip, in the order of the chips' device paths."""
    folders = [_attributes(folder) for folder in hwmon.glob("hwmon*")]
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
    """Return the reading of a file in the unit of its field, None for what is no number."""
    try:
        return int(text) / per_unit
    except ValueError:
        return None


def _attributes(folder: Path) -> Path:
    """Return where a chip's files are: old drivers have them in the device's folder."""
    return folder if (folder / "name").exists() else folder / "device"


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
    """Return stem, kind and path of each sensor's file, `_input` rather than `_average`."""
    found = {}
    for path in sorted(folder.glob("*_average")) + sorted(folder.glob("*_input")):
        if match := _INPUT.fullmatch(path.name):
            found[match[1]] = (match[1], match[2], path)
    return sorted(found.values(), key=lambda entry: (entry[1], int(entry[0][len(entry[1]) :])))


def _critical(path: Path) -> float | None:
    celsius = number(_text(path).encode(), QUANTITIES["temp"].per_unit)
    return celsius if celsius is not None and celsius > 0 else None  # 0 is: not set


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return " ".join(text.split()).rstrip("\\")
