"""AMD GPUs, from the files of the kernel's amdgpu driver: measurement `gpu`, as NVIDIA's.

What a card does not have leaves its field out, never 0. A card that sleeps is not woken: it shows
its memory only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from core.clock import to_ns
from jobqueue.executors.amd_devices import read_text
from plugins.amdgpu.sysfs import Card, find_cards, integer, pcie_generation
from plugins.base import (
    Metric,
    PluginContext,
    PluginTraits,
    PluginUnavailableError,
    counters,
    flags,
    gauges,
    present,
)
from timeseries.points import FieldValue, Point

MICRO = 1e-6
MILLI = 1e-3
Fields = dict[str, FieldValue | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AMDGPUConfig:
    """Which GPUs to read.

    Attributes:
        skip_uuids: GPUs to leave out, by UUID.
    """

    skip_uuids: tuple[str, ...] = ()


class AMDGPUPlugin:
    """One point for each AMD GPU."""

    name: ClassVar[str] = "amdgpu"
    config_class: ClassVar[type] = AMDGPUConfig
    traits: ClassVar[PluginTraits] = PluginTraits()
    metrics: ClassVar[tuple[Metric, ...]] = (
        *gauges(
            {
                "utilization_percent": ("percent", "time with work on the graphics engine"),
                "memory_utilization_percent": ("percent", "time in which memory was in use"),
                "memory_total_bytes": ("bytes", "memory of the device"),
                "memory_used_bytes": ("bytes", "memory in use"),
                "memory_free_bytes": ("bytes", "memory not in use"),
                "memory_used_percent": ("percent", "memory_used_bytes of memory_total_bytes"),
                "temperature_celsius": (
                    "degrees Celsius",
                    "edge of the die, else its hottest spot",
                ),
                "memory_temperature_celsius": ("degrees Celsius", "memory"),
                "slowdown_celsius": ("degrees Celsius", "where its clocks are held down"),
                "shutdown_celsius": ("degrees Celsius", "where it switches itself off"),
                "fan_percent": ("percent", "fan speed; servers' cards have no fan"),
                "power_watts": ("watts", "power drawn, averaged where the card averages"),
                "power_limit_watts": ("watts", "limit that the driver enforces"),
                "power_limit_default_watts": ("watts", "limit at power-on"),
                "power_limit_max_watts": ("watts", "highest limit that can be set"),
                "sm_clock_hertz": ("hertz", "clock of the compute units"),
                "memory_clock_hertz": ("hertz", "clock of the memory"),
                "pcie_generation": ("generation", "generation of PCIe that the link runs at"),
                "pcie_generation_max": ("generation", "highest generation of the link"),
                "pcie_width": ("lanes", "lanes that the link runs with"),
                "pcie_width_max": ("lanes", "most lanes of the link"),
            }
        ),
        *counters(
            {
                "pcie_replays": ("replays", "packets sent again over PCIe"),
                "retired_pages_double_bit": ("pages", "memory pages taken out of use"),
                "ecc_corrected_volatile": (
                    "errors",
                    "errors corrected since the driver was loaded",
                ),
                "ecc_uncorrected_volatile": ("errors", "errors not corrected since then"),
            }
        ),
        *flags(
            {
                "ecc_enabled": "the driver counts memory errors of this card",
                "retired_pages_pending": "memory pages are taken out of use at the next reset",
            }
        ),
    )

    def __init__(self, config: AMDGPUConfig, context: PluginContext) -> None:
        self._config = config
        self._context = context

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each card."""
        cards = find_cards(proc=self._context.proc, sys=self._context.sys)
        if not cards:
            raise PluginUnavailableError("the kernel has no AMD GPU")
        return [
            Point("gpu", _tags(card), fields, to_ns(now))
            for card in cards
            if card.uuid not in self._config.skip_uuids and (fields := present(_read(card)))
        ]

    def close(self) -> None:
        """Release nothing: no file is kept open."""


def _tags(card: Card) -> dict[str, str]:
    return {"gpu": str(card.index), "uuid": card.uuid, "model": card.model}


def _read(card: Card) -> Fields:
    if card.is_asleep:
        return _memory(card)
    return {
        "utilization_percent": _scaled(integer(card.device / "gpu_busy_percent"), 1),
        "memory_utilization_percent": _scaled(integer(card.device / "mem_busy_percent"), 1),
        **_memory(card),
        **_heat(card),
        **_power_and_clocks(card),
        **_pcie(card),
        **_errors(card),
    }


def _memory(card: Card) -> Fields:
    total = integer(card.device / "mem_info_vram_total")
    used = integer(card.device / "mem_info_vram_used")
    if not total or used is None:
        return {"memory_total_bytes": total, "memory_used_bytes": used}
    return {
        "memory_total_bytes": total,
        "memory_used_bytes": used,
        "memory_free_bytes": total - used,
        "memory_used_percent": 100.0 * used / total,
    }


def _heat(card: Card) -> Fields:
    """Return temperatures with the limits of the same sensor."""
    if card.hwmon is None:
        return {}
    sensors = {
        read_text(card.hwmon / f"temp{number}_label"): f"temp{number}" for number in (1, 2, 3)
    }
    die = sensors.get("edge") or sensors.get("junction") or "temp1"
    memory = sensors.get("mem")
    fan, fan_max = integer(card.hwmon / "pwm1"), integer(card.hwmon / "pwm1_max")
    return {
        "temperature_celsius": _sensor(card, f"{die}_input", MILLI),
        "memory_temperature_celsius": _sensor(card, f"{memory}_input", MILLI) if memory else None,
        "slowdown_celsius": _sensor(card, f"{die}_crit", MILLI),
        "shutdown_celsius": _sensor(card, f"{die}_emergency", MILLI),
        "fan_percent": 100.0 * fan / fan_max if fan is not None and fan_max else None,
    }


def _power_and_clocks(card: Card) -> Fields:
    watts = _sensor(card, "power1_average", MICRO)
    return {
        "power_watts": _sensor(card, "power1_input", MICRO) if watts is None else watts,
        "power_limit_watts": _sensor(card, "power1_cap", MICRO),
        "power_limit_default_watts": _sensor(card, "power1_cap_default", MICRO),
        "power_limit_max_watts": _sensor(card, "power1_cap_max", MICRO),
        "sm_clock_hertz": _hertz(card, "freq1_input"),
        "memory_clock_hertz": _hertz(card, "freq2_input"),
    }


def _pcie(card: Card) -> Fields:
    return {
        "pcie_generation": pcie_generation(read_text(card.device / "current_link_speed")),
        "pcie_generation_max": pcie_generation(read_text(card.device / "max_link_speed")),
        "pcie_width": integer(card.device / "current_link_width"),
        "pcie_width_max": integer(card.device / "max_link_width"),
        "pcie_replays": integer(card.device / "pcie_replay_count"),
    }


def _errors(card: Card) -> Fields:
    """Return errors summed over the card's parts; nothing where the driver counts none."""
    ras = card.device / "ras"
    texts = [read_text(path) for path in sorted(ras.glob("*_err_count"))]
    counts = [_counts(text) for text in texts if text]
    if not counts:
        return {}
    pages = read_text(ras / "gpu_vram_bad_pages").splitlines()
    states = [line.rpartition(":")[2].strip() for line in pages]
    has_pages = (ras / "gpu_vram_bad_pages").exists()
    return {
        "ecc_enabled": 1,
        "ecc_corrected_volatile": sum(count.get("ce", 0) for count in counts),
        "ecc_uncorrected_volatile": sum(count.get("ue", 0) for count in counts),
        "retired_pages_double_bit": states.count("R") if has_pages else None,
        "retired_pages_pending": int("P" in states) if has_pages else None,
    }


def _counts(text: str) -> Mapping[str, int]:
    """Return `ue` and `ce` of lines such as `ue: 0`."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): int(number) for name, _, number in pairs if number.strip().isdecimal()}


def _sensor(card: Card, name: str, factor: float) -> float | None:
    return None if card.hwmon is None else _scaled(integer(card.hwmon / name), factor)


def _hertz(card: Card, name: str) -> int | None:
    return None if card.hwmon is None else integer(card.hwmon / name)


def _scaled(value: int | None, factor: float) -> float | None:
    return None if value is None else round(value * factor, 3)
