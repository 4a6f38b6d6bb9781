"""Follows one GPU's readings over time: what lasted, what grew, how fast it runs under load."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from collector.health.minutes import MinuteWindow
from collector.health.signs import ExternalUse, GPUSigns
from timeseries.points import FieldValue, Point

THROTTLE_MINUTES = 10
HOUR_MINUTES = 60
LOAD_PERCENT = 90.0
# A clock is only called usual when this many minutes of load stand behind it.
LEAST_LOAD_MINUTES = 10
# Readings further apart than this say nothing of the time between them.
LONGEST_STEP_SECONDS = 120.0
EXTERNAL_BYTES = 256 * 1024**2
EXTERNAL_GONE_SECONDS = 180.0
NS_PER_SECOND = 1e9


@dataclass(frozen=True, slots=True)
class _Hold:
    since: float
    until: float
    memory_bytes: float


class GPUTracker:
    """One GPU's recent past. For one thread."""

    def __init__(self, index: int, uuid: str, model: str) -> None:
        self.index, self.uuid, self.model = index, uuid, model
        self.reading: Mapping[str, float] = {}
        self.slow_pcie_seconds = 0.0
        self._read_at: float | None = None
        self._heat = MinuteWindow(THROTTLE_MINUTES)
        self._hardware = MinuteWindow(THROTTLE_MINUTES)
        self._corrected = MinuteWindow(HOUR_MINUTES)
        self._clocks = MinuteWindow(HOUR_MINUTES)
        self._external: dict[tuple[str, str], _Hold] = {}

    def take_reading(self, point: Point) -> None:
        """Take a point of measurement `gpu`."""
        at = point.time_ns / NS_PER_SECOND
        before, reading = self.reading, _numbers(point.fields)
        step = 0.0 if self._read_at is None else max(0.0, at - self._read_at)
        step = step if step <= LONGEST_STEP_SECONDS else 0.0
        if reading.get("throttled_by_heat"):
            self._heat.add(at, step)
        if reading.get("throttled_by_hardware"):
            self._hardware.add(at, step)
        grown = _growth(before, reading, "ecc_corrected_volatile")
        if grown > 0:
            self._corrected.add(at, grown)
        if reading.get("utilization_percent", 0.0) >= LOAD_PERCENT:
            self._take_load(reading, at, step)
        self.reading, self._read_at = reading, at

    def take_process(self, point: Point) -> None:
        """Take a point of measurement `gpu_process`; those of jobs are as they should be."""
        used = point.fields.get("memory_used_bytes", 0)
        if point.tags.get("owner") == "job" or isinstance(used, str) or used <= EXTERNAL_BYTES:
            return
        at = point.time_ns / NS_PER_SECOND
        owner = point.tags.get("container") or point.tags.get("owner", "host")
        use = (owner, point.tags.get("uuid", ""))  # of the GPU, or of one of its slices
        held = self._external.get(use)
        is_new = held is None or at - held.until > EXTERNAL_GONE_SECONDS
        since = at if held is None or is_new else held.since
        self._external[use] = _Hold(since, at, float(used))

    def fill(self, signs: GPUSigns, now: float) -> GPUSigns:
        """Return the signs with what this tracker knows; `now` in seconds since the epoch."""
        return replace(
            signs,
            reading=self.reading,
            heat_seconds=self._heat.total(now),
            hardware_seconds=self._hardware.total(now),
            corrected_errors=self._corrected.total(now),
            slow_pcie_seconds=self.slow_pcie_seconds,
            load_clock_hertz=self._load_clock(now),
            external=self._external_use(now),
        )

    def _load_clock(self, now: float) -> float | None:
        means = self._clocks.means(now)
        return median(means) if len(means) >= LEAST_LOAD_MINUTES else None

    def _external_use(self, now: float) -> ExternalUse | None:
        """Return what the longest of those that still hold memory holds."""
        self._external = {
            use: hold
            for use, hold in self._external.items()
            if now - hold.until <= EXTERNAL_GONE_SECONDS
        }
        if not self._external:
            return None
        (owner, _), hold = min(self._external.items(), key=lambda item: item[1].since)
        return ExternalUse(owner, hold.memory_bytes, hold.until - hold.since)

    def _take_load(self, reading: Mapping[str, float], at: float, step: float) -> None:
        """Note clock and PCIe generation: without load both are low to save power."""
        if clock := reading.get("sm_clock_hertz"):
            self._clocks.add(at, clock)
        generation = reading.get("pcie_generation")
        best = reading.get("pcie_generation_max")
        if generation and best:
            self.slow_pcie_seconds = self.slow_pcie_seconds + step if generation < best else 0.0


def _numbers(fields: Mapping[str, FieldValue]) -> dict[str, float]:
    return {name: float(value) for name, value in fields.items() if not isinstance(value, str)}


def _growth(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    """Return by how much a counter grew; one that fell began anew and counts from 0."""
    if name not in before or name not in after:
        return 0.0
    return after[name] - before[name] if after[name] >= before[name] else after[name]
