"""The input of the health evaluation: readings of GPUs, and what is derived from them over time."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from collector.health.history import XIDRecord
from protocol.inventory import GPUInfo
from timeseries.points import FieldValue, Point

THROTTLE_MINUTES = 10
HOUR_MINUTES = 60
LOAD_PERCENT = 90.0
# A clock counts as the usual one after this many minutes under load.
MIN_LOAD_MINUTES = 10
# Between readings further apart than this, the state is unknown.
MAX_STEP_SECONDS = 120.0
EXTERNAL_BYTES = 256 * 1024**2
EXTERNAL_GONE_SECONDS = 180.0
NS_PER_SECOND = 1e9
# Counters whose increase within an hour counts.
CORRECTED, LINK_ERRORS = "ecc_corrected_volatile", "nvlink_errors"


@dataclass(frozen=True, slots=True)
class ExternalUse:
    """GPU memory in use outside of jobs: `owner` is `host` or a container's id."""

    owner: str
    memory_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUSignals:
    """One GPU.

    Attributes:
        reading: the newest values of measurement `gpu`, by field.
        is_missing: it is known, but not in the inventory.
        had_nvlinks: one of its NVLinks was up at some time.
        heat_seconds: throttled by heat, in the last ten minutes.
        hardware_seconds: throttled by the board's protection, in the last ten minutes.
        corrected_errors: corrected memory errors in the last hour.
        link_errors: errors of its NVLinks in the last hour.
        slow_pcie_seconds: time under load below its maximum PCIe generation.
        load_clock_hertz: usual clock under full load in the last hour; None without load.
        xids: reported by the driver since the boot.
        reported: the findings of the last evaluation.
    """

    index: int
    uuid: str
    model: str = ""
    info: GPUInfo | None = None
    reading: Mapping[str, float] = field(default_factory=dict)
    is_missing: bool = False
    had_nvlinks: bool = False
    heat_seconds: float = 0.0
    hardware_seconds: float = 0.0
    corrected_errors: float = 0.0
    link_errors: float = 0.0
    slow_pcie_seconds: float = 0.0
    load_clock_hertz: float | None = None
    external: ExternalUse | None = None
    xids: tuple[XIDRecord, ...] = ()
    reported: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """An appliance.

    Attributes:
        gpus: its GPUs.
        disk_used_percent: by mount.
        silent_seconds: how long no GPU was read although there are some; None if all is well.
    """

    gpus: tuple[GPUSignals, ...] = ()
    disk_used_percent: Mapping[str, float] = field(default_factory=dict)
    silent_seconds: float | None = None


@dataclass(slots=True)
class _Minute:
    number: int
    total: float = 0.0
    count: int = 0


class MinuteWindow:
    """Sums of values by minute, over the last `minutes`.

    Times are seconds since the epoch; an earlier one counts in the newest minute.
    """

    def __init__(self, minutes: int) -> None:
        self._length = minutes
        self._minutes: deque[_Minute] = deque(maxlen=minutes)

    def add(self, seconds: float, value: float) -> None:
        """Add a value to the minute of `seconds`."""
        number = int(seconds // 60)
        if not self._minutes or self._minutes[-1].number < number:
            self._minutes.append(_Minute(number))
        newest = self._minutes[-1]
        newest.total += value
        newest.count += 1

    def total(self, now_seconds: float) -> float:
        """Return the sum over the window."""
        return sum(minute.total for minute in self._recent(now_seconds))

    def means(self, now_seconds: float) -> list[float]:
        """Return the mean of each minute with values, oldest first."""
        return [minute.total / minute.count for minute in self._recent(now_seconds)]

    def _recent(self, now_seconds: float) -> list[_Minute]:
        oldest = int(now_seconds // 60) - self._length
        return [minute for minute in self._minutes if minute.number > oldest]


@dataclass(frozen=True, slots=True)
class _Allocation:
    since: float
    until: float
    memory_bytes: float


class GPUTracker:
    """Tracks one GPU's readings over time. For one thread."""

    def __init__(self, index: int, uuid: str, model: str) -> None:
        self.index, self.uuid, self.model = index, uuid, model
        self.reading: Mapping[str, float] = {}
        self.slow_pcie_seconds = 0.0
        self._read_at: float | None = None
        self._heat = MinuteWindow(THROTTLE_MINUTES)
        self._hardware = MinuteWindow(THROTTLE_MINUTES)
        self._errors = {name: MinuteWindow(HOUR_MINUTES) for name in (CORRECTED, LINK_ERRORS)}
        self._clocks = MinuteWindow(HOUR_MINUTES)
        self._external: dict[tuple[str, str], _Allocation] = {}

    def add_reading(self, point: Point) -> None:
        """Add a point of measurement `gpu`."""
        at = point.time_ns / NS_PER_SECOND
        before, reading = self.reading, _numbers(point.fields)
        step = 0.0 if self._read_at is None else max(0.0, at - self._read_at)
        step = step if step <= MAX_STEP_SECONDS else 0.0
        if reading.get("throttled_by_heat"):
            self._heat.add(at, step)
        if reading.get("throttled_by_hardware"):
            self._hardware.add(at, step)
        for name, window in self._errors.items():
            increase = _increase(before, reading, name)
            if increase > 0:
                window.add(at, increase)
        if reading.get("utilization_percent", 0.0) >= LOAD_PERCENT:
            self._add_under_load(reading, at, step)
        self.reading, self._read_at = reading, at

    def add_process(self, point: Point) -> None:
        """Add a point of measurement `gpu_process`; those of jobs are ignored."""
        used = point.fields.get("memory_used_bytes", 0)
        if point.tags.get("owner") == "job" or isinstance(used, str) or used <= EXTERNAL_BYTES:
            return
        at = point.time_ns / NS_PER_SECOND
        owner = point.tags.get("container") or point.tags.get("owner", "host")
        key = (owner, point.tags.get("uuid", ""))  # of the GPU, or of one of its slices
        before = self._external.get(key)
        is_new = before is None or at - before.until > EXTERNAL_GONE_SECONDS
        since = at if before is None or is_new else before.since
        self._external[key] = _Allocation(since, at, float(used))

    def add_to(self, signals: GPUSignals, now: float) -> GPUSignals:
        """Return the signals with the tracked values; `now` in seconds since the epoch."""
        clocks = self._clocks.means(now)
        return replace(
            signals,
            reading=self.reading,
            heat_seconds=self._heat.total(now),
            hardware_seconds=self._hardware.total(now),
            corrected_errors=self._errors[CORRECTED].total(now),
            link_errors=self._errors[LINK_ERRORS].total(now),
            slow_pcie_seconds=self.slow_pcie_seconds,
            load_clock_hertz=median(clocks) if len(clocks) >= MIN_LOAD_MINUTES else None,
            external=self._external_use(now),
        )

    def _external_use(self, now: float) -> ExternalUse | None:
        """Return the oldest allocation outside of jobs."""
        self._external = {
            key: use
            for key, use in self._external.items()
            if now - use.until <= EXTERNAL_GONE_SECONDS
        }
        if not self._external:
            return None
        (owner, _), oldest = min(self._external.items(), key=lambda item: item[1].since)
        return ExternalUse(owner, oldest.memory_bytes, oldest.until - oldest.since)

    def _add_under_load(self, reading: Mapping[str, float], at: float, step: float) -> None:
        """Add clock and PCIe generation: without load, both are reduced to save power."""
        if clock := reading.get("sm_clock_hertz"):
            self._clocks.add(at, clock)
        generation = reading.get("pcie_generation")
        best = reading.get("pcie_generation_max")
        if generation and best:
            self.slow_pcie_seconds = self.slow_pcie_seconds + step if generation < best else 0.0


def _numbers(fields: Mapping[str, FieldValue]) -> dict[str, float]:
    return {name: float(value) for name, value in fields.items() if not isinstance(value, str)}


def _increase(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    """Return the increase of a counter; after a reset it counts from 0."""
    if name not in before or name not in after:
        return 0.0
    return after[name] - before[name] if after[name] >= before[name] else after[name]
