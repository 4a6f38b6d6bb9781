"""Sizes and durations as people write them, `8 GiB` and `5m`, and back."""

import re

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgtp])i?b?|b)?", re.IGNORECASE)
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?\s*[smhd]\s*)+", re.IGNORECASE)
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd])", re.IGNORECASE)
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def parse_size(text: str) -> int:
    """Return the bytes of `8 GiB`, `512m` or `1024`; all steps are of 1024.

    Raises:
        ValueError: it is not a size; says how one is written.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size. Write it like 8 GiB or 512 MiB.")
    power = "bkmgtp".index((match[2] or "b").lower())
    return round(float(match[1]) * float(1024**power))


def format_size(size_bytes: int) -> str:
    """Return a size that `parse_size` reads back exactly, in the largest unit that fits."""
    for power in range(len(_SIZE_UNITS) - 1, 0, -1):
        scaled = size_bytes / 1024**power
        if scaled >= 1 and round(scaled, 2) * 1024**power == size_bytes:
            digits = f"{scaled:.2f}".rstrip("0").rstrip(".")
            return f"{digits} {_SIZE_UNITS[power]}"
    return f"{size_bytes} B" if size_bytes else "0"


def parse_duration(text: str) -> float:
    """Return the seconds of `90`, `5m` or `1h 30m`.

    Raises:
        ValueError: it is not a duration; says how one is written.
    """
    text = text.strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration. Write it like 30s, 5m or 1h.")
    return sum(float(n) * _SECONDS[unit.lower()] for n, unit in _DURATION_PART.findall(text))


def format_duration(seconds: float) -> str:
    """Return a duration of at most two units, such as `5m` or `1h 30m`."""
    if seconds < 1:
        return f"{seconds:g}s"
    parts: list[str] = []
    rest = round(seconds)
    for unit, size in _SECONDS.items():
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
