"""Units by field name: the suffix of a field says its unit, and this says how people read it.

`gpu.temperature_celsius` is shown as `71 °C`, `memory.used_bytes` as `12.4 GiB`.
"""

from dataclasses import dataclass

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SI = ("", "k", "M", "G", "T")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit as dashboards and alert messages show it."""

    suffix: str
    symbol: str
    is_binary: bool = False
    is_scaled: bool = False


# Longest suffix first: `_bytes_per_second` must win over `_per_second`.
UNITS = (
    Unit("_bytes_per_second", "B/s", is_binary=True),
    Unit("_bytes", "B", is_binary=True),
    Unit("_per_second", "/s", is_scaled=True),
    Unit("_percent", "%"),
    Unit("_ratio", ""),
    Unit("_celsius", "°C"),
    Unit("_watts", "W", is_scaled=True),
    Unit("_joules", "J", is_scaled=True),
    Unit("_hertz", "Hz", is_scaled=True),
    Unit("_seconds", "s"),
    Unit("_rpm", "rpm"),
    Unit("_volts", "V"),
    Unit("_amperes", "A"),
)
NO_UNIT = Unit("", "", is_scaled=True)


def unit_of(field: str) -> Unit:
    """Return the unit that a field's name declares, or a plain number."""
    return next((unit for unit in UNITS if field.endswith(unit.suffix)), NO_UNIT)


def format_value(field: str, value: float) -> str:
    """Return `value` of `field` with its unit, scaled so that it has few digits."""
    unit = unit_of(field)
    if unit.is_binary:
        scaled, prefix = _scale(value, base=1024, prefixes=_BINARY)
        return f"{_digits(scaled)} {prefix}{unit.symbol.removeprefix('B')}"
    if unit.is_scaled:
        scaled, prefix = _scale(value, base=1000, prefixes=_SI)
        return f"{_digits(scaled)} {prefix}{unit.symbol}".strip()
    return f"{_digits(value)} {unit.symbol}".strip()


def _scale(value: float, *, base: int, prefixes: tuple[str, ...]) -> tuple[float, str]:
    step = 0
    while abs(value) >= base and step < len(prefixes) - 1:
        value /= base
        step += 1
    return value, prefixes[step]


def _digits(value: float) -> str:
    digits = 0 if abs(value) >= 100 or value == int(value) else 1  # noqa: PLR2004 - three figures
    return f"{value:.{digits}f}"
