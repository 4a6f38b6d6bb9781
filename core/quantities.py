"""Quantities as users read and write them: `71 °C`, `12.4 GiB`, `1h 30m`.

The suffix of a field's name declares its unit: `gpu.temperature_celsius`, `memory.used_bytes`.
"""

import re
from dataclasses import dataclass

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SI = ("", "k", "M", "G", "T")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgtp])i?b?|b)?", re.IGNORECASE)
_VALUE = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z°%/]*)")
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?\s*[smhd]\s*)+", re.IGNORECASE)
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd])", re.IGNORECASE)
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_MINUTE = _SECONDS["m"]
MAX_SIZE_BYTES = 2**63
# The smallest numbers have as many digits without an exponent.
MAX_TEXT_LENGTH = 400


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
    """Return the unit that a field's name declares, or a plain number.

    A text in brackets at the end, such as `[tokens/s]`, is a unit of its own.
    """
    if field.endswith("]"):
        return Unit("", field.rpartition("[")[2].removesuffix("]"))
    return next((unit for unit in UNITS if field.endswith(unit.suffix)), NO_UNIT)


def format_value(field: str, value: float) -> str:
    """Return `value` of `field` with its unit, scaled to three or four digits.

    A minute and more is a duration: `3d`.
    """
    unit = unit_of(field)
    if unit.is_binary:
        scaled, prefix = _scale(value, base=1024, prefixes=_BINARY)
        return f"{_digits(scaled)} {prefix}{unit.symbol.removeprefix('B')}"
    if unit.is_scaled:
        scaled, prefix = _scale(value, base=1000, prefixes=_SI)
        return f"{_digits(scaled)} {prefix}{unit.symbol}".strip()
    if unit.symbol == "s" and abs(value) >= _MINUTE:
        return f"{'-' * (value < 0)}{format_duration(abs(value))}"
    return f"{_digits(value)} {unit.symbol}".strip()


def parse_value(field: str, text: str) -> float:
    """Return the number of `85`, or of `8 GiB`, `85 °C` or `1.2 kW`, if the unit is the field's.

    Raises:
        ValueError: not a number, or another unit.
    """
    match = _VALUE.fullmatch(_short(text))
    if match is None:
        raise ValueError(f"{text!r} is not a number")
    unit, unit_text = unit_of(field), match[2]
    if not unit_text:
        return float(match[1])
    if unit.is_binary:
        base = 1024.0
        scaled = [prefix + unit.symbol.removeprefix("B") for prefix in _BINARY]
    else:
        base = 1000.0
        scaled = [prefix + unit.symbol for prefix in (_SI if unit.is_scaled else ("",))]
    if unit_text not in scaled:
        shown = f"write {' or '.join(filter(None, scaled))}" if any(scaled) else "leave it out"
        raise ValueError(f"{unit_text!r} is not a unit of {field or 'a count'}; {shown}")
    return float(match[1]) * float(base ** scaled.index(unit_text))


def parse_size(text: str) -> int:
    """Return the bytes of `8 GiB`, `512m` or `1024`. Units are powers of 1024.

    Raises:
        ValueError: not a size.
    """
    match = _SIZE.fullmatch(_short(text))
    if match is None:
        raise ValueError(f"{text!r} is not a size. Write it like 8 GiB or 512 MiB.")
    power = "bkmgtp".index((match[2] or "b").lower())
    size_bytes = float(match[1]) * float(1024**power)
    if size_bytes > MAX_SIZE_BYTES:
        raise ValueError(f"{text[:20]!r} is too large a size.")
    return round(size_bytes)


def format_size(size_bytes: float, *, exact: bool = False) -> str:
    """Return a size with its unit: `12.4 GiB`.

    Args:
        size_bytes: the size.
        exact: choose the largest unit in which `parse_size` returns the same number of bytes.
    """
    if not exact:
        return format_value("_bytes", size_bytes)
    for power in range(len(_BINARY) - 1, 0, -1):
        scaled = round(size_bytes / 1024**power, 2)
        if scaled >= 1 and scaled * 1024**power == size_bytes:
            digits = f"{scaled:.2f}".rstrip("0").rstrip(".")
            return f"{digits} {_BINARY[power]}"
    return f"{size_bytes:.0f} B"


def format_share(part_bytes: float, total_bytes: float) -> str:
    """Return a part of a size, such as `2.1 of 2.3 TiB`."""
    number, _, unit = format_size(part_bytes).partition(" ")
    total = format_size(total_bytes)
    has_same_unit = not part_bytes or unit == total.partition(" ")[2]
    return f"{number} of {total}" if has_same_unit else f"{number} {unit} of {total}"


def parse_duration(text: str) -> float:
    """Return the seconds of `90`, `5m` or `1h 30m`.

    Raises:
        ValueError: not a duration.
    """
    text = _short(text)
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration. Write it like 30s, 5m or 1h 30m.")
    return sum(float(n) * _SECONDS[unit.lower()] for n, unit in _DURATION_PART.findall(text))


def format_duration(seconds: float, *, exact: bool = False) -> str:
    """Return a duration in its two largest units, in whole seconds: `45s`, `5m`, `1d 2h`.

    Args:
        seconds: the duration; a negative one counts as 0.
        exact: use as many units and digits as `parse_duration` needs to return the same value.
    """
    remainder = max(0.0, seconds) if exact else max(0, round(seconds))
    parts: list[str] = []
    for unit, size in _SECONDS.items():
        count, remainder = (remainder, 0) if unit == "s" else divmod(remainder, size)
        if count:
            parts.append(f"{count:.10g}{unit}")
    return " ".join(parts if exact else parts[:2]) or "0s"


def _short(text: str) -> str:
    """Return the text without spaces around it; it comes from users, and has few digits."""
    text = text.strip()
    if len(text) > MAX_TEXT_LENGTH:
        raise ValueError(f"{text[:20]!r}... has {len(text)} characters")
    return text


def _scale(value: float, *, base: int, prefixes: tuple[str, ...]) -> tuple[float, str]:
    step = 0
    while abs(value) >= base and step < len(prefixes) - 1:
        value /= base
        step += 1
    return value, prefixes[step]


def _digits(value: float) -> str:
    digits = 0 if abs(value) >= 100 or value == int(value) else 1  # noqa: PLR2004 - three figures
    return f"{value:z.{digits}f}"
