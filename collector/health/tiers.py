"""The tier of a GPU: its class by memory size, memory bandwidth and compute performance.

The specs are computed from the driver's values, or taken from the model's published ones where the
driver has none. docs/health.md lists the limits.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from collector.health.signals import GPUSignals
from protocol.health import Tier
from protocol.inventory import GPUInfo

GIB = 1024**3
TERA = 1e12
SUSTAINED_RATIO = 0.7
_MIN_SPECS = 2


@dataclass(frozen=True, slots=True)
class Specs:
    """The specs of a GPU; None is unknown. `flops` is single precision, per second."""

    memory_bytes: float | None
    bandwidth: float | None
    flops: float | None


# The minimum of each tier, best first; all other GPUs are `entry`.
LIMITS: tuple[tuple[Tier, Specs], ...] = (
    (Tier.FLAGSHIP, Specs(75 * GIB, 3.0 * TERA, 50 * TERA)),
    (Tier.PERFORMANCE, Specs(39 * GIB, 0.6 * TERA, 15 * TERA)),
    (Tier.STANDARD, Specs(14 * GIB, 0.25 * TERA, 10 * TERA)),
)
_ORDER = (*[tier for tier, _ in LIMITS], Tier.ENTRY)

# Part of the model's name, published bytes and floating point operations per second. AMD's drivers
# count cores and clocks differently from NVIDIA's, so AMD's models use this table only.
_PUBLISHED: tuple[tuple[str, float, float], ...] = (
    ("MI355X", 8.0 * TERA, 157.3 * TERA),
    ("MI325X", 6.0 * TERA, 163.4 * TERA),
    ("MI300X", 5.3 * TERA, 163.4 * TERA),
    ("MI300A", 5.3 * TERA, 122.6 * TERA),
    ("MI250X", 3.2 * TERA, 47.9 * TERA),
    ("MI250", 3.2 * TERA, 45.3 * TERA),
    ("MI210", 1.6 * TERA, 22.6 * TERA),
    ("MI100", 1.2 * TERA, 23.1 * TERA),
    ("B200", 8.0 * TERA, 75 * TERA),
    ("H200", 4.8 * TERA, 67 * TERA),
    ("H100 PCIe", 2.0 * TERA, 51.2 * TERA),
    ("H100", 3.35 * TERA, 66.9 * TERA),
    ("A100", 1.555 * TERA, 19.5 * TERA),
    ("L40S", 0.864 * TERA, 91.6 * TERA),
    ("L4", 0.3 * TERA, 30.3 * TERA),
    ("GB10", 0.273 * TERA, 31 * TERA),
    ("T4", 0.32 * TERA, 8.1 * TERA),
)


def tier_of(gpu: GPUSignals) -> Tier | None:
    """Return the tier of a GPU as it performs on this host; None if no specs are known.

    It is one below the model's if the clock under load stays far below its maximum, or if the PCIe
    link has fewer lanes than possible.
    """
    if gpu.info is None:
        return None
    best = tier_by_specs(specs_of(gpu.info))
    if best is None or not (_is_slow(gpu) or is_narrow(gpu)):
        return best
    return _ORDER[min(_ORDER.index(best) + 1, len(_ORDER) - 1)]


def tier_by_specs(specs: Specs) -> Tier | None:
    """Return the first tier whose limits are met; unknown specs are ignored.

    With only one known spec a GPU is `standard` at best.
    """
    values = [specs.memory_bytes, specs.bandwidth, specs.flops]
    count = sum(spec is not None for spec in values)
    if count == 0:
        return None
    for tier, least in LIMITS:
        is_sure = count >= _MIN_SPECS or tier is Tier.STANDARD
        limits = (least.memory_bytes, least.bandwidth, least.flops)
        if is_sure and all(
            spec is None or limit is None or spec >= limit
            for spec, limit in zip(values, limits, strict=True)
        ):
            return tier
    return Tier.ENTRY


def specs_of(info: GPUInfo) -> Specs:
    """Return the specs of a GPU from its driver, else the published ones.

    Memory transfers twice per clock over the whole bus; a core multiplies and adds in each clock.
    """
    bandwidth: float | None = 2.0 * info.memory_clock_max_hertz * info.memory_bus_bits / 8
    flops: float | None = 2.0 * info.core_count * info.sm_clock_max_hertz
    published = next((row for row in _PUBLISHED if row[0] in info.model), None)
    is_amd = info.model.startswith(("AMD", "MI", "Instinct", "Radeon"))
    if is_amd or not bandwidth:
        bandwidth = published[1] if published else None
    if is_amd or not flops:
        flops = published[2] if published else None
    return Specs(info.memory_bytes or None, bandwidth, flops)


def class_of(tiers: Iterable[Tier | None]) -> str:
    """Return an appliance's class from its GPUs' tiers: `8 x flagship`, or `cpu` without GPUs."""
    counts = Counter(tiers)
    if not counts:
        return Tier.CPU.value
    return ", ".join(f"{counts[tier]} x {tier.value}" for tier in _ORDER if counts[tier])


def is_narrow(gpu: GPUSignals) -> bool:
    """Return whether the PCIe link has fewer lanes than possible."""
    width, best = gpu.reading.get("pcie_width"), gpu.reading.get("pcie_width_max")
    return bool(width and best and width < best)


def _is_slow(gpu: GPUSignals) -> bool:
    best = gpu.reading.get("sm_clock_max_hertz") or (gpu.info and gpu.info.sm_clock_max_hertz)
    clock = gpu.load_clock_hertz
    return bool(clock and best and clock < SUSTAINED_RATIO * best)
