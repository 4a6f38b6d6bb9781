"""The tier of a GPU: what it is worth to a job, by its memory, its bandwidth and its speed.

The figures are computed from what the driver says; where it does not say, a published figure of
the model stands in. docs/health.md lists the limits.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from collector.health.signs import GPUSigns
from jobqueue.executors.health import Tier
from jobqueue.executors.wire import GPUInfo

GIB = 1024**3
TERA = 1e12
SUSTAINED_RATIO = 0.7
_FIGURES_FOR_BEST = 2


@dataclass(frozen=True, slots=True)
class Figures:
    """What a GPU is measured by; None is unknown. `flops` are of single precision, a second."""

    memory_bytes: float | None
    bandwidth: float | None
    flops: float | None


# The least that a GPU of each tier has, best first; the last one takes all others.
LIMITS: tuple[tuple[Tier, Figures], ...] = (
    (Tier.FLAGSHIP, Figures(75 * GIB, 3.0 * TERA, 50 * TERA)),
    (Tier.PERFORMANCE, Figures(39 * GIB, 0.6 * TERA, 15 * TERA)),
    (Tier.STANDARD, Figures(14 * GIB, 0.25 * TERA, 10 * TERA)),
)
_ORDER = (*[tier for tier, _ in LIMITS], Tier.ENTRY)

# Part of the model's name to published bytes and floating point operations a second. AMD's drivers
# count cores and clocks otherwise than NVIDIA's, so AMD's models go by this table alone.
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
    ("T4", 0.32 * TERA, 8.1 * TERA),
)


def tier_of(gpu: GPUSigns) -> Tier | None:
    """Return the tier as the GPU performs here; None where nothing is known of it.

    It is one lower than the model's where the clock under load stays far below its maximum or the
    PCIe link is narrower than it can be.
    """
    if gpu.info is None:
        return None
    best = tier_by_figures(figures_of(gpu.info))
    if best is None or not (_is_slow(gpu) or is_narrow(gpu)):
        return best
    return _ORDER[min(_ORDER.index(best) + 1, len(_ORDER) - 1)]


def tier_by_figures(figures: Figures) -> Tier | None:
    """Return the first tier whose limits are met; an unknown figure is not held against a GPU.

    With one figure alone a GPU is `standard` at best.
    """
    known = [figures.memory_bytes, figures.bandwidth, figures.flops]
    count = sum(figure is not None for figure in known)
    if count == 0:
        return None
    for tier, least in LIMITS:
        is_sure = count >= _FIGURES_FOR_BEST or tier is Tier.STANDARD
        limits = (least.memory_bytes, least.bandwidth, least.flops)
        if is_sure and all(
            figure is None or limit is None or figure >= limit
            for figure, limit in zip(known, limits, strict=True)
        ):
            return tier
    return Tier.ENTRY


def figures_of(info: GPUInfo) -> Figures:
    """Return the figures of a GPU from its driver's words, else from the published table.

    Memory moves twice a clock over the whole bus; a core adds and multiplies at each clock.
    """
    bandwidth: float | None = 2.0 * info.memory_clock_max_hertz * info.memory_bus_bits / 8
    flops: float | None = 2.0 * info.core_count * info.sm_clock_max_hertz
    published = next((row for row in _PUBLISHED if row[0] in info.model), None)
    is_amd = info.model.startswith(("AMD", "MI", "Instinct", "Radeon"))
    if is_amd or not bandwidth:
        bandwidth = published[1] if published else None
    if is_amd or not flops:
        flops = published[2] if published else None
    return Figures(info.memory_bytes or None, bandwidth, flops)


def class_of(tiers: Iterable[Tier | None]) -> str:
    """Return an appliance's class from its GPUs' tiers: `8 x flagship`, or `cpu` without GPUs."""
    counts = Counter(tiers)
    if not counts:
        return Tier.CPU.value
    return ", ".join(f"{counts[tier]} x {tier.value}" for tier in _ORDER if counts[tier])


def is_narrow(gpu: GPUSigns) -> bool:
    """Return whether the PCIe link has fewer lanes than it can have here."""
    width, best = gpu.reading.get("pcie_width"), gpu.reading.get("pcie_width_max")
    return bool(width and best and width < best)


def _is_slow(gpu: GPUSigns) -> bool:
    best = gpu.reading.get("sm_clock_max_hertz") or (gpu.info and gpu.info.sm_clock_max_hertz)
    clock = gpu.load_clock_hertz
    return bool(clock and best and clock < SUSTAINED_RATIO * best)
