"""AMD GPUs through the amdgpu driver's files: measurements `gpu` and `gpu_ecc`, as for NVIDIA.

Unsupported fields are absent, never 0. A suspended card is not woken: only its memory is read.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from core.clock import to_ns
from jobqueue.executors.docker.devices import read_text
from plugins.amdgpu.sysfs import Card, find_cards, integer, pcie_generation
from plugins.base import BasePlugin, PluginContext, PluginUnavailableError, present
from plugins.nvml.metrics import ECC_METRICS, GPU_METRICS
from timeseries.points import FieldValue, Point

MICRO = 1e-6
MILLI = 1e-3
Fields = dict[str, FieldValue | None]
_COUNTS = "_err_count"
# The driver's names of errors: fields of `gpu_ecc`.
_ECC_FIELDS = {"ce": "corrected_volatile", "ue": "uncorrected_volatile"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AMDGPUConfig:
    """GPUs to read.

    Attributes:
        skip_uuids: GPUs to skip, by UUID.
    """

    skip_uuids: tuple[str, ...] = ()


_SUPPORTED = frozenset(
    [
        "utilization_percent",
        "memory_utilization_percent",
        "memory_total_bytes",
        "memory_used_bytes",
        "memory_free_bytes",
        "memory_used_percent",
        "temperature_celsius",
        "memory_temperature_celsius",
        "slowdown_celsius",
        "shutdown_celsius",
        "fan_percent",
        "power_watts",
        "power_limit_watts",
        "power_limit_default_watts",
        "power_limit_min_watts",
        "power_limit_max_watts",
        "sm_clock_hertz",
        "memory_clock_hertz",
        "pcie_generation",
        "pcie_generation_max",
        "pcie_width",
        "pcie_width_max",
        "pcie_replays",
        "retired_pages_double_bit",
        "ecc_corrected_volatile",
        "ecc_uncorrected_volatile",
        "ecc_enabled",
        "retired_pages_pending",
    ]
)


class AMDGPUPlugin(BasePlugin):
    """One point for each AMD GPU, and one for each of its blocks that counts memory errors."""

    name = "amdgpu"
    config_class = AMDGPUConfig
    metrics = (
        *(metric for metric in GPU_METRICS if metric.name in _SUPPORTED),
        *(metric for metric in ECC_METRICS if metric.name in _ECC_FIELDS.values()),
    )

    def __init__(self, config: AMDGPUConfig, context: PluginContext) -> None:
        self._config = config
        self._context = context

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each card."""
        cards = find_cards(proc=self._context.proc, sys=self._context.sys)
        if not cards:
            raise PluginUnavailableError("the kernel has no AMD GPU")
        chosen = [card for card in cards if card.uuid not in self._config.skip_uuids]
        return [point for card in chosen for point in _points(card, now_ns=to_ns(now))]


def _points(card: Card, *, now_ns: int) -> Iterator[Point]:
    counts = {} if card.is_asleep else _error_counts(card)
    own = {"gpu": str(card.index), "uuid": card.uuid}
    if fields := present(_read(card, counts)):
        yield Point("gpu", {**own, "model": card.model}, fields, now_ns)
    for block, count in counts.items():
        numbers = {
            _ECC_FIELDS[kind]: number for kind, number in count.items() if kind in _ECC_FIELDS
        }
        if numbers:
            yield Point("gpu_ecc", {**own, "place": block}, dict(numbers), now_ns)


def _read(card: Card, error_counts: Mapping[str, Mapping[str, int]]) -> Fields:
    if card.is_asleep:
        return _memory(card)
    return {
        "utilization_percent": _scaled(integer(card.device / "gpu_busy_percent"), 1),
        "memory_utilization_percent": _scaled(integer(card.device / "mem_busy_percent"), 1),
        **_memory(card),
        **_heat(card),
        **_power_and_clocks(card),
        **_pcie(card),
        **_errors(card, error_counts),
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
        "power_limit_min_watts": _sensor(card, "power1_cap_min", MICRO),
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


def _error_counts(card: Card) -> dict[str, Mapping[str, int]]:
    """Return errors by block of the card, such as `umc`; empty if the driver counts none."""
    texts = {
        path.name: read_text(path) for path in sorted((card.device / "ras").glob(f"*{_COUNTS}"))
    }
    return {name.removesuffix(_COUNTS): _counts(text) for name, text in texts.items() if text}


def _errors(card: Card, error_counts: Mapping[str, Mapping[str, int]]) -> Fields:
    """Return errors summed over the blocks of the card, and its retired pages."""
    counts, ras = error_counts.values(), card.device / "ras"
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
